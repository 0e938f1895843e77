"""Tests of the operator's swarm: a short run finds no bug, the same seed gives the same run, planted bugs are caught.
The last tests are for bugs that the swarm has found.

`make swarm-operator SEEDS=0-9999` runs the long form. Times are bounded: on a busy machine fewer seeds are run, and
fewer of the table's last bugs.
"""

from __future__ import annotations

import re
import subprocess
from uuid import UUID

import pytest

from ottla.operator.plan.topic import KafkaPartition, KafkaTopic
from tests.simulation.fixed_hashes import run
from tests.simulation_operator.catches import TABLE
from tests.simulation_operator.planted import BUGS, planted
from tests.simulation_operator.scenario import KEY, ROUNDS_MAX, Run


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(f"tests.simulation_operator.{name}", *arguments, timeout_s=200)


def test_a_short_swarm() -> None:
    done = program("swarm", "--seeds", "0-59", "--seconds", "15")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def test_the_same_seed_is_the_same_run() -> None:
    digests = {tuple(re.findall(r"digest (\w+)", program("scenario", "17").stdout)) for _ in range(2)}
    assert len(digests) == 1
    assert digests != {()}


def test_each_planted_bug_was_caught() -> None:
    recorded = TABLE.recorded()
    assert BUGS.keys() == recorded.keys()
    # An exception in the patch itself wouldn't count as catching the bug.
    assert [name for name, catch in recorded.items() if "failed unexpectedly" in catch.why] == []


@pytest.mark.parametrize("name", BUGS)
def test_each_planted_bug_has_a_place_in_the_operator(name: str) -> None:
    """A replay that ends by its time plants the first bugs alone."""
    with planted(name):
        pass


def test_planted_bugs_are_caught() -> None:
    done = program("catches", "--replay", "--seconds", "15")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def test_a_topic_is_kept_though_the_watch_still_tells_of_the_topic_resource_of_the_cluster_before() -> None:
    """Cluster and Topics are deleted, and the Cluster is created again while the watch of Topics is late. The operator
    used to mark the old Topics as seen under the new Cluster, and to delete their topics when the watch reported the
    Topics' deletion."""
    world = Run(4)  # any seed: this scene has no random faults

    async def scene() -> None:
        world.person.add_topic()
        await world.settle("forming", ROUNDS_MAX)
        (name,) = world.person.topics
        before = world.brokers.topics[name]
        assert world.person.remake_cluster(topics="later")
        await world.done(world.process.topics.reconcile(KEY))  # the watch hasn't sent an event yet
        for _ in range(10):
            await world.healed_round()
        assert world.brokers.topics[name].id == before.id
        assert world.invariants.wrong == []

    world.play(scene())


def test_a_broker_whose_statefulset_is_made_anew_has_read_its_files_when_it_starts_meanwhile() -> None:
    """Seed 6866 found a bug of the simulation: brokers stopped serving while their pods had no owner, and started
    without a file checksum. So the operator couldn't find out with which files a broker had started, and didn't restart
    it for other settings."""
    world = Run(4)

    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        running = world.brokers.running()
        broker, pod = min(running.items())
        world.brokers.started_with.clear()
        world.server.crash(pod)
        stateful_set = pod.rpartition("-")[0]
        await world.server.delete("StatefulSet", KEY.namespace, stateful_set, propagation="Orphan")
        world.server.step()
        assert world.brokers.started_with == {broker: world.brokers.files(broker)}
        assert world.brokers.running() == running

    world.play(scene())


def test_a_budget_of_the_cluster_before_is_no_word_of_this_cluster() -> None:
    """Kubernetes deletes the former Cluster's PodDisruptionBudget with its pods. Until then the operator mustn't change
    this budget, and the budget says nothing about the present Cluster (seed 3532).
    """
    world = Run(4)

    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        world.brokers.blocking = {min(world.brokers.running())}
        assert list(world.agreement.budget_lies()) == ["the budget allows 1 eviction though broker [0] says no"]
        world.server.remove("ConfigMap", f"{KEY.name}-followed")  # so that the next Cluster has its own at once
        spec = world.person.spec
        world.server.remove("Cluster", KEY.name)
        world.server.make("Cluster", KEY.name, spec)
        assert await world.done(world.process.clusters.reconcile(KEY))
        assert list(world.agreement.budget_lies()) == []

    world.play(scene())


def test_a_restart_of_a_drained_broker_that_is_wanted_again_is_no_removal() -> None:
    """While the spec didn't want a broker, its drain was noted in the status. Then the spec wanted the broker again,
    and the next reconcile restarted it for other settings before the status said so. The simulation took that for the
    removal of a broker with replicas (seed 2145).
    """
    world = Run(4)

    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        broker, pod = max(world.brokers.running().items())
        cluster = world.person.cluster
        assert cluster is not None
        assert world.brokers.only_holders([broker])
        cluster["status"]["draining"] = [broker]
        world.invariants.read_cluster(cluster)
        world.invariants.reported({broker: world.brokers.report(broker)})
        world.invariants.deletes("Pod", pod, "Background")
        assert world.invariants.wrong == []
        brokers = cluster["spec"]["brokers"]
        unwanted = {**cluster, "spec": {**cluster["spec"], "brokers": {**brokers, "replicas": brokers["replicas"] - 1}}}
        world.invariants.read_cluster(unwanted)
        world.invariants.deletes("Pod", pod, "Background")
        assert [f"brokers [{broker}] are taken away" in said for said in world.invariants.wrong] == [True]

    world.play(scene())


def test_a_person_brings_back_a_broker_that_stopped_before_it_made_its_replica() -> None:
    """Such a broker has no replica on any volume yet, but the partition has no other broker (seed 3376)."""
    world = Run(4)

    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        brokers = world.person.spec["brokers"]
        gone = brokers["replicas"]
        one = KafkaPartition((gone,), frozenset({gone}))
        world.brokers.topics["t"] = KafkaTopic("t", UUID(int=99), {0: one}, {})
        assert world.person.bring_back()
        assert world.person.spec["brokers"]["replicas"] == gone + 1

    world.play(scene())
