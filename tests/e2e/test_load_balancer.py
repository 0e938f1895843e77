"""Load balancers get their addresses long after the pods start: brokers advertise them without a restart.

If the cluster has no load balancers, the scenario itself writes the addresses into the Services' status.
"""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import CLIENTS, NAME, cluster, topic, working

LISTENERS = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "outside", "port": 9094, "type": "LoadBalancer"},
]

# librdkafka shows the addresses that the first broker advertises. It needn't connect to them: they can't be reached.
_TOLD = f"""
from confluent_kafka.admin import AdminClient
found = AdminClient({{"bootstrap.servers": "ottla-broker-0.{NAME}-brokers:9094"}}).list_topics(timeout=20)
print(*(broker.host for broker in found.brokers.values()))
"""


def test_load_balancer(operator: Operator) -> None:
    with working(operator, "load-balancer", cluster(listeners=LISTENERS)) as scene:
        services = [
            service["metadata"]["name"]
            for service in scene.kube.all("services", f"app.kubernetes.io/instance={NAME}")
            if service["spec"]["type"] == "LoadBalancer"
        ]
        assert len(services) >= 3
        before = scene.births()
        for number, service in enumerate(sorted(services)):
            address = {"status": {"loadBalancer": {"ingress": [{"ip": f"192.0.2.{number + 1}"}]}}}
            scene.kube.patch("service", service, address, "--subresource=status")

        def advertised() -> set[str]:
            told = scene.kube.execute(CLIENTS, "python", "-c", _TOLD)
            return {host for host in told.split() if host.startswith("192.0.2.")}

        wait("three addresses are advertised", lambda: len(advertised()) == 3)
        scene.goes_on()
        assert scene.births() == before


SHARED = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "shared", "port": 9094, "type": "LoadBalancer", "brokerPorts": {"first": 9200}},
]

# Produces with acks=all and reads the records back: each partition's leader is reached through the only address.
_THROUGH = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition
bootstrap, topic, partitions, text = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
told = []
producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60000})
for partition in range(partitions):
    producer.produce(topic, text, partition=partition, on_delivery=lambda error, record: told.append((error, record)))
assert producer.flush(70) == 0, "not all were acknowledged"
assert len(told) == partitions and not any(error for error, _ in told), told
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "through", "enable.auto.commit": False})
for error, record in told:
    consumer.assign([TopicPartition(topic, record.partition(), record.offset())])
    found = consumer.poll(30)
    assert found is not None and found.value() == text.encode(), (record.partition(), found and found.value())
print(*sorted(f"{broker.host}:{broker.port}" for broker in consumer.list_topics(topic, timeout=20).brokers.values()))
consumer.close()
"""


def test_shared_load_balancer(operator: Operator) -> None:
    """Clients connect to the Service's own address, as a load balancer would."""
    with working(operator, "shared-balancer", cluster(listeners=SHARED)) as scene:
        address = scene.kube.get("service", f"{NAME}-bootstrap-shared")["spec"]["clusterIP"]
        ingress = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        scene.kube.patch("service", f"{NAME}-bootstrap-shared", ingress, "--subresource=status")
        scene.wait_for("ListenersReady")
        scene.kube.apply(topic("through", partitions=6, replicationFactor=3))
        scene.topic_settled("through")

        def through(text: str) -> str:
            words = ("python", "-c", _THROUGH, f"{address}:9094", "through", "6", text)
            return scene.kube.execute(CLIENTS, *words, seconds=200)

        assert through("before").split() == [f"{address}:{9200 + broker}" for broker in range(3)]
        pod = scene.brokers()[f"{NAME}-broker-1"]
        scene.kube.delete("pod", pod["metadata"]["name"])
        scene.settled()
        back = scene.brokers()[f"{NAME}-broker-1"]
        assert back["status"]["podIP"] != pod["status"]["podIP"], (
            "the pod came back at its old address, so the scenario shows nothing"
        )
        through("after a pod came back at another address")
        scene.goes_on()
