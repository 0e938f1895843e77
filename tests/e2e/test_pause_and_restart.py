"""An annotation restarts all brokers. While the Cluster is paused, all changes are held back; they are applied after
the pause."""

from __future__ import annotations

import time
from collections import Counter

from ottla.operator.spec.cluster import RESTART
from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import NAME, Scene, working

BUDGET = f"{NAME}-brokers"
HELD_BACK_S = 40.0  # longer than the time between two reconciles


def test_pause_and_restart(operator: Operator) -> None:
    with working(operator, "pause") as scene:
        scene.in_sync()
        before = scene.births()
        scene.kube("annotate", "clusters.ottla.dev", NAME, f"{RESTART}=today")
        wait("every broker's pod was replaced", lambda: others(scene, before) == before.keys(), 300)
        scene.settled()
        scene.in_sync()
        assert Counter(scene.told_restarts()) == dict.fromkeys(before, 1)

        before = scene.births()
        scene.change(paused=True)
        scene.wait_for("Paused")
        scene.change(config={"num.partitions": "2"})
        scene.kube("annotate", "pod", f"{NAME}-broker-1", f"{RESTART}=tomorrow")
        scene.kube.delete("poddisruptionbudget", BUDGET)
        wait("the status counts the pods that wait", lambda: rolling(scene) == ("False", "SpecPaused"), 60)
        began = time.monotonic()
        while time.monotonic() - began < HELD_BACK_S:
            assert scene.births() == before
            assert scene.kube.find("poddisruptionbudget", BUDGET) is None
            time.sleep(1)
        scene.goes_on()
        scene.change(paused=False)
        wait("every broker's pod was replaced", lambda: others(scene, before) == before.keys(), 300)
        scene.settled()
        assert scene.kube.find("poddisruptionbudget", BUDGET) is not None
        assert Counter(scene.told_restarts()) == dict.fromkeys(before, 2)
        assert condition(scene.cluster(), "Paused").get("status", "False") == "False"
        scene.in_sync()


def others(scene: Scene, before: dict[str, str]) -> set[str]:
    """The names of the pods that were replaced."""
    now = scene.births()
    return {name for name in before if now.get(name, before[name]) != before[name]}


def rolling(scene: Scene) -> tuple[str, str]:
    """Status and reason of the condition Rolling."""
    found = condition(scene.cluster(), "Rolling")
    return str(found.get("status")), str(found.get("reason"))
