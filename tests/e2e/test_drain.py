"""Evictions, as `kubectl drain` requests them: the first eviction is granted, the next one only when the first broker
is back."""

from __future__ import annotations

import json

from tests.e2e.installed import Operator
from tests.e2e.kubectl import KubectlError, wait
from tests.e2e.scene import Scene, working


def test_drain(operator: Operator) -> None:
    with working(operator, "drain") as scene:
        scene.in_sync()
        before = scene.births()
        wait("an eviction is granted", lambda: evicted(scene, "ottla-broker-0"), 120)
        assert not evicted(scene, "ottla-broker-1")
        wait("the second is granted", lambda: evicted(scene, "ottla-broker-1"), 240)

        def replaced() -> set[str]:
            now = scene.births()
            return {name for name in before if now.get(name, before[name]) != before[name]}

        wait("both are other pods", lambda: replaced() == {"ottla-broker-0", "ottla-broker-1"})
        scene.settled()
        assert len(replaced()) == 2
        scene.in_sync()


def evicted(scene: Scene, pod: str) -> bool:
    """Whether the API server grants the eviction of the pod."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": scene.namespace},
    }
    path = f"/api/v1/namespaces/{scene.namespace}/pods/{pod}/eviction"
    try:
        scene.kube("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    except KubectlError as error:
        if "disruption budget" in str(error):
            return False
        raise
    return True
