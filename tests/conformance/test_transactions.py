"""Transactions with popular clients: commits and aborts, offsets in transactions, fencing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import TopicPartition

from tests.conformance.conftest import Target
from tests.conformance.transacted import create, values_of
from tests.peers.clients import GO, JAVA, SARAMA, Program

PARTITIONS = 3
TRANSACTIONS = 9
RECORDS = 60
STEPS = [
    "readers of committed records see whole transactions only",
    "offsets count with the transaction, or not at all",
    "a successor fences",
]
JAVA_STEPS = [*STEPS, "the admin client lists, describes and fences"]


@pytest.fixture(scope="module")
def outcomes(target: Target) -> Callable[[Program], list[str]]:
    """A function that runs a program, at most once, and returns a line for each of its steps."""
    runs: dict[str, list[str]] = {}

    def run(program: Program) -> list[str]:
        if program.name not in runs:
            factor = str(target.replication_factor)
            command = "sarama-transactional" if program is SARAMA else "transactional"
            runs[program.name] = program.run(
                target.bootstrap, command, _unique(program.name), factor, check=False
            ).splitlines()
        return runs[program.name]

    return run


@pytest.mark.parametrize("name", JAVA_STEPS)
def test_java(outcomes: Callable[[Program], list[str]], name: str) -> None:
    assert [line for line in outcomes(JAVA) if line.startswith(f"ok {name}")], outcomes(JAVA)


@pytest.mark.parametrize("name", STEPS)
def test_franz_go(outcomes: Callable[[Program], list[str]], name: str) -> None:
    assert [line for line in outcomes(GO) if line.startswith(f"ok {name}")], outcomes(GO)


@pytest.mark.parametrize("name", STEPS)
def test_sarama(outcomes: Callable[[Program], list[str]], name: str) -> None:
    assert [line for line in outcomes(SARAMA) if line.startswith(f"ok {name}")], outcomes(SARAMA)


def _unique(name: str) -> str:
    return f"{name}-transactions-{uuid.uuid4().hex[:8]}"


def _producer(target: Target, name: str) -> confluent_kafka.Producer:
    return confluent_kafka.Producer({"bootstrap.servers": target.bootstrap, "transactional.id": name})


def test_librdkafka_commits_and_aborts(target: Target) -> None:
    topic = _unique("rdkafka")
    create(target, topic, partitions=PARTITIONS)
    producer = _producer(target, topic)
    producer.init_transactions(30)
    wanted = []
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        values = [f"{number}-{i}" for i in range(RECORDS)]
        for value in values:
            producer.produce(topic, value.encode())
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            wanted += values
    assert sorted(values_of(target, topic)) == sorted(wanted)
    assert len(values_of(target, topic, "read_uncommitted")) == TRANSACTIONS * RECORDS


def test_librdkafka_commits_offsets_in_transactions(target: Target) -> None:
    source, copy = _unique("rdkafka-from"), _unique("rdkafka-to")
    create(target, source, copy, partitions=PARTITIONS)
    filling = confluent_kafka.Producer({"bootstrap.servers": target.bootstrap})
    for i in range(TRANSACTIONS * RECORDS):
        filling.produce(source, str(i).encode(), partition=i % PARTITIONS)
    filling.flush(30)
    properties = {
        "bootstrap.servers": target.bootstrap,
        "group.id": copy,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = confluent_kafka.Consumer(properties)
    consumer.subscribe([source])
    producer = _producer(target, copy)
    producer.init_transactions(30)
    done = number = 0
    while done < TRANSACTIONS * RECORDS:
        messages = [message for message in consumer.consume(RECORDS, 1) if not message.error()]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(copy, message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        number += 1
        if number % 3 == 1:
            producer.abort_transaction(30)
            for partition in consumer.committed(consumer.assignment(), 30):
                consumer.seek(TopicPartition(source, partition.partition, max(partition.offset, 0)))
        else:
            producer.commit_transaction(30)
            done += len(messages)
    consumer.close()
    assert sorted(map(int, values_of(target, copy))) == list(range(TRANSACTIONS * RECORDS))


def test_librdkafka_is_fenced_by_a_successor(target: Target) -> None:
    topic = _unique("rdkafka-fence")
    create(target, topic, partitions=PARTITIONS)
    first, second = _producer(target, topic), _producer(target, topic)
    for producer in (first, second):
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"first" if producer is first else b"second")
        producer.flush(30)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(30)
    assert caught.value.args[0].fatal()
    second.commit_transaction(30)
    assert values_of(target, topic) == ["second"]


def test_kafka_python_commits_and_aborts(target: Target) -> None:
    topic = _unique("kafka-python")
    create(target, topic, partitions=PARTITIONS)
    producer = kafka.KafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=topic)
    producer.init_transactions()
    wanted = []
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        values = [f"{number}-{i}" for i in range(RECORDS)]
        for value in values:
            producer.send(topic, value.encode())
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            wanted += values
    producer.close()
    assert sorted(values_of(target, topic)) == sorted(wanted)


def test_aiokafka_commits_offsets_in_transactions(target: Target) -> None:
    asyncio.run(asyncio.wait_for(_aiokafka(target, _unique("aiokafka")), 90))


async def _aiokafka(target: Target, topic: str) -> None:
    await asyncio.to_thread(create, target, topic, partitions=PARTITIONS)
    wanted = []
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
        for number in range(TRANSACTIONS):
            values = [f"{number}-{i}" for i in range(RECORDS)]
            await producer.begin_transaction()
            sent = [await producer.send(topic, value.encode()) for value in values]
            await asyncio.gather(*sent)
            offset = {aiokafka.TopicPartition(topic, 0): number}
            await producer.send_offsets_to_transaction(offset, f"{topic}-group")
            if number % 3 == 1:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                wanted += values
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=target.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with consumer:
        read = [(await consumer.getone()).value.decode() for _ in wanted]
    assert sorted(read) == sorted(wanted)
    admin = AIOKafkaAdminClient(bootstrap_servers=target.bootstrap)
    await admin.start()
    offsets = await admin.list_consumer_group_offsets(f"{topic}-group")
    assert [offset.offset for offset in offsets.values()] == [TRANSACTIONS - 1]
    await admin.close()
