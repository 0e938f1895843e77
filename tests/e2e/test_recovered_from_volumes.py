"""A Cluster is deleted and applied again, also after its namespace was deleted: it finds its volumes and every record.

The commands are those of docs/kubernetes.md. The Topics are applied together with the Cluster, or when the Cluster has
been Ready for long. The volumes' reclaim policy is Retain.
"""

from __future__ import annotations

import json
import re
import time
from hashlib import sha256
from typing import NamedTuple

from ottla.operator.plan.orphans import SETTLE_S
from tests.crash.workload import GROUP
from tests.e2e.installed import Operator, make_namespace
from tests.e2e.kubectl import KubectlError, condition, wait
from tests.e2e.scene import BROKERS, CLIENTS, NAME, PARTITIONS, TOPIC, Scene, cluster, namespace, topic
from tests.e2e.target import ROOT

PAGE = ROOT / "docs" / "kubernetes.md"


def test_recovered_from_volumes(operator: Operator) -> None:
    with namespace(operator, "volumes") as scene:
        scene.kube.apply(cluster())
        scene.settled()
        scene.start_clients()
        scene.goes_on()
        scene.finish()
        scene.kube.delete("pod", CLIENTS)
        before = contents(scene)
        assert any(before.ends)
        volumes = kept_volumes(scene)
        try:
            scene.kube.delete("clusters.ottla.dev", NAME)
            wait("its brokers are gone", lambda: not scene.kube.all("pods", BROKERS))
            again(scene, before)

            scene.kube.delete("clusters.ottla.dev", NAME)
            wait("its brokers are gone", lambda: not scene.kube.all("pods", BROKERS))
            scene.kube.delete("topics.ottla.dev", TOPIC)
            cluster_before_topics(scene, before)

            scene.kube("delete", "namespace", scene.namespace, seconds=180)
            made_available(scene)
            make_namespace(scene.target, scene.namespace)
            cluster_before_topics(scene, before)
        finally:
            for volume in volumes:
                reclaimed(scene, volume, "Delete")


def again(scene: Scene, before: Contents) -> None:
    """Applies the Cluster and its topic again, and waits until every record can be read again."""
    scene.kube.apply(cluster(), topic(TOPIC, partitions=PARTITIONS, replicationFactor=3))
    scene.settled()
    scene.topic_settled(TOPIC)
    wait("its partitions are led", lambda: contents_or_none(scene) == before, 180)


def cluster_before_topics(scene: Scene, before: Contents) -> None:
    """Applies the Cluster, and its Topic only after the Cluster has been Ready for a while. Until the Topic is applied,
    its topic in Kafka is kept, and waits for a user's decision."""
    scene.kube.apply(cluster())
    scene.settled()
    wait("its topics are held", lambda: held(scene) == "ClusterMadeAnew")
    time.sleep(3 * SETTLE_S)
    assert contents(scene) == before
    again(scene, before)
    wait("no topic waits for a decision any more", lambda: not held(scene))


def held(scene: Scene) -> str:
    """The reason why topics wait for a user's decision; empty if no topic waits."""
    found = condition(scene.cluster(), "TopicsHeld")
    return str(found["reason"]) if found.get("status") == "True" else ""


class Contents(NamedTuple):
    """The content of the clients' topic. Two are equal if no record, offset or commit differs."""

    topic_id: str
    starts: list[int]
    ends: list[int]
    records: str  # a digest of every partition, offset, key and value
    committed: list[tuple[int, int]]  # (partition, offset) of the clients' group


def contents(scene: Scene) -> Contents:
    """Reads the content, in a broker's pod."""
    described = json.loads(ask(scene, "topics", "describe", TOPIC, "--json"))
    (one,) = described if isinstance(described, list) else [described]
    offsets = json.loads(ask(scene, "offsets", TOPIC, "--json"))
    ends = [int(row["end_offset"]) for row in offsets]
    starts = [int(row["start_offset"]) for row in offsets]
    count = sum(ends) - sum(starts)
    how = ("--from-beginning", "--max-messages", str(count), "-f", "%p %o %k %s\\n")
    records = sorted(ask(scene, "consume", TOPIC, *how, seconds=120).splitlines())
    assert len(records) == count
    (group,) = json.loads(ask(scene, "groups", "describe", GROUP, "--json"))
    committed = sorted(
        (row["partition"], row["committed_offset"]) for row in group["partitions"] if row["topic"] == TOPIC
    )
    return Contents(one["topic_id"], starts, ends, sha256("\n".join(records).encode()).hexdigest(), committed)


def contents_or_none(scene: Scene) -> Contents | None:
    """As `contents`; None while not every partition has a leader."""
    try:
        return contents(scene)
    except (KubectlError, AssertionError):
        return None


def ask(scene: Scene, *command: str, seconds: float = 60.0) -> str:
    """Runs the command line in a broker's pod and returns its output."""
    bootstrap = ("--bootstrap", f"{NAME}-bootstrap:9092")
    return scene.kube.execute(f"{NAME}-broker-0", "ottla", *command, *bootstrap, seconds=seconds)


def kept_volumes(scene: Scene) -> list[str]:
    """Sets the reclaim policy of the namespace's volumes to Retain, so that they outlive their claims, and returns
    their names."""
    volumes = [claim["spec"]["volumeName"] for claim in scene.kube.all("pvc")]
    for volume in volumes:
        reclaimed(scene, volume, "Retain")
    return volumes


def reclaimed(scene: Scene, volume: str, policy: str) -> None:
    """Sets the reclaim policy of a volume."""
    scene.kube.patch("pv", volume, {"spec": {"persistentVolumeReclaimPolicy": policy}})


def made_available(scene: Scene) -> None:
    """Runs the loop of docs/kubernetes.md that makes volumes available, for this namespace."""
    (loop,) = re.findall(r"^for volume in .*?^done$", PAGE.read_text(), re.S | re.M)
    scene.target.run("bash", "-ec", loop.replace('"demo"', f'"{scene.namespace}"'))
