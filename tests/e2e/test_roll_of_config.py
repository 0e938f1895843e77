"""A dynamic setting restarts no broker; a static one restarts every broker once, one by one, and no client notices."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import working


def test_roll_of_config(operator: Operator) -> None:
    with working(operator, "roll") as scene:
        scene.in_sync()
        before = scene.births()
        scene.change(config={"log.retention.ms": "7200000"})
        scene.settled()
        scene.goes_on()
        assert scene.births() == before

        scene.change(config={"log.retention.ms": "7200000", "num.partitions": "2"})
        wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 300)
        scene.settled()
        assert scene.births().keys() == before.keys()
        events = scene.kube("get", "events")
        for name in before:
            assert name in events, events
        scene.in_sync()
