"""A node port that somebody else has, and a quota: each stops its own part of a Cluster, is told, and is mended."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import Scene, working

FIRST = 31700
TAKEN = FIRST + 1  # what the second broker is to have
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


def test_refused_object(operator: Operator) -> None:
    with working(operator, "refused") as scene:
        scene.in_sync()
        scene.kube.apply(SOMEBODY_ELSES, NO_CRON_JOBS)
        before = scene.births()
        scene.change(
            listeners=[{"name": "plain", "port": 9092, "type": "Internal"}, OUTSIDE],
            metadata={"etcd": {"snapshots": {"schedule": "0 * * * *"}}},
        )
        scene.wait_for("ExternalServicesReconciled", "False", 60)
        wait("the port is named", lambda: str(TAKEN) in why(scene, "ExternalServices"), 30)
        wait("the quota is named", lambda: "no-cron-jobs" in why(scene, "Snapshots"), 60)
        wait("every broker is another pod", lambda: not set(scene.births().values()) & set(before.values()), 300)
        scene.goes_on()
        scene.in_sync()
        services = {item["metadata"]["name"] for item in scene.kube.all("services")}
        assert {"ottla-broker-0-outside", "ottla-broker-2-outside"} <= services
        assert condition(scene.cluster(), "Ready")["reason"] == "NotApplied"
        scene.kube.delete("pod", "ottla-etcd-0", "--wait=false")
        wait(
            "etcd is mended all the same", lambda: condition(scene.cluster(), "MetadataReady")["status"] == "True", 180
        )
        events = scene.kube.all("events")
        warned = {item["reason"] for item in events if item["type"] == "Warning"}
        assert {"ExternalServicesFailed", "SnapshotsFailed"} <= warned
        scene.kube.delete("service", "somebody-elses")
        scene.kube.delete("resourcequota", "no-cron-jobs")
        wait("both conditions are gone", lambda: not why(scene, "ExternalServices") + why(scene, "Snapshots"), 120)
        scene.settled()


def why(scene: Scene, part: str) -> str:
    """What keeps a part of the Cluster from being done."""
    return str(condition(scene.cluster(), f"{part}Reconciled").get("message", ""))
