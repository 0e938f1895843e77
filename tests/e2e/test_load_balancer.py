"""Addresses of load balancers come long after the pods: brokers advertise them without a restart.

Where nobody makes load balancers, the scenario writes into the Services' status what one would.
"""

from __future__ import annotations

import json

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import NAME, cluster, working

LISTENERS = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "outside", "port": 9094, "type": "LoadBalancer"},
]


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
            listed = scene.ask("brokers", "list", "--json", "--bootstrap", f"ottla-broker-0.{NAME}-brokers:9094")
            return {broker["host"] for broker in json.loads(listed) if broker["host"].startswith("192.0.2.")}

        wait("three addresses are advertised", lambda: len(advertised()) == 3)
        scene.goes_on()
        assert scene.births() == before
