"""The operator is uninstalled before its Cluster: brokers and topics stay in service, and the Cluster's deletion is
complete."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import NAME, TOPIC, cluster, namespace

MADE = "pods,statefulsets,services,configmaps,secrets,poddisruptionbudgets,networkpolicies"


def test_operator_uninstalled(operator: Operator) -> None:
    with namespace(operator, "uninstalled") as scene:
        scene.kube.apply(cluster())
        scene.settled()
        scene.start_clients()
        operator.uninstall()
        try:
            before = scene.births()
            scene.goes_on(500)
            assert scene.births() == before
            assert scene.kube.get("topics.ottla.dev", TOPIC)
            scene.finish()
            scene.kube.delete("topics.ottla.dev", TOPIC)
            scene.kube.delete("clusters.ottla.dev", NAME)
            wait(
                "all objects of the Cluster but its volumes are gone",
                lambda: not scene.kube.all(MADE, f"app.kubernetes.io/instance={NAME}"),
            )
        finally:
            operator.install()
