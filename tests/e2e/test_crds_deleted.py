"""The CRDs are deleted with all their resources, and come back: no topic is deleted, no record is lost."""

from __future__ import annotations

import json

from tests.e2e.installed import Operator
from tests.e2e.scene import TOPIC, cluster, topic, working

CRDS = ("topics.ottla.dev", "clusters.ottla.dev")


def test_crds_deleted(operator: Operator) -> None:
    with working(operator, "crds") as scene:
        scene.kube.apply(*(topic(f"kept-{number}", partitions=1) for number in range(12)))
        for number in range(12):
            scene.topic_settled(f"kept-{number}")
        before = scene.births()
        for crd in CRDS:
            scene.kube.delete("crd", crd)
        scene.goes_on(1000)  # the operator sees nothing but their absence
        assert scene.births() == before
        operator.install()
        scene.kube.apply(cluster())
        scene.kube.apply(topic(TOPIC, partitions=4, replicationFactor=3, config={"min.insync.replicas": "2"}))
        scene.kube.apply(*(topic(f"kept-{number}", partitions=1) for number in range(12)))
        scene.settled()
        names = {one["name"] for one in json.loads(scene.ask("topics", "list", "--json"))}
        assert {f"kept-{number}" for number in range(12)} <= names
        assert scene.births() == before
