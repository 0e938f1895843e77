"""What do 10,000 partitions on three brokers cost, each with a replica on every broker?

Topics of 100 partitions, replication factor 3, min.insync.replicas 2, Ottla's defaults for everything else, and hardly
any records: the benchmark measures the work that the number of partitions makes. In this order:

1. *Creation*: one request for all topics, until every partition has a leader and three replicas in sync.
2. *Idle*: CPU of the busiest broker's process.
3. *Restart* of a broker that isn't the controller: from SIGTERM to its end, and from its start until all replicas are
   in sync. Meanwhile a producer (acks=all) sends to a sample of the partitions that the broker led. Its slowest
   acknowledgement shows whether the other brokers served all the time.
4. *SIGSTOP* of a broker that isn't the controller: from the end of its session (DescribeCluster doesn't list the
   broker any more) until a record has been acknowledged in each partition that it led.
5. *kill -9* of the broker that is the controller: from the signal until a record has been acknowledged in each
   partition that it led.
6. *Stop* of the whole cluster.

The goals are absolute: Apache Kafka isn't measured. FAST=1 makes a tenth of the partitions.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from statistics import quantiles
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.pair import Plan, folder
from bench.process import cpu_seconds
from bench.table import Row, within
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import Closed, Wire

PARTITIONS = 10_000
PARTITIONS_PER_TOPIC = 100
DESCRIBE_CLUSTER = 60
_IDLE_S = 30.0
_SAMPLE = 50
_EACH_S = 0.01
_POLL_S = 0.1
_PATIENCE_S = 180.0

Partition = tuple[str, int]


def run(plan: Plan) -> list[Row]:
    """Rows for all figures, on each of Ottla's stores."""
    rows: list[Row] = []
    with folder() as root:
        for store, members in (("embedded store", 0), ("etcd", 1)):
            with ottla_cluster(root / store.partition(" ")[0], 3, members) as cluster:
                rows += _Measurement(cluster, plan.scaled(PARTITIONS), store).rows()
    return rows


class _Measurement:
    """The measurement of one cluster, from its first topic to its end."""

    def __init__(self, cluster: OttlaCluster, partitions: int, store: str) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._store = store
        self._admin = _admin(cluster.bootstrap)

    def rows(self) -> list[Row]:
        """All rows, in the order of the module's docstring."""
        return [self._creation(), self._idle(), *self._restart(), self._paused(), self._killed(), self._end()]

    def _row(self, name: str, value: float, goal: float | None, unit: str = "s", note: str = "") -> Row:
        row = Row(f"{self._partitions:,} partitions, {self._store}: {name}", unit, None, [value], note=note)
        row.goal = None if goal is None else within(goal)
        print(f"{row.name}: {value:.3g} {unit} {note}", flush=True)
        return row

    def _creation(self) -> Row:
        count = self._partitions // PARTITIONS_PER_TOPIC
        topics = [NewTopic(_topic(number), PARTITIONS_PER_TOPIC, 3) for number in range(count)]
        began = time.monotonic()
        for created in self._admin.create_topics(
            topics, operation_timeout=_PATIENCE_S, request_timeout=_PATIENCE_S
        ).values():
            created.result(_PATIENCE_S)
        answered = time.monotonic() - began
        self._until_in_sync()
        return self._row("created", time.monotonic() - began, 60, note=f"answered after {answered:.1f} s")

    def _idle(self) -> Row:
        time.sleep(5)
        pids = [broker.process.pid for broker in self._cluster.brokers]
        before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(_IDLE_S)
        elapsed = time.monotonic() - began
        shares = [100 * (cpu_seconds(pid) - spent) / elapsed for pid, spent in zip(pids, before, strict=True)]
        note = f"of {', '.join(f'{share:.1f}' for share in shares)}"
        return self._row("idle, the busiest broker", max(shares), 10, "% of a core", note)

    def _restart(self) -> Sequence[Row]:
        number, led = self._not_the_controller()
        broker = self._cluster.brokers[number]
        sample = random.Random(1).sample(led, _SAMPLE)
        with _sending(self._cluster.bootstrap, sample) as sending:
            time.sleep(2)
            began = time.monotonic()
            broker.stop(90)
            stopped = time.monotonic() - began
            broker.start_again()
            started = time.monotonic() - began - stopped
            self._until_in_sync()
            in_sync = time.monotonic() - began - stopped
            time.sleep(1)
        p999 = quantiles(sending.waits, n=1000)[-1]
        handed_over = "stopping while" not in broker.log_path.read_text()
        return (
            self._row("SIGTERM to the end", stopped, 15, note="all handed over" if handed_over else "limit hit"),
            self._row("start to all in sync", in_sync, None, note=f"serving after {started:.1f} s"),
            self._row("slowest ack during a restart", max(sending.waits), None, note=f"p99.9 {p999:.2f} s; no error"),
        )

    def _paused(self) -> Row:
        number, led = self._not_the_controller()
        broker = self._cluster.brokers[number]
        began = time.monotonic()
        broker.pause()
        try:
            while self._registered(number):
                assert time.monotonic() - began < _PATIENCE_S, "its session doesn't end"
                time.sleep(0.05)
            ended = time.monotonic()
            moved, acknowledged = self._taken_over(number, led)
        finally:
            broker.go_on()
        self._until_in_sync()
        note = f"session over after {ended - began:.1f} s, leaders known {moved - ended:.1f} s later"
        return self._row(f"session's end to {len(led):,} leaders' acks", acknowledged - ended, 5, note=note)

    def _killed(self) -> Row:
        number = self._cluster.controller()
        broker = self._cluster.brokers[number]
        led = self._led_by(number)
        began = time.monotonic()
        broker.kill()
        moved, acknowledged = self._taken_over(number, led)
        broker.start_again()
        started = time.monotonic()
        self._until_in_sync()
        note = f"leaders known after {moved - began:.1f} s; in sync {time.monotonic() - started:.1f} s after the start"
        return self._row(f"kill -9 of the controller to {len(led):,} leaders' acks", acknowledged - began, 5, note=note)

    def _end(self) -> Row:
        began = time.monotonic()
        self._cluster.stop()
        return self._row("SIGTERM of all brokers to the last end", time.monotonic() - began, None)

    # ---- the state of the cluster

    def _taken_over(self, number: int, led: Sequence[Partition]) -> tuple[float, float]:
        """Waits until all these partitions have other leaders, then sends a record to each. Returns (the time at which
        Metadata had named all new leaders, the time at which all records had been acknowledged)."""
        survivors = [broker.bootstrap for broker in self._cluster.brokers if broker.running]
        admin = _admin(",".join(survivors))
        for topic in dict.fromkeys(topic for topic, _ in led):
            self._until(admin, topic, lambda state: state.leader not in (number, -1))
        moved = time.monotonic()
        sender = _Sender(",".join(survivors))
        for partition in led:
            sender.send(partition)
        sender.close()
        return moved, time.monotonic()

    def _led_by(self, number: int) -> list[Partition]:
        return [partition for partition, leader in _leaders(self._admin).items() if leader == number]

    def _until_in_sync(self) -> None:
        for number in range(self._partitions // PARTITIONS_PER_TOPIC):
            self._until(self._admin, _topic(number), lambda state: len(state.isrs) == 3)

    @staticmethod
    def _until(admin: AdminClient, topic: str, settled: Callable[[Any], bool]) -> None:
        """Waits until `settled` is true for all partitions of a topic. Each request asks for one topic, to keep the
        brokers' answers small."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            states = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
            if len(states) == PARTITIONS_PER_TOPIC and all(map(settled, states)):
                return
            assert time.monotonic() < deadline, (
                f"after {_PATIENCE_S:g} s, partitions of {topic} still lack the awaited leader or ISR"
            )
            time.sleep(_POLL_S)

    def _registered(self, number: int) -> bool:
        """Whether this broker's session lasts: DescribeCluster, asked of a running broker, names the broker."""
        for broker in self._cluster.brokers:
            if broker.running:
                try:
                    with Wire(broker.bootstrap, 5.0) as wire:
                        answer = wire.call(DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
                    return any(found.broker_id == number for found in answer.brokers)
                except (OSError, Closed):
                    continue
        raise AssertionError("no broker answers")

    def _not_the_controller(self) -> tuple[int, list[Partition]]:
        """Of the brokers that aren't the controller, the one that leads the most partitions, and these partitions. (A
        broker that has just restarted leads none.)"""
        others = set(range(len(self._cluster.brokers))) - {self._cluster.controller()}
        led = {number: self._led_by(number) for number in others}
        return max(led.items(), key=lambda item: len(item[1]))


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 1000 * int(_PATIENCE_S)})


def _topic(number: int) -> str:
    return f"many-{number:03d}"


def _leaders(admin: AdminClient) -> Mapping[Partition, int]:
    topics = admin.list_topics(timeout=30).topics
    return {(name, index): state.leader for name, topic in topics.items() for index, state in topic.partitions.items()}


class _Sender:
    """A producer with acks=all. `waits` has the seconds that each record waited for its acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        self.waits: list[float] = []
        self._failed: list[str] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})

    def send(self, partition: Partition) -> None:
        """Sends one record, and handles the answers that have come."""
        sent = time.monotonic()

        def answered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.waits.append(time.monotonic() - sent)
            else:
                self._failed.append(str(error))

        self._producer.produce(partition[0], b"x" * 100, partition=partition[1], on_delivery=answered)
        self._producer.poll(0)

    def close(self) -> None:
        """Waits for all answers. Raises RuntimeError if a record failed."""
        left = self._producer.flush(_PATIENCE_S)
        if self._failed or left:
            raise RuntimeError(f"{len(self._failed)} records failed, {left} are unanswered: {self._failed[:1]}")


@contextmanager
def _sending(bootstrap: str, partitions: Sequence[Partition]) -> Iterator[_Sender]:
    """A context in which a thread sends records to these partitions in turn. Raises RuntimeError at its end if a record
    failed."""
    sender = _Sender(bootstrap)
    stopping = threading.Event()

    def send() -> None:
        for partition in cycle(partitions):
            if stopping.wait(_EACH_S):
                return
            sender.send(partition)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield sender
    finally:
        stopping.set()
        thread.join()
    sender.close()
