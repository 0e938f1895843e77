"""Another release of the operator replaces pods one at a time, one Cluster after the other, and no client notices.

The other release has the same images under their full names: the pods differ, the programs in them don't.
"""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.installed import Operator
from tests.e2e.scene import NAME, Scene, cluster, namespace, working

LIBRARY = "docker.io/library"  # container runtimes add this to names without a registry
OTHERWISE = ("--set", f"image.registry={LIBRARY}")
PODS = f"app.kubernetes.io/instance={NAME}"
ROLLED_S = 600


def test_operator_upgraded(operator: Operator) -> None:
    with working(operator, "upgraded", cluster(etcd=3)) as first, namespace(operator, "upgraded-next") as second:
        second.kube.apply(cluster(brokers=1))
        second.settled()
        first.in_sync()
        scenes = (first, second)
        before = [set(pods(scene)) for scene in scenes]
        operator.install(*OTHERWISE)
        began = time.monotonic()
        while not all(rolled(scene, old) for scene, old in zip(scenes, before, strict=True)):
            assert time.monotonic() < began + ROLLED_S, [scene.says() for scene in scenes]
            now = [pods(scene) for scene in scenes]
            away = [len(old) - sum(found.values()) for old, found in zip(before, now, strict=True)]
            assert max(away) <= 1, f"pods that don't serve in either Cluster: {away}"
            midway = [
                bool(old - found.keys()) and not (old.isdisjoint(found) and all(found.values()))
                for old, found in zip(before, now, strict=True)
            ]
            assert not all(midway), "both are being restarted"
            time.sleep(0.5)
        for scene in scenes:
            scene.settled()
            assert LIBRARY in scene.cluster()["status"]["operator"]["release"]
            assert "turn" not in scene.cluster()["status"]["operator"]
        first.goes_on()


def pods(scene: Scene) -> dict[str, bool]:
    """uid → whether the pod is ready, for each pod of the Cluster."""
    return {pod["metadata"]["uid"]: ready(pod) for pod in scene.kube.all("pods", PODS)}


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    serves = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return serves and "deletionTimestamp" not in pod["metadata"]


def rolled(scene: Scene, before: set[str]) -> bool:
    """Whether every pod was replaced, and the number of pods is the same."""
    now = pods(scene)
    return before.isdisjoint(now) and len(now) == len(before) and all(now.values())
