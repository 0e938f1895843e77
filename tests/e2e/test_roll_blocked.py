"""While a replica is missing, no broker is restarted whose stop would break a partition, and the Cluster's status says
why the roll waits. When the replica is back, the roll goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import Scene, working


def test_roll_blocked(operator: Operator) -> None:
    with working(operator, "blocked") as scene:
        scene.in_sync()
        before = scene.births()
        away = "ottla-broker-2"
        with no_room_for_pods(scene):
            scene.kube.delete("pod", away, "--wait=false")
            wait("the broker is gone", lambda: scene.births().get(away) != before[away])
            scene.change(config={"num.partitions": "2"})
            wait("the status says why the roll waits", lambda: "waiting" in scene.says().lower(), 60)
            said = scene.says()
            began = time.monotonic()
            while time.monotonic() - began < 20:
                now = scene.births()
                assert {name: now.get(name) for name in before if name != away} == {
                    name: uid for name, uid in before.items() if name != away
                }
                time.sleep(1)
            scene.goes_on()
            assert any(word in said for word in ("partition", away)), said
        wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 300)
        scene.settled()
        scene.in_sync()


@contextmanager
def no_room_for_pods(scene: Scene) -> Iterator[None]:
    """A context in which new pods stay Pending."""
    nodes = [node["metadata"]["name"] for node in scene.kube.all("nodes")]
    for node in nodes:
        scene.kube("cordon", node)
    try:
        yield
    finally:
        for node in nodes:
            scene.kube("uncordon", node)
