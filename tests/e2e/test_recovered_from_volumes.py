"""A Cluster deleted and applied again finds its volumes, as does one whose namespace is gone: every record is there.

By the commands of docs/kubernetes.md, its Topics applied at once or when it has
long been Ready; the volumes' reclaim policy is Retain.
"""

from __future__ import annotations

import re
import time

from ottla.operator.plan.orphans import SETTLE_S
from tests.e2e.installed import Operator, make_namespace
from tests.e2e.kubectl import condition, wait
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
        before = ends(scene)
        assert any(before)
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


def again(scene: Scene, ends_before: list[int]) -> None:
    """Applies what was there, and finds every record."""
    scene.kube.apply(cluster(), topic(TOPIC, partitions=PARTITIONS, replicationFactor=3))
    scene.settled()
    scene.topic_settled(TOPIC)
    wait("its partitions are led", lambda: ends(scene) == ends_before)


def cluster_before_topics(scene: Scene, ends_before: list[int]) -> None:
    """Applies the Cluster, and its Topics when it has been Ready for a while: until then they are held."""
    scene.kube.apply(cluster())
    scene.settled()
    wait("its topics are held", lambda: held(scene) == "ClusterMadeAnew")
    time.sleep(3 * SETTLE_S)
    assert ends(scene) == ends_before
    again(scene, ends_before)
    wait("nothing is held any more", lambda: not held(scene))


def held(scene: Scene) -> str:
    """Why topics wait for a person; nothing where none does."""
    found = condition(scene.cluster(), "TopicsHeld")
    return str(found["reason"]) if found.get("status") == "True" else ""


def ends(scene: Scene) -> list[int]:
    """The partitions' ends."""
    command = ("ottla", "offsets", TOPIC, "--bootstrap", f"{NAME}-bootstrap:9092", "--json")
    return [int(end) for end in re.findall(r'"end_offset": (\d+)', scene.kube.execute(f"{NAME}-broker-0", *command))]


def kept_volumes(scene: Scene) -> list[str]:
    """The volumes of the namespace, which now outlive their claims."""
    volumes = [claim["spec"]["volumeName"] for claim in scene.kube.all("pvc")]
    for volume in volumes:
        reclaimed(scene, volume, "Retain")
    return volumes


def reclaimed(scene: Scene, volume: str, policy: str) -> None:
    """Says what becomes of a volume."""
    scene.kube.patch("pv", volume, {"spec": {"persistentVolumeReclaimPolicy": policy}})


def made_available(scene: Scene) -> None:
    """The page's loop, for this namespace."""
    (loop,) = re.findall(r"^for volume in .*?^done$", PAGE.read_text(), re.S | re.M)
    scene.target.run("bash", "-ec", loop.replace('"demo"', f'"{scene.namespace}"'))
