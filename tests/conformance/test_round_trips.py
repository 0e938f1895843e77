"""Produce, consume, groups and administration with popular clients."""

import asyncio
import uuid
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conformance.conftest import Target
from tests.peers.clients import GO, JAVA, Program

COUNT = 500
JAVA_STEPS = [
    "describe the cluster",
    "create topics",
    "refuse topics that can't be created",
    "describe topics by name and id",
    "add partitions",
    "configs",
    "produce",
    "refuse records that are too large",
    "large records",
    "list offsets",
    "consume by assignment",
    "offset out of range",
    "consume by group",
    "resume at the committed offset",
    "two members share and rebalance",
    "static membership",
    "group administration",
    "delete records",
    "log directories and producers",
    "elections and reassignments",
    "quotas are stored",
    "delete topics",
]
GO_STEPS = [
    "create topics",
    "add partitions",
    "describe",
    "produce",
    "consume by group, commit, resume",
    "two members share",
    "offsets and lag",
    "delete records",
    "delete group and topic",
]


@pytest.fixture(scope="module")
def outcomes(target: Target) -> Callable[[Program], list[str]]:
    """A function that runs a program, at most once, and returns a line for each of its steps."""
    runs: dict[str, list[str]] = {}

    def run(program: Program) -> list[str]:
        if program.name not in runs:
            prefix, factor = f"{program.name}-{uuid.uuid4().hex[:8]}", str(target.replication_factor)
            runs[program.name] = program.run(target.bootstrap, "round-trip", prefix, factor, check=False).splitlines()
        return runs[program.name]

    return run


@pytest.mark.parametrize("name", JAVA_STEPS)
def test_java(outcomes: Callable[[Program], list[str]], name: str) -> None:
    _passed(outcomes(JAVA), name)


@pytest.mark.parametrize("name", GO_STEPS)
def test_franz_go(outcomes: Callable[[Program], list[str]], name: str) -> None:
    _passed(outcomes(GO), name)


def _passed(lines: list[str], name: str) -> None:
    found = [line for line in lines if line.startswith((f"ok {name}", f"failed {name}"))]
    assert len(found) == 1, lines
    assert found[0].startswith("ok "), found[0]


def test_librdkafka(target: Target, unique: Callable[[str], str]) -> None:
    bootstrap, topic, group = target.bootstrap, unique("librdkafka"), unique("librdkafka-group")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, 3, target.replication_factor, config={"retention.ms": "86400000"})
    admin.create_topics([wanted])[topic].result(20)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    assert topic in admin.list_topics(timeout=20).topics
    _librdkafka_produce(bootstrap, topic)
    first = _librdkafka_consume(bootstrap, topic, group, COUNT)
    assert {m.key() for m in first} == {b"key-%d" % i for i in range(COUNT)}
    _librdkafka_produce(bootstrap, topic)
    again = _librdkafka_consume(bootstrap, topic, group, COUNT)
    assert min(m.offset() for m in again if m.partition() == 0) > max(m.offset() for m in first if m.partition() == 0)
    _librdkafka_admin(admin, topic, group)


@pytest.mark.parametrize(
    ("batch_size", "others"),
    [(1_000_000, "_INVALID_DIFFERENT_RECORD"), (1, "delivered")],
    ids=["in-one-batch", "each-in-a-batch-of-its-own"],
)
def test_librdkafka_learns_which_records_are_at_fault(
    target: Target, unique: Callable[[str], str], batch_size: int, others: str
) -> None:
    """KIP-467, as in librdkafka's own test 0011: a compacted topic refuses records without a key, and the answer names
    these records."""
    bootstrap, topic = target.bootstrap, unique("at-fault")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, 1, target.replication_factor, config={"cleanup.policy": "compact"})
    admin.create_topics([wanted])[topic].result(20)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1000, "batch.size": batch_size})
    reported: dict[bytes, str] = {}

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        reported[value] = error.name() if error else "delivered"

    for i in range(100):
        value = b"%d" % i
        producer.produce(topic, value, None if i % 10 == 0 else value, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert reported == {b"%d" % i: "INVALID_RECORD" if i % 10 == 0 else others for i in range(100)}


def _librdkafka_produce(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    )
    errors: list[object] = []
    for i in range(COUNT):
        key = b"key-%d" % i
        producer.produce(topic, b"value", key, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(20) == 0
    assert not errors


def _librdkafka_consume(bootstrap: str, topic: str, group: str, count: int) -> list[confluent_kafka.Message]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    consumer.subscribe([topic])
    messages = consumer.consume(count, 20)
    assert [m.error() for m in messages] == [None] * count
    assert all(partition.error is None for partition in consumer.commit(asynchronous=False))
    low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 20)
    assert low == 0
    assert high > 0
    consumer.close()
    return list(messages)


def _librdkafka_admin(admin: AdminClient, topic: str, group: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(20)["retention.ms"].value == "86400000"
    change = ConfigEntry("retention.ms", "1000000", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([wanted])[wanted].result(20)
    assert group in {listing.group_id for listing in admin.list_consumer_groups().result(20).valid}
    assert str(admin.describe_consumer_groups([group])[group].result(20).state) == "ConsumerGroupState.EMPTY"
    committed = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(group)])[group].result(
        20
    )
    assert sum(partition.offset for partition in committed.topic_partitions) == 2 * COUNT
    partition = confluent_kafka.TopicPartition(topic, 0)
    latest = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(20).offset
    deleted = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 3)])
    assert next(iter(deleted.values())).result(20).low_watermark == 3
    assert latest > 3
    assert admin.describe_cluster().result(20).nodes
    admin.delete_consumer_groups([group])[group].result(20)
    admin.delete_topics([topic])[topic].result(20)


def test_aiokafka(target: Target, unique: Callable[[str], str]) -> None:
    asyncio.run(asyncio.wait_for(_aiokafka(target, unique("aiokafka"), unique("aiokafka-group")), 90))


async def _aiokafka(target: Target, topic: str, group: str) -> None:
    bootstrap = target.bootstrap
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    created = await admin.create_topics([aiokafka.admin.NewTopic(topic, 3, target.replication_factor)])
    assert [error[1] for error in created.topic_errors] == [0]
    assert topic in await admin.list_topics()
    for _ in range(2):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            sent = [await producer.send(topic, b"value", b"key-%d" % i) for i in range(COUNT)]
            await asyncio.gather(*sent)
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with consumer:
            keys = {(await consumer.getone()).key for _ in range(COUNT)}
            assert keys == {b"key-%d" % i for i in range(COUNT)}
            await consumer.commit()
    offsets = await admin.list_consumer_group_offsets(group)
    assert sum(offset.offset for offset in offsets.values()) == 2 * COUNT
    described = await admin.describe_cluster()
    assert described["brokers"]
    await admin.delete_topics([topic])
    await admin.close()
