"""Replicas move between four brokers under load while brokers are killed, paused, cut off and restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.crash.faults import LONG, PARTITIONS, ROUNDS, Scene, scene
from tests.crash.workload import TOPIC
from tests.peers.ottla_cluster import OttlaCluster
from tests.peers.wire import Closed, Wire

pytestmark = pytest.mark.timeout(3600 if LONG else 150)

ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS = 45, 46
STORM_S = 900 if LONG else 10
_ASSIGNMENTS = list(permutations(range(4), 3))


def ask(cluster: OttlaCluster, api_key: int, message: dict[str, object]) -> object:
    """Sends a request to one broker after the other, and returns the first answer without an error."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for broker in cluster.brokers:
            if broker.running:
                try:
                    with Wire(broker.bootstrap, 5.0) as wire:
                        answer = wire.call(api_key, 0, message)
                except (OSError, Closed):
                    continue
                if not answer.error_code:
                    return answer
        time.sleep(0.2)
    raise AssertionError(f"no broker answers API {api_key} without an error")


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


def test_everything_at_once(tmp_path: Path) -> None:
    """Random faults, several at the same time."""
    seed = SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    seen = ("elections", "ISR changes", "ambiguous writes", *(["truncations"] if LONG else []))
    with scene(tmp_path, seen, size=4, etcd_members=3, proxied=["brokers", "clients", "etcd"]) as here:
        storm = Storm(here, Random(seed))
        deadline = time.monotonic() + STORM_S
        while time.monotonic() < deadline:
            storm.blow()
        storm.settle()
        here.goes_on(100, 90)
        here.cluster.wait("nothing moves", lambda: reassigned(here.cluster), 90)


class Storm:
    """Causes one fault after the other. At most one broker at a time is killed or paused, and one member of etcd."""

    def __init__(self, here: Scene, dice: Random) -> None:
        self._here = here
        self._cluster = here.cluster
        self._dice = dice
        self._mend: list[tuple[float, Callable[[], None]]] = []

    def blow(self) -> None:
        """Mends the faults that have lasted long enough, and causes another one unless three faults remain."""
        now = time.monotonic()
        due = [mend for until, mend in self._mend if until <= now]
        self._mend = [(until, mend) for until, mend in self._mend if until > now]
        for mend in due:
            mend()
        if len(self._mend) < 3:
            self._dice.choice((self._kill, self._pause, self._cut, self._lose_etcd, self._break_etcd, self._move))()
        time.sleep(self._dice.uniform(0.1, 1.0))

    def settle(self) -> None:
        """Mends all faults."""
        for _, mend in self._mend:
            mend()
        self._mend = []
        self._cluster.heal()

    def _for_a_while(self, kind: str, mend: Callable[[], None]) -> None:
        self._here.fault(kind)
        self._mend.append((time.monotonic() + self._dice.uniform(0.5, 6.0), mend))

    def _all_run(self) -> bool:
        return all(broker.running for broker in self._cluster.brokers)

    def _kill(self) -> None:
        if self._all_run():
            victim = self._dice.choice(self._cluster.brokers)
            victim.kill()

            def mend() -> None:
                self._cluster.heal()  # a broker that is cut from etcd can't start
                victim.start_again()

            self._for_a_while("kill -9", mend)

    def _pause(self) -> None:
        if self._all_run():
            victim = self._dice.choice(self._cluster.brokers)
            victim.pause()
            self._for_a_while("SIGSTOP", victim.go_on)

    def _cut(self) -> None:
        one, other = self._dice.sample(range(len(self._cluster.brokers)), 2)
        self._cluster.cut(one, other)
        if self._dice.random() < 0.5:
            self._cluster.cut(other, one)
        self._for_a_while("brokers cut from each other", self._cluster.heal)

    def _lose_etcd(self) -> None:
        for route in self._dice.choice(self._cluster.to_etcd):
            route.cut(self._dice.choice(("there", "back")))
        self._for_a_while("broker cut from etcd", self._cluster.heal)

    def _break_etcd(self) -> None:
        if all(member.process.poll() is None for member in self._cluster.etcd):
            member = self._dice.choice(self._cluster.etcd)
            member.kill()
            self._for_a_while("kill -9 of a member of etcd", member.start)

    def _move(self) -> None:
        self._here.fault("reassignment")
        reassign(self._cluster, {self._dice.randrange(PARTITIONS): self._dice.choice(_ASSIGNMENTS)})
