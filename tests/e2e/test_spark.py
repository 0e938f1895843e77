"""The unchanged files of `examples/spark`: batch jobs in cluster mode and in client mode, and a stream whose driver is
deleted, and which goes on from its checkpoint."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import Scene, pod, working
from tests.e2e.target import CLIENTS_IMAGE, ROOT

EXAMPLES = ROOT / "examples" / "spark"
ORDERS = 1000
CUSTOMERS = 20


@pytest.mark.usefixtures("spark_image")
def test_spark(operator: Operator) -> None:
    with working(operator, "spark") as scene:
        scene.kube.apply(*(EXAMPLES / name for name in ("topics.yaml", "rbac.yaml", "pods.yaml")))
        scene.topic_settled("orders")
        scene.topic_settled("orders-counts")
        scene.kube.apply(EXAMPLES / "produce.yaml")
        completed(scene, "produce-orders", 120)

        scene.kube.apply(EXAMPLES / "batch-cluster-mode.yaml")
        completed(scene, "orders-table")
        assert f"{CUSTOMERS} keys" in scene.kube("logs", "--selector=spark-role=driver", "--tail=-1")
        assert executors(scene, "ottla-compact-table")

        scene.kube.apply(EXAMPLES / "batch-client-mode.yaml")
        completed(scene, "orders-files")
        assert lines_written(scene) == ORDERS
        assert executors(scene, "ottla-sink")

        scene.kube.apply(EXAMPLES / "streaming.yaml")
        wait("all orders are counted", lambda: counted(scene) == ORDERS, 300, 5.0)
        assert executors(scene, "ottla-window-counts")
        scene.kube.delete("pod", "orders-counts-0")
        scene.kube.delete("job", "produce-orders")
        scene.kube.apply(EXAMPLES / "produce.yaml")
        wait("the later orders are counted, too, and none twice", lambda: counted(scene) == 2 * ORDERS, 300, 5.0)


def completed(scene: Scene, job: str, seconds: float = 300.0) -> None:
    """Waits until a Job has succeeded. Raises AssertionError as soon as it has failed."""

    def ended() -> str:
        status = scene.kube.get("job", job)["status"]
        return "succeeded" if status.get("succeeded") else "failed" if status.get("failed") else ""

    how = wait(f"the Job {job} ends", ended, seconds, 2.0)
    assert how == "succeeded", scene.kube("logs", f"job/{job}", "--tail=60")


def executors(scene: Scene, application: str) -> set[str]:
    """The names of the executors' pods so far; empty if the driver didn't find Kubernetes and did the work itself."""
    events = json.loads(scene.kube("get", "events", "-o", "json"))["items"]
    names = {event["involvedObject"]["name"] for event in events if event["involvedObject"]["kind"] == "Pod"}
    return {name for name in names if name.startswith(application) and "-exec-" in name}


def lines_written(scene: Scene) -> int:
    """The number of lines of JSON on the volume of the job in client mode."""
    reader = pod("reader", CLIENTS_IMAGE, command=["sh", "-c", "cat /files/orders/date=*/*.json | wc -l"])
    reader["spec"]["securityContext"]["fsGroup"] = 10001
    reader["spec"]["volumes"].append({"name": "files", "persistentVolumeClaim": {"claimName": "orders-files"}})
    reader["spec"]["containers"][0]["volumeMounts"].append({"name": "files", "mountPath": "/files"})
    scene.kube.apply(reader)
    wait("the reader ends", lambda: scene.kube.get("pod", "reader")["status"]["phase"] in ("Succeeded", "Failed"))
    return int(scene.kube("logs", "reader"))


def counted(scene: Scene) -> int:
    """The sum of the counts in the compacted topic, over all windows and customers."""
    text = scene.ask("consume", "orders-counts", "--from-beginning", "--until-end", "--json")
    latest = Counter[str]()
    for line in text.splitlines():
        record = json.loads(line)
        latest[record["key"]] = json.loads(record["value"])["count"]
    return latest.total()
