"""A broker's pod is killed, and later its pod and volume are deleted: Kubernetes and the operator create them again,
and the replicas are restored."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import working

LOST = "ottla-broker-1"


def test_broker_lost(operator: Operator) -> None:
    with working(operator, "broker-lost") as scene:
        scene.in_sync()
        scene.kube.delete("pod", LOST, "--grace-period=0", "--force", "--wait=false")
        scene.goes_on()
        scene.in_sync()

        (volume,) = [
            one["persistentVolumeClaim"]["claimName"]
            for one in scene.brokers()[LOST]["spec"]["volumes"]
            if "persistentVolumeClaim" in one
        ]
        before = scene.kube.get("pvc", volume)["metadata"]["uid"]
        scene.kube.delete("pvc", volume, "--wait=false")
        scene.kube.delete("pod", LOST, "--grace-period=0", "--force", "--wait=false")
        wait("another volume", lambda: scene.kube.get("pvc", volume)["metadata"]["uid"] != before)
        scene.settled()
        scene.in_sync()
