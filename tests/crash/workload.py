"""Clients at work while faults hit a cluster. Their requests and answers go into a history, which the oracles of
`tests/simulation/oracles.py` check.

The events are those of the simulation (`tests/simulation/history.py`). They come from librdkafka (an idempotent
producer with its defaults, a group of two consumers that commit) and from the small clients of the simulation over real
sockets (an idempotent producer, a reader and a committer for each partition, and a producer with acks=1 that may lose
records). All clients run on one event loop in a thread, so that the history has one order.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from itertools import pairwise
from random import Random
from types import MappingProxyType
from typing import Any

import confluent_kafka

from ottla.net.streams import Connect, connect_tcp
from ottla.protocol.errors import KafkaError
from tests.crash.real_client import real_client
from tests.simulation.client import Client, Unavailable
from tests.simulation.consumer import Committer, Consumer
from tests.simulation.history import Event, History
from tests.simulation.oracles import check_all
from tests.simulation.producer import Producer

TOPIC = "worked"
GROUP = "workers"
UNSURE = 0  # the partition to which the producer with acks=1 writes
PAUSE_S = 0.05
_TURN_S = 0.005
_COMMIT_S = 0.3
_CONFLUENT = {"log_level": 0, "reconnect.backoff.max.ms": 500}
_FINDING_S = 60.0


class _Commits:
    """One consumer's commits that aren't answered yet.

    librdkafka keeps commits for which it has no coordinator, and sends them once it has found one, after later commits.
    So the commits may be answered, and change the group's offsets, in another order than they were asked for.
    """

    def __init__(self) -> None:
        self._begun: list[tuple[dict[int, int], list[Event]]] = []

    def asked(self, offsets: dict[int, int], begun: list[Event]) -> None:
        """Notes a commit of these offsets, by partition, with its events."""
        self._begun.append((offsets, begun))

    def answered(self, offsets: dict[int, int]) -> list[Event]:
        """Takes the answer to a commit of these offsets. Returns the events of the oldest unanswered commit with
        exactly these offsets."""
        position = next(position for position, (asked, _) in enumerate(self._begun) if asked == offsets)
        return self._begun.pop(position)[1]


class Workload(threading.Thread):
    """Clients of one topic. Call `start`, then `finish`, which returns the violations.

    `security` has librdkafka's settings about it, and `connect` opens the streams of the small clients.
    """

    def __init__(
        self,
        bootstrap: str,
        partitions: int = 4,
        *,
        seed: int = 0,
        records_per_s: int = 200,
        security: Mapping[str, str] = MappingProxyType({}),
        connect: Connect = connect_tcp,
    ) -> None:
        super().__init__(name="workload", daemon=True)
        self.history = History(time.monotonic)
        self.failed: list[str] = []  # errors that an application would have got
        self.acknowledged: list[tuple[float, float]] = []  # librdkafka's records: the time of sending, the latency
        self._servers = {"bootstrap.servers": bootstrap, **security}
        self._connect = connect
        self._partitions = partitions
        self._random = Random(seed)
        self._records_per_s = records_per_s
        self._producing = True
        self._consuming = True
        self._addresses = [(host, int(port)) for host, _, port in (at.rpartition(":") for at in bootstrap.split(","))]
        self._clients: list[Client] = []
        self._consumed: list[set[int]] = [set() for _ in range(partitions)]
        self._wrong: list[str] = []

    # ---- for the scenarios

    def count(self, name: str) -> int:
        """How often an event happened. `name` is `op phase` of the history, or a name that the clients count."""
        return self.history.counts[name]

    def wait_for_acknowledgements(self, more: int = 20, seconds: float = 60.0) -> None:
        """Waits until `more` further records are acknowledged to librdkafka. Raises AssertionError."""
        wanted = len(self.acknowledged) + more
        deadline = time.monotonic() + seconds
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, f"no {more} acknowledgements within {seconds:g} s"
            assert self.is_alive(), self.failed
            time.sleep(0.02)

    def finish(self, seconds: float = 120.0) -> list[str]:
        """Stops the producers, lets all consumers read to the end, and returns the violations that oracles found."""
        self._producing = False
        self.join(seconds)
        if self.is_alive():
            return [f"the clients haven't come to an end after {seconds:g} s", *self.failed[:5]]
        return [*self._wrong, *self.failed[:5], *check_all(self.history.events)]

    @property
    def longest_silence_s(self) -> float:
        """The longest time from one acknowledgement to the next."""
        times = [sent + took for sent, took in self.acknowledged]
        times.sort()
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def latency_s(self, part: float) -> float:
        """A quantile (`part` from 0 to 1) of the time from sending to acknowledgement, in seconds."""
        latencies = sorted(took for _, took in self.acknowledged)
        return latencies[min(int(len(latencies) * part), len(latencies) - 1)]

    # ---- the thread

    def run(self) -> None:
        """Runs all clients, until `finish`."""
        try:
            asyncio.run(self._run())
        except Exception as error:  # otherwise the error would be lost with the thread
            self.failed.append(f"a client broke: {error!r}")
            raise

    async def _run(self) -> None:
        ours = [Producer(self._client(f"own-{i}"), (TOPIC, i), acks=-1, idempotent=True, depth=3, padding=300)
                for i in range(self._partitions)]  # fmt: skip
        ours.append(Producer(self._client("unsure"), (TOPIC, UNSURE), acks=1, idempotent=False, depth=3, padding=300))
        readers = [Consumer(self._client(f"reader-{i}"), (TOPIC, i)) for i in range(self._partitions)]
        committers = [Committer(self._client(f"commit-{i}"), f"own-{i}", (TOPIC, i)) for i in range(self._partitions)]
        reading = [
            *(asyncio.create_task(reader.run(2 * PAUSE_S, 200)) for reader in readers),
            *(asyncio.create_task(committer.run(4 * PAUSE_S)) for committer in committers),
            *(asyncio.create_task(self._consume_in_group(f"member-{number}")) for number in range(2)),
        ]
        writing = [
            *(asyncio.create_task(producer.run(PAUSE_S)) for producer in ours),
            asyncio.create_task(self._produce_by_librdkafka()),
        ]
        while self._producing:
            await self._fail_early([*reading, *writing])
        for producer in ours:
            producer.stopped = True
        await asyncio.gather(*writing)
        ends = [await self._end_of(index) for index in range(self._partitions)]
        group = [Committer(self._client(f"looks-{i}"), GROUP, (TOPIC, i)) for i in range(self._partitions)]
        await self._until_consumed(ends, group, reading)
        self._consuming = False
        for stoppable in (*readers, *committers):
            stoppable.stopped = True
        await asyncio.gather(*reading)
        for committer in committers:
            await self._again(committer.look)
        if (committed := await self._committed(group)) != ends:
            self._wrong.append(f"the group's offsets are {committed}, but the partitions end at {ends}")
        for index, end in enumerate(ends):
            await self._read_finally(index, end)
        for client in self._clients:
            client.close()

    def _client(self, name: str) -> Client:
        client = real_client(name, self._addresses, self._connect, self.history, self._random)
        self._clients.append(client)
        return client

    @staticmethod
    async def _fail_early(tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.sleep(_TURN_S * 4)
        for task in tasks:
            if task.done():
                task.result()

    # ---- librdkafka

    async def _produce_by_librdkafka(self) -> None:
        """Produces with librdkafka's default settings, acks=all and idempotence."""
        producer = confluent_kafka.Producer(
            {**self._servers, "log_level": 0, "enable.idempotence": True, "acks": "all"}
        )
        number = 0
        began = time.monotonic()
        while self._producing:
            due = int((time.monotonic() - began) * self._records_per_s)
            while number < due:
                number += 1
                try:
                    self._send(producer, number)
                except BufferError:
                    break
            producer.poll(0)
            await asyncio.sleep(_TURN_S)
        deadline = time.monotonic() + _FINDING_S
        while len(producer) and time.monotonic() < deadline:
            producer.poll(0)
            await asyncio.sleep(_TURN_S)
        if len(producer):
            self.failed.append(f"{len(producer)} records were never answered")

    def _send(self, producer: confluent_kafka.Producer, number: int) -> None:
        index = number % self._partitions
        value = f"librdkafka/{number}"
        sent = time.monotonic()
        begun = self.history.invoke(
            "send",
            process="librdkafka",
            partition=[TOPIC, index],
            values=[value],
            acks=-1,
            idempotent=True,
            renumbers=True,
        )

        def answered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.failed.append(f"{value}: {error}")
                self.history.end(begun, "unknown", error=str(error))
                return
            self.acknowledged.append((sent, time.monotonic() - sent))
            # If the broker knows a batch as a duplicate, but no longer its offset, the answer has the offset -1, as
            # Kafka's.
            offset = message.offset()
            self.history.end(begun, "ok", offset=-1 if offset is None else offset)

        producer.produce(TOPIC, value.encode(), partition=index, on_delivery=answered)

    async def _consume_in_group(self, name: str) -> None:
        """Reads the assigned partitions, and commits the read offsets every `_COMMIT_S` seconds."""
        expected: dict[int, int] = {}

        def assigned(_: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
            self.history.counts["assignments"] += 1
            expected.clear()

        def committed(error: confluent_kafka.KafkaError | None, offsets: list[Any]) -> None:
            known = error is None and all(offset.error is None for offset in offsets)
            for begun in commits.answered({offset.partition: offset.offset for offset in offsets}):
                self.history.end(begun, "ok" if known else "unknown")

        commits = _Commits()
        consumer = confluent_kafka.Consumer(
            {
                **_CONFLUENT,
                **self._servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "on_commit": committed,
            }
        )
        consumer.subscribe([TOPIC], on_assign=assigned)
        next_commit = time.monotonic() + _COMMIT_S
        while self._consuming:
            while (message := consumer.poll(0)) is not None:
                if (error := message.error()) is None:
                    self._note_read(name, message, expected)
                else:  # an application would only log it, too
                    self.history.notes.append((time.monotonic(), f"{name}: {error}"))
            if expected and time.monotonic() > next_commit:
                next_commit = time.monotonic() + _COMMIT_S
                self._commit(consumer, name, dict(expected), commits)
            await asyncio.sleep(_TURN_S)
        await asyncio.to_thread(consumer.close)

    def _note_read(self, name: str, message: confluent_kafka.Message, expected: dict[int, int]) -> None:
        index, offset, value = message.partition(), message.offset(), message.value()
        assert index is not None
        assert offset is not None
        assert isinstance(value, bytes)
        self.history.add(
            "poll", "ok", process=name, partition=[TOPIC, index], position=expected.get(index, offset),
            records=[[offset, value.decode().rstrip(".")]],
        )  # fmt: skip
        expected[index] = offset + 1
        self._consumed[index].add(offset)

    def _commit(
        self, consumer: confluent_kafka.Consumer, name: str, expected: dict[int, int], commits: _Commits
    ) -> None:
        begun = [
            self.history.invoke("commit", process=name, group=GROUP, partition=[TOPIC, index], offset=offset)
            for index, offset in expected.items()
        ]
        commits.asked(expected, begun)
        offsets = [confluent_kafka.TopicPartition(TOPIC, index, offset) for index, offset in expected.items()]
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except confluent_kafka.KafkaException:  # for instance between two assignments
            for each in commits.answered(expected):
                self.history.end(each, "unknown")

    # ---- the end

    async def _end_of(self, index: int) -> int:
        """The partition's high watermark. Called once no client writes any more."""
        consumer = Consumer(self._client(f"end-{index}"), (TOPIC, index))
        await self._again(lambda: self._poll(consumer))
        return consumer.high_watermark

    async def _until_consumed(self, ends: list[int], group: list[Committer], reading: list[asyncio.Task[None]]) -> None:
        """Waits until the group has read and committed all records. At the beginning of a generation, its members read
        again the records that the previous generation hadn't committed, which may take two fetches."""
        deadline = time.monotonic() + _FINDING_S
        while (
            any(len(seen) < end for seen, end in zip(self._consumed, ends, strict=True))
            or await self._committed(group) != ends
        ):
            await self._fail_early(reading)
            if time.monotonic() > deadline:
                seen = [len(seen) for seen in self._consumed]
                self._wrong.append(f"the group has read {seen} records of {ends}, or hasn't committed all offsets")
                return

    async def _committed(self, group: list[Committer]) -> list[int]:
        """The group's offsets, by partition."""
        offsets = []
        for looker in group:
            await self._again(looker.look)
            offsets.append(self.history.events[-1]["offset"])  # no other client has run since that event
        return offsets

    async def _read_finally(self, index: int, end: int) -> None:
        consumer = Consumer(self._client(f"final-{index}"), (TOPIC, index))
        found: list[tuple[int, str]] = []
        producers: list[tuple[int, int]] = []
        while consumer.position < end:
            records = await self._again(lambda: self._poll(consumer))
            found += records
            producers += consumer.producers
            consumer.position = found[-1][0] + 1 if found else 0
        self.history.add(
            "final",
            "ok",
            partition=[TOPIC, index],
            start=consumer.log_start,
            records=found,
            producers=producers,
        )

    @staticmethod
    async def _poll(consumer: Consumer) -> list[tuple[int, str]] | None:
        try:
            return await consumer.poll(200)
        except (Unavailable, KafkaError):
            await consumer.client.refreshed(TOPIC)
            return None

    @staticmethod
    async def _again(what: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Calls `what` until it returns neither None nor False, and returns its answer."""
        deadline = time.monotonic() + _FINDING_S
        while True:
            answer = await what()
            if answer is not None and answer is not False:
                return answer
            assert time.monotonic() < deadline, f"{what} doesn't work after {_FINDING_S:g} s"
