"""Settings of single brokers: a dynamic setting restarts no broker, and a static one restarts only its broker. The
operator resets both when they are removed, and also resets settings that others give to a broker. No client notices."""

from __future__ import annotations

import json

import pytest

from tests.e2e.installed import Operator
from tests.e2e.kubectl import KubectlError, condition, wait
from tests.e2e.scene import NAME, Scene, working

DYNAMIC, STATIC = "log.retention.ms", "socket.listen.backlog.size"
OF_ALL = {DYNAMIC: "86400000", STATIC: "100"}


def test_config_overrides(operator: Operator) -> None:
    with working(operator, "overrides") as scene:
        scene.in_sync()
        scene.change(config=OF_ALL)
        wait("every broker was started with the new file", lambda: said(scene, STATIC) == ["100"] * 3, 300)
        scene.settled()
        scene.in_sync()

        before = scene.births()
        scene.change(configOverrides=[{"broker": 2, "config": {DYNAMIC: "43200000"}}])
        scene.wait_for("OverridesApplied")
        assert said(scene, DYNAMIC) == ["86400000", "86400000", "43200000"]
        assert scene.births() == before

        overrides = [
            {"broker": 1, "config": {STATIC: "200"}},
            {"broker": 2, "config": {DYNAMIC: "43200000"}},
            {"broker": 7, "config": {STATIC: "300"}},
        ]
        restarted(scene, 1, overrides)
        assert said(scene, STATIC) == ["100", "200", "100"]
        assert said(scene, DYNAMIC) == ["86400000", "86400000", "43200000"]
        wait(
            "the status names the broker that is missing",
            lambda: why(scene) == ("NoSuchBroker", "there is no broker 7"),
            60,
        )
        standing = {each["broker"]: each["applied"] for each in scene.cluster()["status"]["configOverrides"]}
        assert standing == {1: True, 2: True, 7: False}

        for somebody_elses in (f"{DYNAMIC}=1000000", "log.cleaner.threads=2"):
            scene.ask("configs", "alter", "broker", "0", "--set", somebody_elses)
        scene.ask("configs", "alter", "broker", "2", "--set", f"{DYNAMIC}=1000000")
        wait("the setting is reset", lambda: said(scene, DYNAMIC) == ["86400000", "86400000", "43200000"], 90)
        wait("the setting is reset", lambda: said(scene, "log.cleaner.threads") == ["1"] * 3, 90)

        with pytest.raises(KubectlError, match=r"min\.insync\.replicas"):
            scene.change(configOverrides=[{"broker": 0, "config": {"min.insync.replicas": "1"}}])

        restarted(scene, 1, [])
        assert said(scene, STATIC) == ["100"] * 3
        wait("the dynamic setting is reset", lambda: said(scene, DYNAMIC) == ["86400000"] * 3, 60)
        assert not condition(scene.cluster(), "OverridesApplied")


def restarted(scene: Scene, broker: int, overrides: list[dict[str, object]]) -> None:
    """Changes the settings of single brokers, waits until this broker has been restarted for the change, and asserts
    that no other broker was restarted."""
    before = scene.births()
    name = f"{NAME}-broker-{broker}"
    scene.change(configOverrides=overrides)
    wait(f"{name} is another pod", lambda: scene.births().get(name, before[name]) != before[name], 120)
    scene.settled()
    scene.in_sync()
    after = scene.births()
    assert {each for each in after if after[each] != before[each]} == {name}


def said(scene: Scene, setting: str) -> list[str]:
    """A setting's value on each broker."""
    found = []
    for broker in range(3):
        (row,) = json.loads(scene.ask("configs", "describe", "broker", str(broker), "--setting", setting, "--json"))
        found.append(str(row["value"]))
    return found


def why(scene: Scene) -> tuple[str, str]:
    """Reason and message of OverridesApplied. They say why not all settings of single brokers are in force."""
    found = condition(scene.cluster(), "OverridesApplied")
    return str(found.get("reason", "")), str(found.get("message", ""))
