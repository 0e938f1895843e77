"""Brokers get other CPU and memory while they run: no pod is replaced, no container restarts, no client notices.

The scenario needs Kubernetes 1.33 or newer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.operator.objects import Object
from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import SMALL, Scene, working

MORE = {"requests": {"cpu": "60m", "memory": "160Mi"}, "limits": {"memory": "640Mi"}}
LESS_CPU = {"requests": {"cpu": "40m", "memory": "160Mi"}, "limits": {"memory": "640Mi"}}
NEVER = {"requests": {"cpu": "4000", "memory": "160Mi"}, "limits": {"memory": "640Mi"}}  # no node is so large
BYTES = {"512Mi": 512 << 20, "640Mi": 640 << 20}


def test_resized(operator: Operator) -> None:
    with working(operator, "resized") as scene:
        scene.in_sync()
        births, starts = scene.births(), restarts(scene)
        assert limits_in_force(scene) == dict.fromkeys(births, BYTES["512Mi"])
        for resources in (MORE, LESS_CPU):
            resize(scene, resources)
            wait("each container has them", partial(all_have, scene, resources), 240)
            scene.settled()
            scene.goes_on()
            assert (scene.births(), restarts(scene)) == (births, starts)
        assert limits_in_force(scene) == dict.fromkeys(births, BYTES["640Mi"])
        events = scene.kube("get", "events")
        assert "Resized" in events, events
        assert "RollingRestart" not in events, events

        # A resize that no node can ever grant becomes a roll, which stops at its first pod. Then the spec is corrected.
        resize(scene, NEVER)
        wait("the first pod was replaced", lambda: len(set(scene.births().values()) - set(births.values())) == 1, 240)
        scene.goes_on()
        resize(scene, SMALL)
        wait("each container has them", partial(all_have, scene, SMALL), 300)
        scene.settled()
        kept = set(scene.births().items()) & set(births.items())
        assert len(kept) == len(births) - 1, (births, scene.births())
        scene.in_sync()


def resize(scene: Scene, resources: dict[str, Any]) -> None:
    """Changes the brokers' resources in the spec."""
    scene.change(brokers={"resources": resources})


def restarts(scene: Scene) -> dict[str, int]:
    """The number of restarts of each broker's container."""
    return {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in scene.brokers().items()}


def all_have(scene: Scene, resources: dict[str, Any]) -> bool:
    """Whether each broker's pod has these resources in its spec and in its status."""
    pods = scene.brokers().values()
    return all(resources == pod["spec"]["containers"][0]["resources"] == had(pod) for pod in pods)


def had(pod: Object) -> Object | None:
    """The resources in the status of a broker's container; None if no node runs the pod yet."""
    statuses = pod["status"].get("containerStatuses")
    return statuses[0].get("resources") if statuses else None


def limits_in_force(scene: Scene) -> dict[str, int]:
    """The memory limit in bytes of each broker's container in the kernel, from cgroups v2 or v1."""
    read = "cd /sys/fs/cgroup && cat memory.max 2>/dev/null || cat memory/memory.limit_in_bytes"
    return {name: int(scene.kube.execute(name, "/bin/sh", "-c", read).strip()) for name in scene.brokers()}
