"""The two brokers of a comparison, each in a folder on the same disk, and rounds of work that go to each in turn."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import cpu_seconds
from tests.peers.apache_kafka import AS_SHIPPED, ApacheKafka
from tests.peers.ottla_broker import OttlaBroker

Peer = OttlaBroker | ApacheKafka


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: a `fast` run takes minutes, a full one hours."""

    fast: bool

    @property
    def rounds(self) -> int:
        """The number of measured rounds of each broker, without a first round that warms up."""
        return 3 if self.fast else 5

    def scaled(self, amount: int) -> int:
        """`amount` in a full run; a tenth of it (at least 1) in a fast run."""
        return max(amount // 10, 1) if self.fast else amount


@dataclass(slots=True)
class Spent:
    """The cost of a piece of work: seconds on the clock, the broker's CPU seconds, the client's CPU seconds."""

    wall: float = 0.0
    broker_cpu: float = 0.0
    client_cpu: float = 0.0

    @property
    def client_bound(self) -> bool:
        """Whether the client was busy and the broker wasn't: then wall time says nothing about the broker."""
        return self.wall > 0 and self.client_cpu > 0.85 * self.wall and self.broker_cpu < 0.7 * self.wall


class Pair:
    """Ottla's and Kafka's broker, both running."""

    def __init__(self, ottla: OttlaBroker, kafka: ApacheKafka) -> None:
        self.brokers: dict[str, Peer] = {"ottla": ottla, "kafka": kafka}

    def alternate(self, plan: Plan, work: Callable[[str, Peer], None], rounds: int | None = None) -> None:
        """Does `work` with each broker in turn, round after round."""
        for _ in range(rounds or plan.rounds):
            for name, broker in self.brokers.items():
                work(name, broker)


# A deleted topic's files are removed after a second, so that a run needs little more disk than one round does.
SETTINGS = {"log_segment_delete_delay_ms": "1000"}


@contextmanager
def pair(**settings: str) -> Iterator[Pair]:
    """A context in which both brokers run. Both have these settings, and otherwise their own defaults."""
    settings = SETTINGS | settings
    with folder() as root:
        kafka = ApacheKafka(root / "kafka", heap="1G", options=AS_SHIPPED, **settings)
        try:
            ottla = OttlaBroker(root / "ottla", **settings)
            try:
                yield Pair(ottla, kafka)
            finally:
                ottla.stop()
        finally:
            kafka.stop()


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder under OTTLA_BENCH_DIR (by default the system's temporary folder), removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=os.environ.get("OTTLA_BENCH_DIR")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def measured(*brokers: Peer) -> Iterator[Spent]:
    """A context whose cost is measured, for these brokers together. The client is this process with its children that
    ended meanwhile."""
    spent = Spent()
    pids = [broker.process.pid for broker in brokers]
    broker_cpu, client_cpu, began = sum(map(cpu_seconds, pids)), sum(os.times()[:4]), time.perf_counter()
    yield spent
    spent.wall = time.perf_counter() - began
    spent.client_cpu = sum(os.times()[:4]) - client_cpu
    spent.broker_cpu = sum(map(cpu_seconds, pids)) - broker_cpu


def create_topic(bootstrap: str, topic: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
    """Creates a topic, and waits until each partition has a leader and all replicas are in sync."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    given = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, replicas, config=given)])[topic].result(60)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        if len(states) == partitions and all(each.leader >= 0 and len(each.isrs) == replicas for each in states):
            return
        time.sleep(0.05)
    raise TimeoutError(f"after 60 s, a partition of {topic} has no leader, or has replicas that aren't in sync")


def delete_topic(bootstrap: str, topic: str) -> None:
    """Deletes a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    admin.delete_topics([topic])[topic].result(60)
