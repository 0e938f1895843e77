"""A roll with pools in racks and with controllers in pods of their own: etcd is restarted first, then the controllers,
then the brokers, several of one rack at the same time, and never brokers of two racks.

The pools name the racks, so one node can have several.
"""

from __future__ import annotations

from typing import Any

from ottla.operator.brokers import DECIDES
from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import NAME, SMALL, Scene, cluster, working

OTHER = {"requests": {"cpu": "55m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
CONTROLLERS = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=controller"
COMPONENT = "app.kubernetes.io/component"
KINDS = ("etcd", "controller", "broker")
RACKS = {"a": 3, "b": 1, "c": 1}


def racks_and_controllers() -> dict[str, Any]:
    """Three brokers in one rack, and one broker in each of two more racks."""
    pools = [
        {"name": rack, "firstId": 100 * number, "replicas": replicas, "rack": rack}
        for number, (rack, replicas) in enumerate(RACKS.items())
    ]
    brokers = {"pools": pools, "storage": {"size": "1Gi"}, "resources": SMALL}
    made = cluster(controllers={"replicas": 2, "resources": SMALL}, rolling={"maxUnavailable": 2})
    made["spec"]["brokers"] = brokers
    return made


def test_roll_by_racks(operator: Operator) -> None:
    with working(operator, "racks", racks_and_controllers()) as scene:
        scene.in_sync()
        before = uids(pods(scene))
        assert len(before) == 1 + 2 + sum(RACKS.values())
        scene.change(
            config={"num.partitions": "2"}, metadata={"etcd": {"resources": OTHER}}, controllers={"resources": OTHER}
        )
        wait("etcd is another pod", lambda: births_of(scene, "etcd") - set(before.values()), 120, 0.2)
        decides = wait("a controller decides", lambda: active_controller(scene), 60, 0.2)
        away: set[frozenset[str]] = set()

        def all_are_others() -> bool:
            now = pods(scene)
            away.add(frozenset(before.keys() - now.keys() | {name for name, pod in now.items() if not serves(pod)}))
            return now.keys() == before.keys() and not set(uids(now).values()) & set(before.values())

        wait("every pod was replaced", all_are_others, 400, 0.2)
        scene.settled()
        scene.in_sync()
        assert sorted(scene.told_restarts()) == sorted(before), "each pod was restarted once"

        made = sorted(pods(scene).values(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        order = [pod["metadata"]["labels"][COMPONENT] for pod in made]
        assert order == ["etcd"] + ["controller"] * 2 + ["broker"] * sum(RACKS.values())
        assert made[2]["metadata"]["name"] == decides, "the controller that decided is the last one"
        together = sorted(map(sorted, (names for names in away if len(names) > 1)))
        print(f"away at once: {together}")
        assert together, "no two brokers were away at the same time"
        for names in together:
            assert {name.rpartition("-")[0] for name in names} == {f"{NAME}-a"}, together
            assert len(names) <= 2, together


def pods(scene: Scene) -> dict[str, dict[str, Any]]:
    """All pods of the Cluster by their names, at one moment."""
    found = scene.kube.all("pods", f"app.kubernetes.io/instance={NAME}")
    return {pod["metadata"]["name"]: pod for pod in found if pod["metadata"]["labels"].get(COMPONENT) in KINDS}


def uids(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The uids of pods, by their names."""
    return {name: pod["metadata"]["uid"] for name, pod in found.items()}


def births_of(scene: Scene, component: str) -> set[str]:
    """The uids of a component's pods that serve."""
    found = pods(scene).values()
    return {
        pod["metadata"]["uid"] for pod in found if pod["metadata"]["labels"][COMPONENT] == component and serves(pod)
    }


def serves(pod: dict[str, Any]) -> bool:
    """Whether the pod is ready and isn't being deleted."""
    return "deletionTimestamp" not in pod["metadata"] and condition(pod, "Ready").get("status") == "True"


def active_controller(scene: Scene) -> str:
    """The pod of the active controller; empty while there is none."""
    for pod in scene.kube.all("pods", CONTROLLERS):
        if scene.page_at(pod, pod["status"]["podIP"], "/readyz").startswith(DECIDES):
            return str(pod["metadata"]["name"])
    return ""
