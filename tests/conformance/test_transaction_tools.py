"""Apache Kafka's own programs for transactions: kafka-producer-perf-test, kafka-transactions, and the copier with which
Apache Kafka's system tests check that a topic is copied exactly once."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import TopicPartition as Partition

from tests.conformance.conftest import Target
from tests.conformance.transacted import create, values_of
from tests.crash.faults import LONG, MINUTES
from tests.peers.apache_kafka import TOOLS, jars, java, tool

PARTITIONS = 2
VERIFICATION = "transaction.partition.verification.enable"
RECORDS = 20_000 if LONG else 1500  # that a copier copies, of one partition
KILLS = 12 if LONG else 1  # of each copier
GROUPED = pytest.param(True, id="a group", marks=MINUTES)


def end_offset(target: Target, topic: str) -> int:
    """The sum of the partitions' high watermarks: it counts records and markers."""
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "unused"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, index), 30)[1] for index in range(PARTITIONS)]
    consumer.close()
    return sum(ends)


def act(target: Target, *command: str) -> str:
    """Runs `kafka-transactions`, and returns its standard output."""
    return tool("transactions", "--bootstrap-server", target.bootstrap, *command)


def table(target: Target, *command: str) -> list[dict[str, str]]:
    """The rows that `kafka-transactions` prints. No value has a space; the last one is left out if it is empty."""
    header, *rows = act(target, *command).splitlines()
    return [dict(zip(header.split(), row.split(), strict=False)) for row in rows if row.strip()]


@contextmanager
def open_transaction(target: Target, topic: str, name: str, *, verified: bool = True) -> Iterator[KafkaProducer]:
    """A producer that wrote a record to partition 0 in a transaction. Without `verified` its coordinator wasn't told of
    the partition."""
    producer = KafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    if not verified:
        producer._transaction_manager._partitions_in_transaction.add(Partition(topic, 0))
    producer.send(topic, b"open", partition=0).get(30)
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def test_producer_perf_test(target: Target, unique: Callable[[str], str]) -> None:
    """The performance test commits every 100 ms."""
    topic = unique("perf")
    create(target, topic, partitions=PARTITIONS)
    count = 5000
    printed = tool(
        *("producer-perf-test", "--bootstrap-server", target.bootstrap, "--topic", topic),
        *("--num-records", str(count), "--record-size", "100", "--throughput", "2500"),
        *("--transactional-id", topic, "--transaction-duration-ms", "100"),
    )
    assert f"{count} records sent" in printed
    assert len(values_of(target, topic)) == count
    markers = end_offset(target, topic) - count
    assert markers > 6  # 2 s of transactions, in two partitions


def test_kafka_transactions_shows_and_terminates(target: Target, unique: Callable[[str], str]) -> None:
    topic = unique("shown")
    create(target, topic, partitions=PARTITIONS)
    with open_transaction(target, topic, topic) as producer:
        [listed] = [row for row in table(target, "list") if row["TransactionalId"] == topic]
        assert listed["TransactionState"] == "Ongoing"
        assert topic not in [row["TransactionalId"] for row in table(target, "list", "--duration-filter", "3600000")]
        [described] = table(target, "describe", "--transactional-id", topic)
        assert described["CoordinatorId"] == listed["Coordinator"]
        assert described["TopicPartitions"] == f"{topic}-0"
        assert described["TransactionTimeoutMs"] == "60000"
        [state] = table(target, "describe-producers", "--topic", topic, "--partition", "0")
        assert state["ProducerId"] == described["ProducerId"] == listed["ProducerId"]
        assert state["CurrentTransactionStartOffset"] == "0"
        producer.commit_transaction()
    assert values_of(target, topic) == ["open"]
    [described] = table(target, "describe", "--transactional-id", topic)
    assert described["TransactionState"] == "CompleteCommit"


@pytest.fixture
def unverified(target: Target) -> Iterator[None]:
    """Leaders let producers write that haven't told their coordinator of the partition."""
    alter = ["--bootstrap-server", target.bootstrap, "--entity-type", "brokers", "--entity-default", "--alter"]
    tool("configs", *alter, "--add-config", f"{VERIFICATION}=false")
    yield
    tool("configs", *alter, "--delete-config", VERIFICATION)


def test_kafka_transactions_aborts_what_hangs(target: Target, unique: Callable[[str], str], unverified: None) -> None:
    topic = unique("hangs")
    create(target, topic, partitions=PARTITIONS)
    search = ["find-hanging", "--max-transaction-timeout", "0", "--topic", topic]
    with open_transaction(target, topic, f"known-{topic}"):
        with open_transaction(target, topic, topic, verified=False):
            pass
        filling = Producer({"bootstrap.servers": target.bootstrap})
        filling.produce(topic, b"behind", partition=0)
        filling.flush(30)
        [found] = table(target, *search)
        assert (found["Topic"], found["Partition"], found["StartOffset"]) == (topic, "0", "1")
        assert values_of(target, topic) == []
        act(target, "abort", "--topic", topic, "--partition", "0", "--start-offset", "1")
        assert table(target, *search) == []
    act(target, "forceTerminateTransaction", "--transactionalId", f"known-{topic}")
    assert values_of(target, topic) == ["behind"]


class Copier:
    """TransactionalMessageCopier as a process that is killed and started again with the same transactional id."""

    def __init__(self, target: Target, source: str, sink: str, group: str, partition: int, *, grouped: bool) -> None:
        self.committed = 0  # records, by what its processes reported
        arguments = [
            *("--broker-list", target.bootstrap, "--input-topic", source, "--output-topic", sink),
            *("--input-partition", str(partition), "--consumer-group", group),
            *("--transactional-id", f"{group}-{partition}", "--transaction-size", "25", "--enable-random-aborts"),
            # A copier asks for its position before it begins as a producer, so it waits, for 60 s at most, until the
            # transaction of the one that was killed has timed out, if that one had committed offsets in it.
            *("--transaction-timeout", "20000"),
            *(["--group-mode", "--use-group-metadata"] if grouped else []),
        ]
        self._command = java(jars("kafka"), TOOLS["transactional-message-copier"], *arguments)

    def run(self, until: int | None) -> None:
        """Runs a process to its end, or kills it as soon as it has committed `until` records."""
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            watchdog = threading.Timer(180, process.kill)
            watchdog.start()
            processed = 0
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                processed = json.loads(line)["totalProcessed"]
                if until is not None and processed >= until:
                    process.kill()
                    break
            self.committed += processed
            errors = process.stderr.read()
            code = process.wait()
            watchdog.cancel()
        assert code == (0 if until is None or processed < until else -9), errors[-4000:]


@pytest.mark.timeout(1200 if LONG else 240)
@pytest.mark.parametrize("grouped", [pytest.param(False, id="assigned"), GROUPED])
def test_copiers_that_are_killed_copy_exactly_once(
    target: Target, unique: Callable[[str], str], *, grouped: bool
) -> None:
    """Each copier aborts a third of its transactions, and is killed in the middle of others."""
    source, sink, group = unique("from"), unique("to"), unique("copiers")
    create(target, source, sink, partitions=PARTITIONS)
    filling = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS * PARTITIONS):
        filling.produce(source, str(number).encode(), partition=number % PARTITIONS)
    assert filling.flush(30) == 0
    copiers = [Copier(target, source, sink, group, index, grouped=grouped) for index in range(PARTITIONS)]

    def copy(copier: Copier) -> None:
        for _ in range(KILLS):
            copier.run(until=RECORDS // (KILLS + 2))
        copier.run(until=None)

    threads = [threading.Thread(target=copy, args=[copier]) for copier in copiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    copied = Counter(map(int, values_of(target, sink)))
    assert [number for number, count in copied.items() if count != 1] == []
    assert len(copied) == RECORDS * PARTITIONS
