"""Addresses of load balancers come long after the pods: brokers advertise them without a restart.

Where nobody makes load balancers, the scenario writes into the Services' status what one would.
"""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import CLIENTS, NAME, cluster, working

LISTENERS = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "outside", "port": 9094, "type": "LoadBalancer"},
]

# librdkafka tells what the first broker says, and needn't reach the addresses: nobody can.
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
