"""A log directory that Apache Kafka wrote becomes Ottla's: records, topic ids and offsets are as they were."""

import subprocess
import sys
import time
import uuid
from pathlib import Path

import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, NewTopic

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
            # The coordinator is new, and Apache Kafka's answer for a moment is that it is none.
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    consumer.close()


def test_adopts_what_kafka_wrote(tmp_path: Path) -> None:
    theirs = ApacheKafka(tmp_path / "kafka", log_segment_bytes="1048576", group_initial_rebalance_delay_ms="0")
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
    command = [str(Path(sys.executable).with_name("ottla")), "adopt", str(theirs.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
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
        # librdkafka ends it in a zero byte.
        assert (committed.offset, committed.metadata.rstrip("\0")) == (123, "where we were")
        consumer.close()
        producer = kafka.KafkaProducer(bootstrap_servers=ours.bootstrap)
        assert producer.send("adopted-none", b"goes on", partition=0).get(20).offset == 300
        producer.close()
    finally:
        ours.stop()
