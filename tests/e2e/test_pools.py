"""A Cluster with a pool for each broker: one pool is removed, and a new pool gets its broker id while the old broker is
still being drained. The new pool's broker starts only when the old broker is gone."""

from __future__ import annotations

from typing import Any

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import NAME, SMALL, Scene, cluster, working

IDS = {"a": 0, "b": 1, "c": 2, "d": 7}


def pools(ids: dict[str, int]) -> dict[str, Any]:
    """The spec's `brokers`, with one pool for each broker."""
    each = [{"name": name, "firstId": broker, "replicas": 1} for name, broker in ids.items()]
    return {"pools": each, "storage": {"size": "1Gi"}, "resources": SMALL}


def test_pools(operator: Operator) -> None:
    made = cluster(scaling={"rebalance": "Balance"})
    made["spec"]["brokers"] = pools(IDS)
    with working(operator, "pools", made) as scene:
        assert names(scene) == {f"{NAME}-{name}-{broker}" for name, broker in IDS.items()}
        seen = {name for name in names(scene) if name.endswith("-1")}
        without = {name: broker for name, broker in IDS.items() if name != "b"}
        scene.change(brokers=pools(without))
        scene.change(brokers=pools({**without, "other": 1}))
        waits = f"the pool other waits until broker 1 of {NAME}-b is gone"
        wait("the new pool waits", lambda: waits in scene.says(), 60, 0.2)

        def other_is_there() -> bool:
            now = {name for name in names(scene) if name.endswith("-1")}
            assert len(now) <= 1, f"two brokers of one id: {now}"
            seen.update(now)
            return f"{NAME}-other-1" in now

        wait("the new pool's broker is there", other_is_there, 300, 0.2)
        assert seen == {f"{NAME}-b-1", f"{NAME}-other-1"}
        scene.settled(420)
        wait("it has its share", lambda: 1 in scene.holders(), 120)
        scene.goes_on()


def names(scene: Scene) -> set[str]:
    """The names of the brokers' pods."""
    return set(scene.brokers())
