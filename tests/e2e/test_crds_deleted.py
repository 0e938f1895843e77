"""The CRDs are deleted with all their resources, and created again: no topic is deleted, no record is lost.

Without the CRD of Topics a Cluster keeps running unchanged. The deletion of the CRD of Clusters deletes the brokers'
pods, as the deletion of any Cluster does, and their volumes stay.
"""

from __future__ import annotations

import json

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import BROKERS, TOPIC, Scene, cluster, topic, working

CRDS = ("topics.ottla.dev", "clusters.ottla.dev")
KEPT = [f"kept-{number}" for number in range(12)]


def test_crds_deleted(operator: Operator) -> None:
    with working(operator, "crds") as scene:
        scene.kube.apply(*topics())
        for name in KEPT:
            scene.topic_settled(name)
        ids, before = identities(scene), scene.births()
        assert ids.keys() >= {TOPIC, *KEPT}

        scene.kube.delete("crd", CRDS[0])
        scene.goes_on(500)
        operator.install()
        scene.wait_for("TopicsHeld", seconds=240)
        scene.goes_on(1000)  # longer than the operator waits before it deletes a topic whose resource is gone
        assert identities(scene) == ids
        assert scene.births() == before
        scene.kube.apply(*topics())
        restored(scene)
        scene.wait_for("TopicsHeld", "False")
        assert identities(scene) == ids
        assert scene.births() == before

        with scene.without_brokers():
            for crd in CRDS:
                scene.kube.delete("crd", crd)
            wait("the brokers are gone", lambda: not scene.kube.all("pods", BROKERS), 180)
            operator.install()
            scene.kube.apply(cluster(), *topics())
        restored(scene)
        assert identities(scene) == ids


def restored(scene: Scene) -> None:
    """Waits until the Cluster and its Topics are Ready again."""
    scene.settled()
    for name in (TOPIC, *KEPT):
        scene.topic_settled(name)


def topics() -> list[dict[str, object]]:
    worked = topic(TOPIC, partitions=4, replicationFactor=3, config={"min.insync.replicas": "2"})
    return [worked, *(topic(name, partitions=1) for name in KEPT)]


def identities(scene: Scene) -> dict[str, str]:
    """The topics' ids. A topic that was deleted and created anew would have another id."""
    found = json.loads(scene.ask("topics", "describe", "--json"))
    return {one["name"]: one["topic_id"] for one in found}
