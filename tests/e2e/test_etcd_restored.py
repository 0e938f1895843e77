"""The metadata is restored by the commands of docs/kubernetes.md from a backup that is older than elections, a topic
and records: no record is lost, and the topic that isn't in the backup is set aside, not deleted."""

from __future__ import annotations

import json
import re

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import BROKERS, NAME, Scene, topic, working
from tests.e2e.target import ROOT

CONFIG = ("--config", "/etc/ottla/server.properties")
EXAMPLE = ROOT / "manifests" / "examples" / "restore.yaml"


def test_etcd_restored(operator: Operator) -> None:
    with working(operator, "restored") as scene:
        scene.in_sync()
        backup = taken(scene)
        scene.kube.apply(topic("since", partitions=1))
        scene.topic_settled("since")
        since = identity(scene, "since")
        assert since
        scene.kube.delete("pod", f"{NAME}-broker-0", "--grace-period=0", "--force", "--wait=false")
        scene.goes_on(500)
        scene.in_sync()

        scene.change(paused=True)
        scene.kube("scale", "statefulset", f"{NAME}-broker", "--replicas=0")
        wait("the brokers have stopped", lambda: not scene.kube.all("pods", BROKERS), 300)
        restored(scene, backup)
        scene.change(paused=False)
        scene.settled()
        scene.goes_on(200, 180)
        scene.in_sync()
        # The resource still exists, so the topic is created anew.
        wait("another topic", lambda: identity(scene, "since") not in ("", since))
        folders = "".join(scene.kube.execute(name, "ls", "/data/0/log") for name in scene.brokers())
        assert re.search(r"^since-0\.\w+-stray$", folders, re.M), folders


def identity(scene: Scene, name: str) -> str:
    """The topic's id; empty if there is no such topic."""
    found = json.loads(scene.ask("topics", "describe", "--json"))
    return next((one["topic_id"] for one in found if one["name"] == name), "")


def taken(scene: Scene) -> str:
    """Takes a backup of the metadata, and returns its text."""
    scene.kube.execute(f"{NAME}-broker-1", "ottla", "metadata", "backup", "/tmp/backup", *CONFIG)
    return scene.kube.execute(f"{NAME}-broker-1", "cat", "/tmp/backup")


def restored(scene: Scene, backup: str) -> None:
    """Restores the backup into the store, by the pod of manifests/examples/restore.yaml."""
    scene.kube("apply", "-f", "-", stdin=EXAMPLE.read_text().replace("flights", NAME))
    pod = f"{NAME}-restore"
    scene.kube("wait", f"pod/{pod}", "--for=condition=Ready", "--timeout=2m", seconds=130)
    scene.kube("exec", "--stdin", pod, "--", "sh", "-c", "cat > /tmp/backup", stdin=backup)
    scene.kube.execute(pod, "ottla", "metadata", "restore", "/tmp/backup", *CONFIG, "--replace", seconds=120)
    scene.kube.delete("pod", pod)
