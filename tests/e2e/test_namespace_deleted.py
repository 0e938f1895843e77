"""A namespace with a working Cluster is deleted completely, both with a running operator and without one."""

from __future__ import annotations

import pytest

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import cluster, namespace


@pytest.mark.parametrize("alive", [True, False], ids=["operator alive", "operator at zero"])
def test_namespace_deleted(operator: Operator, alive: bool) -> None:
    with namespace(operator, "namespace-deleted") as scene:
        scene.kube.apply(cluster())
        scene.settled()
        scene.start_clients()
        scene.goes_on()
        scene.finish()
        if not alive:
            operator.scale(0)
        try:
            scene.kube("delete", "namespace", scene.namespace, "--wait=false")
            wait("the namespace is gone", lambda: scene.kube.find("namespace", scene.namespace) is None, 180)
        finally:
            if not alive:
                operator.scale(1)
