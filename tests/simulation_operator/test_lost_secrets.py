"""Lost Secrets and new addresses in the operator's simulation: no process is cut off, certificates come at once.

The swarm does the same at random times, under faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator.certificates import hosts_of, pair_in
from ottla.operator.objects import condition
from ottla.operator.plan.broker_tls import LINKS_FILE
from ottla.operator.security import ASKED_FOR, Security
from tests.simulation_operator.kubelets import Kubelets
from tests.simulation_operator.scenario import KEY, ROUNDS_MAX, Run

BOTH = ("k-cluster-ca", "k-brokers-tls")
LISTENERS = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "node", "port": 9095, "type": "NodePort", "tls": True},
]


def _world() -> Run:
    """A world whose Cluster is to have three brokers with encrypted links and a listener with TLS outside."""
    run = Run(4)  # any seed: these scenes have no random faults
    brokers = {"replicas": 3, "storage": {"size": "1Gi"}}
    run.person.edit(brokers=brokers, controllers=None, internalTls=True, listeners=LISTENERS)
    return run


@pytest.fixture
def world() -> Iterator[Run]:
    """Such a world, in which nothing may go wrong."""
    run = _world()
    yield run
    assert run.invariants.wrong == []


@pytest.mark.parametrize("lost", [BOTH, (*BOTH, "k-operator-tls"), (*BOTH, "k-cluster-ca-cert")])
@pytest.mark.parametrize("restarts", [0, 1, 3])
@pytest.mark.parametrize("hurried", [True, False])
def test_a_cluster_outlives_the_loss_of_its_authority_and_all_keys_whoever_restarts_meanwhile(
    world: Run, lost: tuple[str, ...], restarts: int, hurried: bool
) -> None:
    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        pods = sorted(world.brokers.running().values())
        before = dict(world.kubelets.processes)
        if not hurried:
            world.kubelets.deaf = set(pods)
        world.person.lose_secrets(*lost)
        for pod in pods[:restarts]:
            world.server.crash(pod)
        await world.settle("after the loss", ROUNDS_MAX)
        after = world.kubelets.processes
        assert sorted(after) == pods
        assert all(after[pod].certificate != before[pod].certificate for pod in pods), "all have new certificates"
        assert sorted(world.brokers.running().values()) == pods
        assert world.counts["a running process kept its key"] > 0 or restarts == len(pods)

    world.play(scene())


def test_no_pod_is_restarted_for_a_change_while_keys_are_missing(world: Run) -> None:
    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        births = {name: pod["metadata"]["uid"] for name, pod in world.server.pods("broker").items()}
        world.kubelets.deaf = set(births)
        world.person.lose_secrets(*BOTH)
        world.person.change_image()
        await world.healed_round()
        assert {name: pod["metadata"]["uid"] for name, pod in world.server.pods("broker").items()} == births
        cluster = world.person.cluster
        assert cluster is not None
        assert "brokers have to trust the new authority" in cluster["status"]["message"]
        budget = world.server.get_now("PodDisruptionBudget", "k-brokers")
        assert budget is not None
        assert budget["spec"]["maxUnavailable"] == 0
        await world.settle("after the loss", ROUNDS_MAX)
        now = {name: pod["metadata"]["uid"] for name, pod in world.server.pods("broker").items()}
        assert not set(now.values()) & set(births.values())

    world.play(scene())


def test_a_new_address_outside_is_in_the_brokers_certificate_at_once(world: Run) -> None:
    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        told = world.counts["address told of a listener with TLS"]
        assert told
        world.person.move_nodes()
        address = world.server.node_address
        await world.done(world.process.clusters.reconcile(KEY))
        assert world.counts["address told of a listener with TLS"] > told
        world.kubelets.step()  # no time has passed: kubelets look because of the annotation
        for pod in world.brokers.running().values():
            assert address in hosts_of(pair_in(world.kubelets.mounted(pod)["node.pem"]).certificate)

    world.play(scene())


def test_a_new_address_outside_is_not_told_while_there_is_no_certificate_for_it(world: Run) -> None:
    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        world.kubelets.deaf = {*_uids(world)}
        world.person.lose_secrets(*BOTH)
        world.person.move_nodes()
        told = world.counts["address told of a listener with TLS"]
        await world.healed_round()
        assert world.counts["address told of a listener with TLS"] == told
        assert _message(world, "ListenersReady") == "the brokers' certificates, which are lost and made anew"
        await world.settle("after the loss", ROUNDS_MAX)
        assert world.counts["address told of a listener with TLS"] > told

    world.play(scene())


@pytest.mark.parametrize("restarts", [0, 1])
def test_brokers_of_an_older_release_get_their_keys_by_restarts_one_at_a_time(restarts: int) -> None:
    world = _world()  # brokers refuse each other for a while, and partitions are unavailable: that is the price

    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        births = _uids(world)
        pods = sorted(births)
        world.kubelets.older = {*births.values()}
        world.person.lose_secrets(*BOTH)
        for pod in pods[:restarts]:
            world.server.crash(pod)
        await world.healed_round(5)
        assert _uids(world) == births
        assert "at the latest at" in _message(world, "KeysLost")
        world.server.now += ASKED_FOR
        away_max = 0
        for _ in range(ROUNDS_MAX):
            await world.healed_round()
            away_max = max(away_max, len(pods) - len(world.brokers.running()))
            if not _message(world, "KeysLost"):
                break
        assert away_max <= 1
        kept = [pod for pod, uid in _uids(world).items() if births[pod] == uid]
        assert kept == pods[:restarts], "a process that has started since trusts the authority"
        await world.settle("after the restarts", ROUNDS_MAX)
        assert world.kubelets.strangers() == []
        assert _message(world, "KeysLost") == ""
        price = "was deleted, though its broker says {'offline'", "and with it the last replica in sync of"
        assert [each for each in world.invariants.wrong if not any(said in each for said in price)] == []

    with patch.object(world.invariants, "connects", lambda _: None):
        world.play(scene())


def _uids(world: Run) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.server.pods("broker").items()}


def _message(world: Run, kind: str) -> str:
    assert world.person.cluster is not None
    return str(condition(world.person.cluster["status"], kind).get("message", ""))


async def _at_once(*_: Any) -> bool:
    return True


_reread = Kubelets._reread


def _with_a_key_alone(self: Kubelets, name: str, files: dict[str, bytes]) -> None:
    if LINKS_FILE in files:
        _reread(self, name, files)


@pytest.mark.parametrize(
    ("owner", "name", "mistake", "told"),
    [
        pytest.param(Security, "_accepted_without_keys", _at_once, "don't accept each other", id="keys come at once"),
        pytest.param(Kubelets, "_reread", _with_a_key_alone, "don't accept each other", id="no trust without a key"),
    ],
)
def test_mistakes_are_seen(owner: Any, name: str, mistake: Any, told: str) -> None:
    world = _world()

    async def scene() -> None:
        await world.settle("forming", ROUNDS_MAX)
        pods = sorted(world.brokers.running().values())
        world.kubelets.deaf = set(pods)
        world.person.lose_secrets(*BOTH)
        world.server.crash(pods[0])
        await world.settle("after the loss", 40)

    with patch.object(owner, name, mistake):
        world.play(scene())
    assert any(told in sentence for sentence in world.invariants.wrong)
