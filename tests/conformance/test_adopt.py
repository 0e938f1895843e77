"""A log directory that Apache Kafka wrote becomes Ottla's: records, topic ids and offsets stay as they are, and
transactions go on."""

import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.adoption_scene import BROKERS, COMMITTED, LONELY, ORDERS, played
from tests.peers.apache_kafka import ApacheKafka, tool
from tests.peers.clients import CLIENTS
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.records import CODECS, expected_digest
from tests.peers.wire import Wire

METADATA = 3


def topic_ids(bootstrap: str) -> dict[str, uuid.UUID]:
    with Wire(bootstrap) as wire:
        return {topic.name: topic.topic_id for topic in wire.call(METADATA, 12, {"topics": None}).topics}


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    position = confluent_kafka.TopicPartition(topic, 0, offset, "where we were")
    deadline = time.monotonic() + 20
    while True:
        try:
            assert consumer.commit(offsets=[position], asynchronous=False)[0].error is None
            break
        except confluent_kafka.KafkaException as error:
            # The group's coordinator is new, and for a moment Apache Kafka's answer is that it isn't the coordinator.
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    consumer.close()


def adopt(theirs: ApacheKafka, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("ottla")), "adopt", str(theirs.data), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def transaction(bootstrap: str, topic: str, end: str) -> confluent_kafka.Producer:
    """Writes ten records in one transaction, which ends by `end`: "commit", "abort", or "" for a transaction left
    open."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "transaction.timeout.ms": 600_000, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)
    return producer


def committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The first `count` values that a reader of committed records gets of a topic with one partition. Where `count` is
    0, the reader looks for three seconds, and all that it gets is returned."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    values: list[bytes] = []
    deadline = time.monotonic() + (60 if count else 3)
    while len(values) < max(count, 1) and time.monotonic() < deadline:
        values += [record.value for some in consumer.poll(500).values() for record in some]
    consumer.close()
    return values


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_a_producer_ends_on_ottla_the_transaction_that_it_began_on_kafka(tmp_path: Path, stop: str) -> None:
    theirs = ApacheKafka(tmp_path / "kafka", group_initial_rebalance_delay_ms="0")
    try:
        ends = {"kept": "commit", "undone": "abort", "pending": ""}
        admin = AdminClient({"bootstrap.servers": theirs.bootstrap, "log_level": 0})
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in ends]).values():
            created.result(20)
        producers = {name: transaction(theirs.bootstrap, name, end) for name, end in ends.items()}
        plain = confluent_kafka.Producer({"bootstrap.servers": theirs.bootstrap, "log_level": 0})
        for name in ends:
            plain.produce(name, b"plain", partition=0)
        assert plain.flush(30) == 0
    finally:
        theirs.kill() if stop == "kill" else theirs.stop()
    before = {path: path.read_bytes() for path in theirs.data.rglob("*") if path.is_file()}
    assert adopt(theirs, "--dry-run").returncode == 0
    assert {path: path.read_bytes() for path in theirs.data.rglob("*") if path.is_file()} == before
    done = adopt(theirs)
    assert done.returncode == 0, done.stdout + done.stderr
    folder, settings = tmp_path / "ottla", {"group_initial_rebalance_delay_ms": "0"}
    ours = OttlaBroker(folder, bootstrap=theirs.bootstrap, log_dirs=str(theirs.data), **settings)
    try:
        records = [b"%d" % number for number in range(10)]
        assert committed(ours.bootstrap, "kept", 11) == [*records, b"plain"]
        assert committed(ours.bootstrap, "undone", 1) == [b"plain"]
        assert committed(ours.bootstrap, "pending", 0) == []
        producers["pending"].commit_transaction(60)
        assert committed(ours.bootstrap, "pending", 11) == [*records, b"plain"]
        for name in ("kept", "pending"):
            producers[name].begin_transaction()
            producers[name].produce(name, b"goes on", partition=0)
            producers[name].commit_transaction(60)
            assert committed(ours.bootstrap, name, 12)[-1] == b"goes on"
    finally:
        ours.stop()


def test_three_brokers_go_on_with_the_transactions_of_three_brokers(tmp_path: Path) -> None:
    """A broker of Kafka was killed before the others: its partition lacks the markers of two decided transactions."""
    with played(tmp_path / "kafka") as scene:
        scene.kill()
    store = tmp_path / "metadata.sqlite"
    done = adopt(scene.nodes[0], str(scene.nodes[1].data), str(scene.nodes[2].data), "--store", str(store))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Kafka was not stopped cleanly" in done.stderr

    def started(node: ApacheKafka) -> OttlaBroker:
        return OttlaBroker(
            tmp_path / f"ottla-{node.number}",
            bootstrap=node.bootstrap,
            node_id=str(node.number),
            log_dirs=str(node.data),
            ottla_metadata_store=f"embedded:{store}",
        )

    ours: list[OttlaBroker] = []
    try:
        with ThreadPoolExecutor(BROKERS) as pool:
            ours = list(pool.map(started, scene.nodes))
        [to_commit] = (name for name in scene.producers if name.startswith("to-commit"))
        assert committed(scene.bootstrap, LONELY, 2) == [b"%s-%d" % (to_commit.encode(), number) for number in (0, 1)]
        scene.producers["open"].commit_transaction(60)
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            scene.replaced.commit_transaction(60)
        assert caught.value.args[0].fatal(), "Kafka fenced this producer"
        scene.producers["fenced"].commit_transaction(60)
        scene.java()
        wanted = [*COMMITTED, "open-0", "open-1", "fenced-0", "fenced-1", "java", "java"]
        assert committed(scene.bootstrap, ORDERS, len(wanted)) == [value.encode() for value in wanted]
    finally:
        for broker in ours:
            broker.kill()


def test_adopts_what_kafka_wrote(tmp_path: Path) -> None:
    settings = {"log_segment_bytes": "1048576", "group_initial_rebalance_delay_ms": "0"}
    # The records have timestamps of years ago, which Kafka would delete half a minute after its start.
    theirs = ApacheKafka(tmp_path / "kafka", log_retention_ms="-1", **settings)
    try:
        names = {f"adopted-{codec}": codec for codec in CODECS}
        admin = AdminClient({"bootstrap.servers": theirs.bootstrap, "log_level": 0})
        wanted = [NewTopic(name, 1, 1) for name in names] + [NewTopic("adopted-large", 2, 1)]
        for created in admin.create_topics(wanted).values():
            created.result(20)
        CLIENTS[1].produce(theirs.bootstrap, names)
        size = ["--num-records", "40000", "--record-size", "100", "--throughput", "-1"]
        tool("producer-perf-test", "--topic", "adopted-large", *size, "--bootstrap-server", theirs.bootstrap)
        commit(theirs.bootstrap, "adopted-group", "adopted-lz4", 123)
        ids = topic_ids(theirs.bootstrap)
    finally:
        theirs.stop()
    done = adopt(theirs)
    assert done.returncode == 0, done.stdout + done.stderr
    ours = OttlaBroker(tmp_path / "ottla", log_dirs=str(theirs.data), group_initial_rebalance_delay_ms="0")
    try:
        assert {name: topic_id for name, topic_id in topic_ids(ours.bootstrap).items() if name in ids} == ids
        assert CLIENTS[1].digests(ours.bootstrap, list(names)) == dict.fromkeys(names, expected_digest())
        offsets = tool("get-offsets", "--bootstrap-server", ours.bootstrap, "--topic", "adopted-large")
        assert sum(int(line.rpartition(":")[2]) for line in offsets.split()) == 40_000
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=ours.bootstrap, group_id="adopted-group", enable_auto_commit=False
        )
        committed = consumer.committed(kafka.TopicPartition("adopted-lz4", 0), metadata=True)
        # librdkafka ends the metadata in a zero byte.
        assert (committed.offset, committed.metadata.rstrip("\0")) == (123, "where we were")
        consumer.close()
        producer = kafka.KafkaProducer(bootstrap_servers=ours.bootstrap)
        assert producer.send("adopted-none", b"goes on", partition=0).get(20).offset == 300
        producer.close()
    finally:
        ours.stop()
