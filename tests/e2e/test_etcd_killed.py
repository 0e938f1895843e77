"""Members of etcd die, one with its volume: producing goes on all the time, and etcd has three members again. The same
holds if members and clients authenticate by certificates."""

from __future__ import annotations

from functools import partial

import pytest

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import ETCD, Scene, cluster, topic, working


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_etcd_killed(operator: Operator, tls: bool) -> None:
    with working(operator, "etcd-killed", cluster(etcd=3, etcd_tls=tls)) as scene:
        members = [pod["metadata"]["name"] for pod in scene.kube.all("pods", ETCD)]
        assert len(members) == 3
        scene.kube.delete("pod", members[0], "--grace-period=0", "--force", "--wait=false")
        scene.goes_on()
        scene.settled()

        pod = scene.kube.get("pod", members[1])
        (volume,) = [
            one["persistentVolumeClaim"]["claimName"]
            for one in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in one
        ]
        before = scene.kube.get("pvc", volume)["metadata"]["uid"]
        scene.kube.delete("pvc", volume, "--wait=false")
        scene.kube.delete("pod", members[1], "--grace-period=0", "--force", "--wait=false")
        wait("another volume", lambda: scene.kube.get("pvc", volume)["metadata"]["uid"] != before)
        scene.goes_on()
        scene.wait_for("MetadataReady", seconds=240)
        scene.kube.apply(topic("afterwards", partitions=1))
        scene.topic_settled("afterwards")


def test_only_member_killed(operator: Operator) -> None:
    """The member comes back at another address with its volume, and all brokers are still registered: no leader is
    elected."""
    with working(operator, "etcd-only-killed", cluster(etcd=1)) as scene:
        (member,) = [pod["metadata"]["name"] for pod in scene.kube.all("pods", ETCD)]
        address = scene.kube.get("pod", member)["status"]["podIP"]
        for _ in range(3):
            before = scene.kube.get("pod", member)["metadata"]["uid"]
            scene.kube.delete("pod", member, "--grace-period=0", "--force", "--wait=false")
            wait("another pod", partial(another, scene, member, before))
            scene.wait_for("MetadataReady", seconds=240)
            scene.goes_on()
        assert scene.kube.get("pod", member)["status"]["podIP"] != address, (
            "the scenario needs a member that comes back at another address"
        )
        scene.settled()
        for broker in scene.brokers():
            log = scene.kube("logs", broker)
            registrations = [line for line in log.splitlines() if "registered with epoch" in line]
            assert len(registrations) == 1, f"{broker} has lost its registration: {registrations}"


def another(scene: Scene, pod: str, before: str) -> bool:
    """Whether the pod of that name has another uid than `before`."""
    return bool(scene.kube.get("pod", pod)["metadata"]["uid"] != before)
