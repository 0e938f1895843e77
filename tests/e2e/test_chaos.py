"""A Cluster is created, scaled and rolled, and its topics change, under faults: each of the operator's requests to the
API server may fail, be answered late or be carried out twice, watches end, and the operator may die between any two
writes.

The same seed (OTTLA_CHAOS_SEED) gives the same request the same fault. `tests/e2e/chaos` has the proxy of the faults.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

import pytest

from ottla.operator.queue import RESYNC_S
from tests.e2e.chaos.deployed import SEED_VARIABLE, Chaos, in_its_place
from tests.e2e.chaos.disruptions import Disruptions, Watch
from tests.e2e.chaos.faults import missing
from tests.e2e.installed import Operator
from tests.e2e.kubectl import holds, wait
from tests.e2e.scene import BROKERS, TOPIC, Scene, cluster, namespace, topic

# Time for a reconcile that has begun before the faults ended, for a broker that is restarting, and for kubectl's waits.
UNDER_WAY_S = 60.0
STEP_S = 420.0
TOPICS = ("kept", "grown", "again", TOPIC)


@pytest.mark.timeout(2400, func_only=True)
def test_chaos(operator: Operator) -> None:
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(1 << 32))
    print(f"chaos: {SEED_VARIABLE}={seed}")
    with namespace(operator, "chaos") as scene:
        with in_its_place(operator, seed) as chaos, watched(scene) as seen:
            identities = changes(scene, seen)
            chaos.calm()
            agrees(scene, RESYNC_S + UNDER_WAY_S)
            judge(chaos, seen)
            there = ids(scene)
            assert {name: there[name] for name in identities} == identities, (
                "a topic was replaced by another one of its name"
            )
            left, before = conditions(scene), scene.births()
        # An operator that was never disturbed has nothing to repair, and reports the same conditions.
        scene.change(config={"socket.request.max.bytes": "100000000", "log.retention.ms": "86400002"})
        agrees(scene, RESYNC_S + UNDER_WAY_S)
        assert conditions(scene) == left
        assert scene.births() == before
        scene.goes_on()
        scene.finish()


def watched(scene: Scene) -> Watch:
    """A watch of the brokers' pods."""
    return Watch(scene.target.environment, scene.namespace, BROKERS)


def changes(scene: Scene, seen: Disruptions) -> dict[str, str]:
    """Makes the changes under faults. Returns the ids of the topics that weren't deleted."""
    scene.kube.apply(cluster(), topic("kept", partitions=3, replicationFactor=3), topic("grown", partitions=2))
    scene.settled(STEP_S)
    scene.kube.apply(topic("again", partitions=4))
    scene.start_clients(STEP_S)
    for name in ("kept", "grown", "again"):
        scene.topic_settled(name, STEP_S)
    identities, volumes = ids(scene), claims(scene)
    deleted = identities.pop("again")

    scene.change(brokers={"replicas": 4}, scaling={"rebalance": "Balance"})
    scene.kube.patch("topics.ottla.dev", "grown", {"spec": {"partitions": 5, "config": {"retention.ms": "3600000"}}})
    scene.settled(STEP_S)
    scene.topic_settled("grown", STEP_S)
    scene.goes_on()

    before = scene.births()
    scene.change(config={"socket.request.max.bytes": "100000000"})
    scene.kube.delete("topics.ottla.dev", "again")
    scene.kube.apply(topic("again", partitions=2))
    wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), STEP_S)
    scene.settled(STEP_S)
    scene.topic_settled("again", STEP_S)
    assert ids(scene)["again"] != deleted
    scene.goes_on()

    seen.leaves("ottla-broker-3")
    scene.change(brokers={"replicas": 3})
    scene.settled(STEP_S)
    assert len(scene.brokers()) == 3
    scene.goes_on()
    now = claims(scene)
    assert {name: now.get(name) for name in volumes} == volumes, "a volume is gone"

    # The last changes are made just before the faults end, and aren't waited for.
    scene.change(config={"socket.request.max.bytes": "100000000", "log.retention.ms": "86400001"})
    scene.kube.patch("topics.ottla.dev", "grown", {"spec": {"partitions": 6}})
    return identities


def agrees(scene: Scene, seconds: float) -> None:
    """Waits until the Cluster and its Topics report that they follow their specs, and asserts that this is true."""
    scene.settled(seconds)
    for name in TOPICS:
        scene.topic_settled(name, seconds)
    found = scene.cluster()
    assert found["status"]["brokers"]["ready"] == found["spec"]["brokers"]["replicas"] == len(scene.brokers())
    for name in TOPICS:
        (described,) = json.loads(scene.ask("topics", "describe", name, "--json"))
        wanted = scene.kube.get("topics.ottla.dev", name)["spec"]
        assert len(described["partitions"]) == wanted["partitions"], name
        assert wanted.get("config", {}).items() <= described["configs"].items(), name
    scene.in_sync()


def judge(chaos: Chaos, seen: Disruptions) -> None:
    """Asserts the rules that must have held all the time, and that every kind of fault happened."""
    faults = chaos.faults()
    print(f"chaos: {sum(faults.values())} faults, {seen.taken} pods taken: {dict(sorted(faults.items()))}")
    assert not seen.wrong, seen.wrong
    assert seen.taken >= 4, "the roll wasn't seen"
    assert not (ended := chaos.endings()), f"the operator's process ended by itself: {ended}"
    assert not missing(faults), faults


def ids(scene: Scene) -> dict[str, str]:
    """The id of each topic in TOPICS. Another id means another topic, which lacks the records of the former topic."""
    found = {}
    for name in TOPICS:
        (described,) = json.loads(scene.ask("topics", "describe", name, "--json"))
        found[name] = described["topic_id"]
    return found


def claims(scene: Scene) -> dict[str, str]:
    """The uid of each volume claim."""
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in scene.kube.all("pvc")}


def conditions(scene: Scene) -> dict[str, Any]:
    """Status and reason of each condition of the Cluster and its Topics."""
    found = {"Cluster": scene.cluster()}
    found |= {f"Topic {name}": scene.kube.get("topics.ottla.dev", name) for name in TOPICS}
    assert all(holds(each, "Ready") for each in found.values())
    return {
        name: {each["type"]: (each["status"], each["reason"]) for each in item["status"]["conditions"]}
        for name, item in found.items()
    }
