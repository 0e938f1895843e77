"""Pods and a StatefulSet that have the brokers' labels, but don't belong to the Cluster, don't count as its brokers."""

from __future__ import annotations

from typing import Any

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import NAME, Scene, pod, working
from tests.e2e.target import CLIENTS_IMAGE

STRAYS = ("ghost-7", "zz-0")
# The pods are never ready: otherwise the bootstrap Service would select them by their labels and send clients there.
NEVER_READY = {
    "command": ["sleep", "3600"],
    "readinessProbe": {"exec": {"command": ["false"]}},
    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
}


def test_stray_objects(operator: Operator) -> None:
    with working(operator, "strays") as scene:
        scene.in_sync()
        labels = broker_labels(scene)
        before = scene.births()
        scene.kube.apply(*(labelled(pod(name, CLIENTS_IMAGE, **NEVER_READY), labels) for name in STRAYS))
        scene.kube.apply(stray_set(labels))
        wait("its pod is there", lambda: scene.kube.find("pod", "shadow-0"), 60)
        strays = births(scene)
        operator.kill()
        scene.goes_on()
        scene.change(config={"socket.request.max.bytes": "100000000"})
        wait(
            "every broker's pod was replaced",
            lambda: not set(of_the_cluster(scene).values()) & set(before.values()),
            300,
        )
        scene.settled()
        scene.in_sync()
        assert of_the_cluster(scene).keys() == before.keys()
        assert births(scene) == strays, "nobody has touched them"
        assert scene.kube.find("statefulset", "shadow") is not None
        status = scene.cluster()["status"]
        assert status["brokers"]["summary"] == "3/3", status
        assert condition(scene.cluster(), "Ready")["status"] == "True"
        scene.kube.delete("statefulset", "shadow")
        scene.kube.delete("pod", STRAYS[0], STRAYS[1])


def broker_labels(scene: Scene) -> dict[str, str]:
    """The labels of a broker's pod, except those that its StatefulSet adds."""
    labels: dict[str, str] = scene.kube.get("pod", f"{NAME}-broker-0")["metadata"]["labels"]
    own = ("controller-revision-hash", "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index")
    return {key: value for key, value in labels.items() if key not in own}


def labelled(manifest: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    """Gives a pod's manifest these labels, and removes the Cluster's address from its environment."""
    manifest["metadata"]["labels"] = labels
    manifest["spec"]["containers"][0]["env"] = []
    return manifest


def stray_set(labels: dict[str, str]) -> dict[str, Any]:
    """A StatefulSet without an owner, whose first pod would be broker 0."""
    template = labelled(pod("shadow", CLIENTS_IMAGE, **NEVER_READY), labels)
    template["spec"]["restartPolicy"] = "Always"
    mark = {"shadow": "yes"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "shadow", "labels": labels},
        "spec": {
            "replicas": 1,
            "serviceName": "shadow",
            "selector": {"matchLabels": mark},
            "template": {"metadata": {"labels": {**labels, **mark}}, "spec": template["spec"]},
        },
    }


def births(scene: Scene) -> dict[str, str]:
    """The uids of the stray pods, by the pods' names."""
    names = (*STRAYS, "shadow-0")
    return {name: scene.kube.get("pod", name)["metadata"]["uid"] for name in names}


def of_the_cluster(scene: Scene) -> dict[str, str]:
    """The uids of the pods of the Cluster's three brokers, by the pods' names. The stray pods aren't included."""
    return {name: uid for name, uid in scene.births().items() if name.startswith(f"{NAME}-broker-")}
