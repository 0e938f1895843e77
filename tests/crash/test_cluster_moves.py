"""Replicas move between four brokers under load while brokers are killed, paused, cut off and restarted."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import permutations
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.crash.faults import LONG, PARTITIONS, ROUNDS, scene
from tests.crash.storm import Storm, ask
from tests.crash.workload import TOPIC
from tests.peers.ottla_cluster import OttlaCluster, Paths

pytestmark = pytest.mark.timeout(3600 if LONG else 150)

ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS = 45, 46
STORM_S = 900 if LONG else 10
_ASSIGNMENTS = list(permutations(range(4), 3))


def reassign(cluster: OttlaCluster, targets: dict[int, tuple[int, ...]]) -> None:
    """Asks for other replicas of these partitions. Errors of single partitions are ignored."""
    partitions = [{"partition_index": index, "replicas": list(replicas)} for index, replicas in targets.items()]
    message = {"timeout": 30_000, "topics": [{"name": TOPIC, "partitions": partitions}]}
    ask(cluster, ALTER_PARTITION_REASSIGNMENTS, message)


def reassigned(cluster: OttlaCluster) -> bool:
    """Whether no partition is being moved any more."""
    answer = ask(cluster, LIST_PARTITION_REASSIGNMENTS, {"timeout": 30_000, "topics": None})
    return not answer.topics  # type: ignore[attr-defined]


def test_replicas_move_while_brokers_are_killed(tmp_path: Path) -> None:
    dice = Random(SystemRandom().randrange(1 << 32))
    with scene(tmp_path, ("elections", "ISR changes"), size=4) as here:
        for number in range(2 * ROUNDS):
            targets = {index: dice.choice(_ASSIGNMENTS) for index in range(PARTITIONS)}
            here.fault("reassignment")
            reassign(here.cluster, targets)
            victim = here.leader(number % PARTITIONS)
            here.kill(victim)
            here.goes_on()
            here.cluster.brokers[victim].start_again()
            here.cluster.wait("nothing moves", lambda: reassigned(here.cluster), 60)
            here.in_sync()
            found = {index: tuple(here.cluster.partition(TOPIC, index).replica_nodes) for index in targets}
            assert found == targets


@pytest.mark.parametrize("secured", [False, True], ids=["PLAINTEXT", "SASL_SSL"])
def test_everything_at_once(tmp_path: Path, secured: bool) -> None:
    """Random faults, several at the same time."""
    seed = SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    seen = ("elections", "ISR changes", "ambiguous writes", *(["truncations"] if LONG else []))
    proxied: list[Paths] = ["brokers", "clients", "etcd"]
    with scene(tmp_path, seen, size=4, etcd_members=3, proxied=proxied, secured=secured) as here:
        dice = Random(seed)

        def move() -> None:
            here.fault("reassignment")
            reassign(here.cluster, {dice.randrange(PARTITIONS): dice.choice(_ASSIGNMENTS)})

        with closing(Storm(here.cluster, dice, here.fault, [move])) as storm:
            deadline = time.monotonic() + STORM_S
            while time.monotonic() < deadline:
                storm.blow()
            storm.settle()
        here.goes_on(100, 90)
        here.cluster.wait("nothing moves", lambda: reassigned(here.cluster), 90)
