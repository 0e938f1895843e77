"""`kubectl ottla` works on a machine that can't resolve the cluster's names, also while pods are restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import Scene, working

TOPIC = "through-the-plug-in"


def test_kubectl_plugin(operator: Operator) -> None:
    with working(operator, "plugin") as scene:
        ask(scene, "topics", "create", TOPIC, "--partitions", "6", "--replication-factor", "3")
        (described,) = json.loads(ask(scene, "topics", "describe", TOPIC, "--json"))
        assert len({partition["leader"] for partition in described["partitions"]}) == 3, "a broker leads no partition"
        ask(scene, "produce", TOPIC, given="".join(f"{number}\n" for number in range(600)))
        read = ask(scene, "consume", TOPIC, "--group", "readers", "--from-beginning", "--max-messages", "600")
        assert sorted(map(int, read.split())) == list(range(600))
        (group,) = json.loads(ask(scene, "groups", "describe", "readers", "--json"))
        assert group["lag"] == 0
        goes_on_while_pods_are_restarted(scene)


def goes_on_while_pods_are_restarted(scene: Scene) -> None:
    """One consumer reads while the brokers' pods are deleted one by one, and reads the records that follow each
    deletion."""
    consumer = started(scene, "consume", TOPIC, "--idle", "600")
    try:
        for number, pod in enumerate(sorted(scene.brokers())):
            made_again(scene, pod)
            written = f"after-{number}"
            # Six records without keys: whatever their partitions are, the consumer has to read them.
            ask(scene, "produce", TOPIC, given=f"{written}\n" * 6)
            assert consumer.stdout is not None
            assert [consumer.stdout.readline().strip() for _ in range(6)] == [written] * 6
    finally:
        consumer.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            consumer.wait(30)
        consumer.kill()


def made_again(scene: Scene, pod: str) -> None:
    """Deletes a pod, and waits until its successor serves."""
    before = scene.births()[pod]
    scene.kube.delete("pod", pod)
    wait(f"{pod} is another one", lambda: scene.births().get(pod, before) != before)
    scene.settled()


def ask(scene: Scene, *words: str, given: str = "") -> str:
    """Runs the plug-in and returns its output."""
    process = started(scene, *words)
    out, err = process.communicate(given, timeout=120)
    assert process.returncode == 0, err
    return out


def started(scene: Scene, *words: str) -> subprocess.Popen[str]:
    """Starts the plug-in as kubectl does."""
    return subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.kubectl_plugin", "--namespace", scene.namespace, *words],
        env={**os.environ, **scene.target.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
