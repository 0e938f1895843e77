"""A consumer's first OffsetFetch comes while commits aren't replicated: the consumer recovers by itself afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.errors import ErrorCode
from tests.peers.ottla_cluster import ottla_cluster
from tests.peers.wire import Wire

OFFSET_COMMIT = 8
RECORDS = 10
SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "offsets_commit_timeout_ms": "1000",
    "replica_lag_time_max_ms": "60000",
    "broker_session_timeout_ms": "60000",
}


def test_clients_read_on_after_their_offset_fetch_came_at_a_bad_time(tmp_path: Path) -> None:
    """A follower is paused, and commits wait for it. librdkafka would never ask again after NOT_COORDINATOR."""
    with ottla_cluster(tmp_path, 2, **SETTINGS) as cluster:
        cluster.wait("a coordinator", lambda: cluster.coordinator("g") >= 0)
        coordinator = cluster.coordinator("g")
        follower = cluster.brokers[1 - coordinator]
        bootstrap = cluster.brokers[coordinator].bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", replica_assignment=[[coordinator]], num_partitions=1)])["t"].result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number)
        assert producer.flush(30) == 0
        cluster.wait_until_in_sync("__consumer_offsets", 1, 2)
        follower.pause()
        assert commit(bootstrap) == ErrorCode.coordinator_not_available, "the commit isn't replicated"
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        )
        consumer.assign([confluent_kafka.TopicPartition("t", 0)])
        said: list[str] = []
        python = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id="python",
            auto_offset_reset="earliest",
            isolation_level="read_committed",  # only this isolation level asks for stable offsets
            enable_auto_commit=False,
        )
        python.assign([kafka.TopicPartition("t", 0)])
        assert read(consumer, 3.0, said) == 0
        assert read_in_python(python, 3.0) == 0
        follower.go_on()
        assert read(consumer, 30.0, said) == RECORDS, said
        assert read_in_python(python, 30.0) == RECORDS
        consumer.close()
        python.close()


def commit(bootstrap: str) -> int:
    """Commits an offset for another group in the same partition of `__consumer_offsets`; returns the error code."""
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    message = {"group_id": "other", "member_id": "", "topics": [{"name": "t", "partitions": [offset]}]}
    with Wire(bootstrap) as wire:
        return int(wire.call(OFFSET_COMMIT, 2, message).topics[0].partitions[0].error_code)


def read(consumer: confluent_kafka.Consumer, seconds: float, said: list[str]) -> int:
    """The number of records that librdkafka's consumer gets within `seconds`, at most RECORDS. Errors are appended to
    `said`."""
    found = 0
    deadline = time.monotonic() + seconds
    while found < RECORDS and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if (error := message.error()) is None:
            found += 1
        else:
            said.append(str(error))
    return found


def read_in_python(consumer: kafka.KafkaConsumer, seconds: float) -> int:
    """As `read`, for kafka-python, which raises errors that it doesn't retry."""
    found = 0
    deadline = time.monotonic() + seconds
    while found < RECORDS and time.monotonic() < deadline:
        found += sum(len(records) for records in consumer.poll(timeout_ms=200).values())
    return found
