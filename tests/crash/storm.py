"""Random faults of a cluster, several at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

from tests.peers.ottla_cluster import OttlaCluster
from tests.peers.wire import Closed, Wire

FAULTS_MAX = 3  # at the same time


def ask(cluster: OttlaCluster, api_key: int, message: dict[str, Any]) -> Any:
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


class Storm:
    """Causes one fault after the other. At most one broker at a time is killed or paused, and one member of etcd.

    `note` is told each fault. `others` are faults of the scenario's own; a fault that lasts calls `for_a_while`. Faults
    last for a time between the two of `lasting_s`. Paths between brokers and to etcd are cut if they have proxies.
    The caller must call `close`.
    """

    def __init__(
        self,
        cluster: OttlaCluster,
        dice: Random,
        note: Callable[[str], None],
        others: Sequence[Callable[[], object]] = (),
        lasting_s: tuple[float, float] = (0.5, 6.0),
    ) -> None:
        self._cluster = cluster
        self._dice = dice
        self._note = note
        self._lasting_s = lasting_s
        self._mend: list[tuple[float, Callable[[], object]]] = []
        self._pool = ThreadPoolExecutor(1)
        self._start: Future[None] | None = None  # the latest start of a killed broker
        self._faults: list[Callable[[], object]] = [self.kill, self._pause, *others]
        if cluster.to_brokers:
            self._faults.append(self._cut)
        if cluster.to_etcd:
            self._faults.append(self._lose_etcd)
        if len(cluster.etcd) > 1:
            self._faults.append(self._break_etcd)

    def blow(self) -> None:
        """Mends the faults that have lasted long enough, and causes another one unless `FAULTS_MAX` faults remain.
        Raises AssertionError if a killed broker doesn't start."""
        if self._start is not None and self._start.done():
            self._start.result()
        now = time.monotonic()
        due = [mend for until, mend in self._mend if until <= now]
        self._mend = [(until, mend) for until, mend in self._mend if until > now]
        for mend in due:
            mend()
        if len(self._mend) < FAULTS_MAX:
            self._dice.choice(self._faults)()
        time.sleep(self._dice.uniform(0.1, 1.0))

    def settle(self) -> None:
        """Mends all faults."""
        for _, mend in self._mend:
            mend()
        self._mend = []
        self._cluster.heal()
        if self._start is not None:
            self._start.result()

    def close(self) -> None:
        """Waits until no broker is being started any more, so that none outlives the test."""
        self._pool.shutdown()

    def for_a_while(self, kind: str, mend: Callable[[], object]) -> None:
        """Notes a fault, and lets `mend` be called after some seconds."""
        self._note(kind)
        self._mend.append((time.monotonic() + self._dice.uniform(*self._lasting_s), mend))

    def _all_run(self) -> bool:
        return all(broker.running for broker in self._cluster.brokers)

    def kill(self) -> None:
        """Kills a broker as kill -9 does, unless another one is killed or paused, and starts it again later."""
        if self._all_run():
            victim = self._dice.choice(self._cluster.brokers)
            victim.kill()

            def mend() -> None:
                self._cluster.heal()  # a broker that is cut from etcd can't start
                self._start = self._pool.submit(victim.start_again)  # the storm goes on meanwhile

            self.for_a_while("kill -9", mend)

    def _pause(self) -> None:
        if self._all_run():
            victim = self._dice.choice(self._cluster.brokers)
            victim.pause()
            self.for_a_while("SIGSTOP", victim.go_on)

    def _cut(self) -> None:
        one, other = self._dice.sample(range(len(self._cluster.brokers)), 2)
        self._cluster.cut(one, other)
        if self._dice.random() < 0.5:
            self._cluster.cut(other, one)
        self.for_a_while("brokers cut from each other", self._cluster.heal)

    def _lose_etcd(self) -> None:
        for route in self._dice.choice(self._cluster.to_etcd):
            route.cut(self._dice.choice(("there", "back")))
        self.for_a_while("broker cut from etcd", self._cluster.heal)

    def _break_etcd(self) -> None:
        if all(member.process.poll() is None for member in self._cluster.etcd):
            member = self._dice.choice(self._cluster.etcd)
            member.kill()
            self.for_a_while("kill -9 of a member of etcd", member.start)
