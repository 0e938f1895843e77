"""An invalid spec, and a restart of the operator: the operator keeps following the last valid spec."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import NAME, Scene, working

INSIDE = {"name": "plain", "port": 9092, "type": "Internal"}
# The CRD can't refuse this spec: the third broker's port would be above 65535.
TOO_HIGH = {"name": "shared", "port": 9094, "type": "LoadBalancer", "brokerPorts": {"first": 65534}}
SERVICE = f"{NAME}-bootstrap"
BUDGET = f"{NAME}-brokers"


def test_invalid_spec(operator: Operator) -> None:
    with working(operator, "invalid-spec") as scene:
        scene.in_sync()
        before = scene.births()
        budget = uid_of(scene, "poddisruptionbudget", BUDGET)
        scene.change(listeners=[INSIDE, TOO_HIGH])
        wait("the mistake is told", lambda: reason(scene) == "InvalidSpec", 60)
        assert "65534" in scene.says() or "65536" in scene.says(), scene.says()
        operator.kill()
        wait("the operator is back", operator.pods, 120)

        service = uid_of(scene, "service", SERVICE)
        scene.kube.delete("service", SERVICE)
        scene.kube.delete("poddisruptionbudget", BUDGET)
        scene.kube.delete("pod", f"{NAME}-broker-1", "--wait=false")
        wait("the Service is made again", lambda: uid_of(scene, "service", SERVICE) not in ("", service), 120)
        wait(
            "the budget is made again",
            lambda: uid_of(scene, "poddisruptionbudget", BUDGET) not in ("", budget),
            120,
        )
        wait("the broker is back", lambda: scene.cluster()["status"]["brokers"]["summary"] == "3/3", 120)
        scene.in_sync()
        scene.goes_on()
        assert reason(scene) == "InvalidSpec", "the status still reports the invalid spec"
        after = scene.births()
        changed = {name for name, uid in after.items() if uid != before[name]}
        assert changed == {f"{NAME}-broker-1"}, "nobody else was restarted"
        scene.change(listeners=[INSIDE])


def reason(scene: Scene) -> str:
    """The reason of the Cluster's condition Ready."""
    return str(condition(scene.cluster(), "Ready").get("reason", ""))


def uid_of(scene: Scene, kind: str, name: str) -> str:
    """An object's uid; empty while it doesn't exist."""
    found = scene.kube.find(kind, name)
    return "" if found is None else str(found["metadata"]["uid"])
