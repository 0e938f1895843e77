"""A node port that is in use, and a quota: each stops only its own part of a Cluster, and is reported until it is
resolved.

Meanwhile the budget for evictions follows the brokers' reports, and a second Cluster, whose node ports the first one
has, gets its etcd and its brokers.
"""

from __future__ import annotations

from typing import Any

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import NAME, Scene, cluster, working
from tests.e2e.test_roll_blocked import no_room_for_pods

FIRST = 31700
TAKEN = FIRST + 1  # the second broker's node port
INSIDE = {"name": "plain", "port": 9092, "type": "Internal"}
OUTSIDE = {"name": "outside", "port": 9094, "type": "NodePort", "nodePorts": {"first": FIRST}}
SOMEBODY_ELSES = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "somebody-elses"},
    "spec": {"type": "NodePort", "selector": {"app": "none"}, "ports": [{"port": 80, "nodePort": TAKEN}]},
}
NO_CRON_JOBS = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-cron-jobs"},
    "spec": {"hard": {"count/cronjobs.batch": "0"}},
}
SECOND = "second"


def test_refused_object(operator: Operator) -> None:
    with working(operator, "refused") as scene:
        scene.in_sync()
        scene.kube.apply(SOMEBODY_ELSES, NO_CRON_JOBS)
        before = scene.births()
        scene.change(
            listeners=[INSIDE, OUTSIDE],
            metadata={"etcd": {"snapshots": {"schedule": "0 * * * *"}}},
        )
        scene.wait_for("ExternalServicesReconciled", "False", 60)
        wait("the port is named", lambda: str(TAKEN) in why(scene, "ExternalServices"), 30)
        wait("the quota is named", lambda: "no-cron-jobs" in why(scene, "Snapshots"), 60)
        wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 300)
        scene.goes_on()
        scene.in_sync()
        services = {item["metadata"]["name"] for item in scene.kube.all("services")}
        assert {"ottla-broker-0-outside", "ottla-broker-2-outside"} <= services
        assert condition(scene.cluster(), "Ready")["reason"] == "InvalidObject"
        the_budget_follows_the_brokers(scene)
        a_second_cluster_is_made(scene)
        scene.kube.delete("pod", "ottla-etcd-0", "--wait=false")
        wait(
            "etcd's objects are repaired all the same",
            lambda: condition(scene.cluster(), "MetadataReady")["status"] == "True",
            180,
        )
        events = scene.kube.all("events")
        warned = {item["reason"] for item in events if item["type"] == "Warning"}
        assert {"ExternalServicesFailed", "SnapshotsFailed"} <= warned
        scene.kube.delete("service", "somebody-elses")
        scene.kube.delete("resourcequota", "no-cron-jobs")
        wait("both conditions are gone", lambda: not why(scene, "ExternalServices") + why(scene, "Snapshots"), 120)
        scene.settled()


def the_budget_follows_the_brokers(scene: Scene) -> None:
    """While a broker is away, the others report that the stop of one more would leave partitions with too few in-sync
    replicas. So the PodDisruptionBudget allows no eviction."""
    away = f"{NAME}-broker-2"
    wait("a broker may be evicted", lambda: allowed(scene) == 1, 120)
    with no_room_for_pods(scene):
        scene.kube.delete("pod", away, "--wait=false")
        wait("a broker says so", lambda: "below_min_isr" in scene.page(f"{NAME}-broker-0", "/v1/restart-risk"), 60, 1.0)
        wait("none may be evicted", lambda: allowed(scene) == 0, 60)
        assert why(scene, "ExternalServices"), "the status doesn't report the node port in use any more"
    scene.in_sync()
    wait("a broker may be evicted again", lambda: allowed(scene) == 1, 120)


def a_second_cluster_is_made(scene: Scene) -> None:
    """The second Cluster gets its etcd and its brokers, although its node ports are those of the first Cluster."""
    second = cluster(brokers=1, listeners=[INSIDE, OUTSIDE])
    second["metadata"]["name"] = SECOND
    scene.kube.apply(second)
    wait("the port is refused", lambda: str(FIRST) in why(scene, "ExternalServices", SECOND), 60)
    wait("it has its etcd", lambda: condition(found(scene, SECOND), "MetadataReady").get("status") == "True", 180)
    wait("its broker serves", lambda: found(scene, SECOND)["status"].get("brokers", {}).get("ready") == 1, 180)
    assert why(scene, "ExternalServices", SECOND), "the status doesn't report the node port in use any more"
    scene.kube.delete("clusters.ottla.dev", SECOND)


def allowed(scene: Scene) -> int:
    """The `maxUnavailable` of the brokers' PodDisruptionBudget."""
    return int(scene.kube.get("poddisruptionbudget", f"{NAME}-brokers")["spec"]["maxUnavailable"])


def found(scene: Scene, name: str) -> dict[str, Any]:
    """The Cluster of that name."""
    return scene.kube.get("clusters.ottla.dev", name)


def why(scene: Scene, part: str, name: str = NAME) -> str:
    """The error in the Cluster's status because of which a part of the reconcile failed; empty if there is none."""
    return str(condition(found(scene, name), f"{part}Reconciled").get("message", ""))
