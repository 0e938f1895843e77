"""Brokers are removed and come back while clients outside of the cluster work: each broker keeps its Service and port
until it is removed.

All clients are outside of the cluster. Every second a new client starts with the addresses in the Cluster's status.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer

from tests.crash.workload import Workload
from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import PARTITIONS, TOPIC, Scene, cluster, namespace, topic
from tests.e2e.test_node_port import OUTSIDE, address_of

NEWCOMERS = "newcomers"
SOON_S = 15.0  # a new client's records are acknowledged within this time
LISTENERS = [{"name": "plain", "port": 9092, "type": "Internal"}, OUTSIDE]


def test_scale_outside(operator: Operator) -> None:
    with namespace(operator, "scale-outside") as scene:
        scene.kube.apply(cluster(brokers=4, listeners=LISTENERS, scaling={"rebalance": "Balance"}))
        scene.settled()
        bootstrap = wait("the addresses", lambda: address_of(scene, "outside"), 240)
        scene.kube.apply(
            topic(TOPIC, partitions=PARTITIONS, replicationFactor=3, config={"min.insync.replicas": "2"}),
            topic(NEWCOMERS, partitions=8, replicationFactor=3),
        )
        scene.topic_settled(TOPIC)
        scene.topic_settled(NEWCOMERS)
        port = port_of(scene, 3)
        clients = Workload(bootstrap, PARTITIONS, seed=time.time_ns(), records_per_s=50)
        clients.start()
        clients.wait_for_acknowledgements(50)
        with newcomers(scene):
            scene.change(brokers={"replicas": 2})
            wait("the status says why the Cluster can't scale down", lambda: "scaling down waits" in scene.says(), 60)
            clients.wait_for_acknowledgements(200)
            assert len(scene.brokers()) == 4
            assert port_of(scene, 3) == port, "a broker that stays keeps its Service"

            scene.change(brokers={"replicas": 3})
            wait("broker 3 is gone", lambda: len(scene.brokers()) == 3, 420)
            scene.settled()
            clients.wait_for_acknowledgements(200)

            scene.change(brokers={"replicas": 4})
            scene.settled(420)
            assert port_of(scene, 3) == port, "clients that remember the broker's port find the broker there again"
            clients.wait_for_acknowledgements(200)
        wrong = clients.finish()
        print(f"the longest time without an acknowledgement: {clients.longest_silence_s:.2f} s")
        assert not wrong, "\n".join(wrong)


def port_of(scene: Scene, broker: int) -> int | None:
    """A broker's node port; None while it has no Service."""
    service = scene.kube.find("service", f"ottla-broker-{broker}-outside")
    return None if service is None else int(service["spec"]["ports"][0]["nodePort"])


@contextmanager
def newcomers(scene: Scene) -> Iterator[None]:
    """Starts a new producer each second. At the end each producer must have been served in time."""
    wrong: list[str] = []
    served = [0]
    stopping = threading.Event()

    def come() -> None:
        while not stopping.wait(1.0):
            told = one_newcomer(address_of(scene, "outside") or "")
            wrong.extend(told)
            served[0] += not told

    thread = threading.Thread(target=come, name="newcomers")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    print(f"new clients served: {served[0]}, refused: {len(wrong)}")
    assert not wrong, wrong[:5]
    assert served[0] >= 10


def one_newcomer(bootstrap: str) -> list[str]:
    """The errors of a producer that starts now and writes to every partition."""
    wrong: list[str] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            wrong.append(f"partition {message.partition()}: {error}")

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": int(SOON_S * 1000)})
    for partition in range(8):
        producer.produce(NEWCOMERS, b"x", partition=partition, on_delivery=answered)
    if left := producer.flush(SOON_S + 5):
        wrong.append(f"{left} records weren't answered by {bootstrap}")
    return wrong
