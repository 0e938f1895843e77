"""Brokers get a second volume, all replicas move there while clients work, and then all move back.

The scenario checks that a removed volume is empty. If volumes are deleted, records with only one replica prove that no
volume was deleted too early.
"""

from __future__ import annotations

import json

from ottla.operator.plan.storage import claims_of
from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import BROKERS, CLIENTS, Scene, cluster, pod, topic, working
from tests.e2e.target import CLIENTS_IMAGE

ALONE = "alone"  # each of its partitions has a single replica
RECORDS = 600
OLD, NEW = {"id": 0, "size": "1Gi"}, {"id": 1, "size": "1Gi"}
# A moved replica's old directory is deleted a minute later, or never if the broker stops before.
_LOGS = """
import os
for folder, _, names in os.walk("/volume"):
    if not folder.endswith("-delete") and any(name.endswith(".log") for name in names):
        print(folder)
"""


def test_volumes(operator: Operator) -> None:
    with working(operator, "brokers-volumes", cluster()) as scene:
        scene.kube.apply(topic(ALONE, partitions=6, replicationFactor=1))
        scene.topic_settled(ALONE)
        written = "".join(f"{number}\n" for number in range(RECORDS))
        scene.kube("exec", "-i", CLIENTS, "--", "ottla", "produce", ALONE, stdin=written)
        assert replicas(scene, 1) == {}

        scene.change(brokers={"storage": {"size": None, "volumes": [OLD, NEW]}})
        wait("every broker has both volumes", lambda: mounted(scene) == [(0, 1)] * 3, 400)
        scene.settled()
        scene.in_sync()
        assert claims(scene) == {(broker, volume) for broker in range(3) for volume in (0, 1)}
        scene.kube.apply(topic("afterwards", partitions=6, replicationFactor=3))
        scene.topic_settled("afterwards")
        assert replicas(scene, 1)["afterwards"] == 18, "new replicas go to the volume with the fewest"

        the_other_one(scene, [NEW], goes=0, stays=1)
        assert claims(scene) == {(broker, volume) for broker in range(3) for volume in (0, 1)}, "they are retained"
        for broker in range(3):
            assert logs_on(scene, f"data-0-ottla-broker-{broker}") == []

        scene.change(brokers={"storage": {"onDelete": "Delete"}})
        wait(
            "the claims of the emptied volume are deleted",
            lambda: claims(scene) == {(broker, 1) for broker in range(3)},
        )
        the_other_one(scene, [OLD], goes=1, stays=0)
        wait(
            "the claims of the emptied volume are deleted",
            lambda: claims(scene) == {(broker, 0) for broker in range(3)},
        )
        scene.settled()
        scene.in_sync()
        read = scene.ask("consume", ALONE, "--from-beginning", "--until-end")
        assert sorted(map(int, read.split())) == list(range(RECORDS))


def the_other_one(scene: Scene, volumes: list[dict[str, object]], *, goes: int, stays: int) -> None:
    """Changes the spec, and waits until the replicas on one volume have moved to the other volume, which is then the
    pods' only volume."""
    before = {**replicas(scene, goes)}
    for name, count in replicas(scene, stays).items():
        before[name] = before.get(name, 0) + count
    scene.change(brokers={"storage": {"volumes": volumes}})
    wait("the status says that a volume is being emptied", lambda: storage(scene) == "Emptying", 400)
    wait(f"every broker has the volume {stays} alone", lambda: mounted(scene) == [(stays,)] * 3, 600)
    scene.settled()
    scene.in_sync()
    assert storage(scene) == "AsWanted"
    assert replicas(scene, goes) == {}
    assert replicas(scene, stays) == before
    scene.goes_on()


def storage(scene: Scene) -> str:
    """The reason of the condition StorageReady."""
    return str(condition(scene.cluster(), "StorageReady").get("reason", ""))


def mounted(scene: Scene) -> list[tuple[int, ...]]:
    """The volumes that each broker's pod has."""
    return [tuple(sorted(int(claim.split("-")[1]) for claim in claims_of(one))) for one in scene.brokers().values()]


def claims(scene: Scene) -> set[tuple[int, int]]:
    """(broker, volume) of each claim."""
    found = (claim["metadata"]["name"].split("-") for claim in scene.kube.all("pvc", BROKERS))
    return {(int(name[-1]), int(name[1])) for name in found}


def replicas(scene: Scene, volume: int) -> dict[str, int]:
    """The number of replicas of each topic on the volumes with this id."""
    found: dict[str, int] = {}
    for directory in json.loads(scene.ask("log-dirs", "--json")):
        if directory["log_dir"] == f"/data/{volume}/log":
            for replica in directory["replicas"]:
                found[replica["topic"]] = found.get(replica["topic"], 0) + 1
    return found


def logs_on(scene: Scene, claim: str) -> list[str]:
    """The directories with logs on a claim that no pod has."""
    manifest = pod("looks", CLIENTS_IMAGE, command=["python", "-c", _LOGS])
    manifest["spec"]["volumes"].append({"name": "volume", "persistentVolumeClaim": {"claimName": claim}})
    manifest["spec"]["containers"][0]["volumeMounts"].append({"name": "volume", "mountPath": "/volume"})
    scene.kube.apply(manifest)
    wait(
        "the pod that lists the volume's logs ends",
        lambda: scene.kube.get("pod", "looks")["status"]["phase"] == "Succeeded",
    )
    found = scene.kube("logs", "looks").split()
    scene.kube.delete("pod", "looks")
    return found
