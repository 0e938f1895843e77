"""The processes of librdkafka's clients of transactions: `python -m tests.crash.transactional_clients '{"role": …}'`.

Each process is one client, so that a test can kill or stop a client alone. The client's requests and answers go to the
standard output as they happen: one event of a history (`tests/simulation/atomic.py`, `precedence.py`, `copied.py`) in
each line. The roles:

- "write": a producer with a transactional id, whose transactions write to two to four partitions.
- "copy": a member of the group `COPIERS`, which copies the records of the written topics to the topic of copies, and
  commits its offsets in the same transactions.
- "read": a consumer that reads the committed records of all partitions from their beginning.

SIGTERM lets a process end its transaction and exit with 0. A producer that can't go on, because a successor has fenced
it or because of another fatal error, exits with `OVER`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.simulation.history import Event, History, Key

COPIERS = "copiers"
OVER = 3
GIVES_UP_S = 120.0
_V1 = 1  # librdkafka's protocol
_BATCH = 20  # records of a transaction that copies
_ABORTS = 0.2
_LINGERS = 0.15


@dataclass(frozen=True)
class Task:
    """What a process does. `number` is unique in a run; partitions are (topic, index)."""

    role: str
    name: str  # the transactional id
    process: str
    number: int
    clients: dict[str, str]  # librdkafka's settings: the brokers' addresses, and security
    seed: int
    inputs: list[Key]
    outputs: list[Key]
    timeout_ms: int
    pause_s: float

    def command(self) -> list[str]:
        """The command that runs this task."""
        return [sys.executable, "-m", "tests.crash.transactional_clients", json.dumps(asdict(self))]

    @classmethod
    def of(cls, text: str) -> Task:
        """The task that stands in a command's argument."""
        fields = json.loads(text)
        for name in ("inputs", "outputs"):
            fields[name] = [(topic, index) for topic, index in fields[name]]
        return cls(**fields)


class Over(Exception):
    """The producer can't go on."""


class Journal(History):
    """A history whose events are written to a file descriptor, and not kept. Times are of the machine's monotonic
    clock, so that events of several processes can be put in order."""

    def __init__(self, number: int, descriptor: int) -> None:
        super().__init__(time.monotonic)
        self._next_id = number << 32
        self._descriptor = descriptor

    def add(self, op: str, phase: str, **fields: Any) -> Event:
        event = super().add(op, phase, **fields)
        self.events.clear()
        os.write(self._descriptor, json.dumps(event, separators=(",", ":")).encode() + b"\n")
        return event


class TransactionalProducer:
    """librdkafka's producer with a transactional id. Notes what it asks for, and what is answered."""

    def __init__(self, task: Task, journal: Journal) -> None:
        self.transaction = ""
        self._task = task
        self._journal = journal
        self._number = 0
        self._producer = Producer(
            {
                **task.clients,
                "transactional.id": task.name,
                "transaction.timeout.ms": task.timeout_ms,
                "socket.timeout.ms": 4000,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 2,
                "batch.num.messages": 3,
            }
        )
        begun = journal.invoke("fence", process=task.process, name=task.name)
        self._until_done(lambda: self._producer.init_transactions(5.0))
        journal.end(begun, "ok")

    def begin(self) -> None:
        """Begins a transaction."""
        self._number += 1
        self.transaction = f"{self._task.process}#{self._number}"
        self._journal.add(
            "transaction", "ok", process=self._task.process, name=self._task.name, transaction=self.transaction,
            protocol=_V1, group="", offset=-1,
        )  # fmt: skip
        self._until_done(self._producer.begin_transaction)

    def write(self, partition: Key, value: str) -> None:
        """Sends a record."""
        begun = self._journal.invoke(
            "write", process=self._task.process, transaction=self.transaction, partition=list(partition), values=[value]
        )

        def answered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._journal.end(begun, "unknown", error=error.name())
                return
            offset = message.offset()
            self._journal.end(begun, "ok", offset=-1 if offset is None else offset)

        topic, index = partition
        try:
            self._producer.produce(topic, value.encode(), partition=index, on_delivery=answered)
        except KafkaException as error:
            self._journal.end(begun, "fail", error=str(error))
            if error.args[0].fatal():
                raise Over(str(error)) from error
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits until all records are answered."""
        deadline = time.monotonic() + GIVES_UP_S
        while self._producer.flush(1.0):
            assert time.monotonic() < deadline, f"{len(self._producer)} records are never answered"

    def commit_offsets(self, offsets: list[TopicPartition], of: Consumer) -> bool:
        """Adds the offsets of a group to the transaction. False if the transaction can only be aborted."""
        return self._until_done(
            lambda: self._producer.send_offsets_to_transaction(offsets, of.consumer_group_metadata(), 5.0)
        )

    def end(self, *, commits: bool) -> bool:
        """Ends the transaction. Returns whether it was committed. Raises Over."""
        self.flush()
        if not commits:
            asked = self._ask_for_end(commits=False)
            self._until_done(lambda: self._producer.abort_transaction(5.0))
            self._journal.end(asked, "ok")
            return False
        asked = self._ask_for_end(commits=True)
        outcome = "unknown"
        try:
            if self._until_done(lambda: self._producer.commit_transaction(5.0)):
                outcome = "ok"
            else:
                # An abort that succeeds shows that the commit had no effect: nobody aborts what is committed.
                self._until_done(lambda: self._producer.abort_transaction(5.0))
                outcome = "fail"
        finally:
            self._journal.end(asked, outcome)
        return outcome == "ok"

    def _ask_for_end(self, *, commits: bool) -> Event:
        return self._journal.invoke(
            "end", process=self._task.process, name=self._task.name, transaction=self.transaction, commits=commits,
            protocol=_V1,
        )  # fmt: skip

    def _until_done(self, what: Callable[[], object]) -> bool:
        """Calls `what` until it succeeds. False if the transaction can only be aborted. Raises Over."""
        deadline = time.monotonic() + GIVES_UP_S
        while True:
            try:
                what()
                return True
            except KafkaException as error:
                code: KafkaError = error.args[0]
                if code.txn_requires_abort():
                    return False
                if code.fatal() or not code.retriable():
                    raise Over(f"{code.name()}: {code.str()}") from error
                assert time.monotonic() < deadline, f"{what} is never answered: {code.str()}"


def _consumer(task: Task, **config: Any) -> Consumer:
    return Consumer(
        {
            **task.clients,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "socket.timeout.ms": 4000,
            "reconnect.backoff.max.ms": 500,
            **config,
        }
    )


class Process:
    """One process, until SIGTERM."""

    def __init__(self, task: Task, journal: Journal) -> None:
        self._task = task
        self._journal = journal
        self._random = Random(task.seed)
        self._stopped = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def run(self) -> None:
        """Does what the task says. Raises Over."""
        {"write": self._write, "copy": self._copy, "read": self._read}[self._task.role]()

    def _pause(self, mean_s: float) -> None:
        time.sleep(self._random.uniform(0.2, 1.8) * mean_s)

    # ---- writers

    def _write(self) -> None:
        random, partitions = self._random, self._task.outputs
        producer = TransactionalProducer(self._task, self._journal)
        while not self._stopped:
            producer.begin()
            chosen = random.sample(partitions, random.randint(2, min(4, len(partitions))))
            records = [partition for partition in chosen for _ in range(random.randint(1, 4))]
            random.shuffle(records)
            for number, (topic, index) in enumerate(records):
                producer.write((topic, index), f"{producer.transaction}:{topic}-{index}:{number}")
                if random.random() < _LINGERS:  # the transaction stays open for a while
                    producer.flush()
                    self._pause(self._task.pause_s / 2)
            producer.end(commits=random.random() >= _ABORTS)
            self._pause(self._task.pause_s)

    # ---- copiers

    def _copy(self) -> None:
        producer = TransactionalProducer(self._task, self._journal)
        positions: dict[Key, int] = {}  # the next position of each partition since its assignment
        found: dict[Key, list[tuple[int, str]]] = defaultdict(list)

        def assigned(*_: object) -> None:
            positions.clear()
            found.clear()  # records of an assignment that is over are read again by another one

        consumer = _consumer(
            self._task,
            **{"group.id": COPIERS, "auto.offset.reset": "earliest", "session.timeout.ms": 6000},
        )
        consumer.subscribe(sorted({topic for topic, _ in self._task.inputs}), on_assign=assigned, on_revoke=assigned)
        while not self._stopped:
            self._poll(consumer, _BATCH, 0.3, found)
            if found:
                self._copy_all(producer, consumer, positions, found)
                found.clear()
        consumer.close()

    def _copy_all(
        self,
        producer: TransactionalProducer,
        consumer: Consumer,
        positions: dict[Key, int],
        found: dict[Key, list[tuple[int, str]]],
    ) -> None:
        """Copies these records, by partition, in one transaction. Reads them again if the transaction is aborted."""
        starts = {key: positions.get(key, read[0][0]) for key, read in found.items()}
        producer.begin()
        for key, read in found.items():
            self._note(key, starts[key], read)
            positions[key] = read[-1][0] + 1
            self._journal.add(
                "consumed", "ok", group=COPIERS, transaction=producer.transaction, partition=list(key),
                first=starts[key], next=positions[key],
            )  # fmt: skip
            for _, value in read:
                producer.write(self._random.choice(self._task.outputs), f"{producer.transaction}>{value}")
        offsets = [TopicPartition(topic, index, positions[topic, index]) for topic, index in found]
        commits = producer.commit_offsets(offsets, consumer) and self._random.random() >= _ABORTS
        if not producer.end(commits=commits):
            for (topic, index), start in starts.items():
                positions[topic, index] = start
                try:
                    consumer.seek(TopicPartition(topic, index, start))
                except KafkaException:
                    positions.pop((topic, index))  # the partition is another member's by now

    # ---- readers

    def _read(self) -> None:
        positions = dict.fromkeys(self._task.inputs, 0)
        consumer = _consumer(self._task, **{"group.id": self._task.process, "auto.offset.reset": "error"})
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in positions])
        while not self._stopped:
            found: dict[Key, list[tuple[int, str]]] = defaultdict(list)
            self._poll(consumer, 100, 0.3, found)
            for key, read in found.items():
                self._note(key, positions[key], read)
                positions[key] = read[-1][0] + 1
        consumer.close()

    @staticmethod
    def _poll(consumer: Consumer, records: int, seconds: float, found: dict[Key, list[tuple[int, str]]]) -> None:
        """Adds the next records to `found`, as (offset, value) by partition."""
        deadline = time.monotonic() + seconds
        while records and (left := deadline - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None or message.error() is not None:
                continue
            topic, index, offset, value = message.topic(), message.partition(), message.offset(), message.value()
            assert topic is not None
            assert index is not None
            assert offset is not None
            assert isinstance(value, bytes)
            found[topic, index].append((offset, value.decode()))
            records -= 1

    def _note(self, key: Key, position: int, read: Sequence[tuple[int, str]]) -> None:
        self._journal.add(
            "read", "ok", process=self._task.process, partition=list(key), position=position, records=read,
            next=read[-1][0] + 1,
        )  # fmt: skip


def main() -> None:
    """Runs the task that the first argument names."""
    task = Task.of(sys.argv[1])
    faulthandler.register(signal.SIGUSR1)  # says where the process hangs
    try:
        Process(task, Journal(task.number, 1)).run()
    except (Over, KafkaException, KafkaError, SystemError) as error:
        # confluent-kafka raises a fatal error of the producer, such as that it is fenced, in whichever call runs
        # callbacks. If more callbacks follow in the same call, it raises a SystemError.
        code = error.args[0] if isinstance(error, KafkaException) else error
        if isinstance(code, KafkaError) and not code.fatal():
            raise
        print(f"{task.process} is over: {error}", file=sys.stderr, flush=True)
        os._exit(OVER)  # librdkafka would wait for the answers to its requests
    os._exit(0)


if __name__ == "__main__":
    main()
