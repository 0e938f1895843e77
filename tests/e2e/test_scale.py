"""3 → 4 → 3 → 4 brokers: the fourth broker gets replicas, is drained before its removal, and comes back on its old
volume."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import TOPIC, working


def test_scale(operator: Operator) -> None:
    with working(operator, "scale") as scene:
        for brokers in (4, 3, 4):
            scene.change(brokers={"replicas": brokers}, scaling={"rebalance": "Balance"})
            scene.settled(420)
            assert len(scene.brokers()) == brokers
            assert (3 in scene.holders()) == (brokers == 4)
            scene.goes_on()
        scene.change(brokers={"replicas": 2})
        wait("the status says why the Cluster can't scale down", lambda: "scaling down waits" in scene.says(), 60)
        assert TOPIC in scene.says()
        assert len(scene.brokers()) == 4
        scene.change(brokers={"replicas": 4})
