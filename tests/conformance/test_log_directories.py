"""A broker with two log directories: it spreads partitions over them, and moves one while a client writes it
(KIP-113)."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.structs import TopicPartitionReplica

from tests.peers.apache_kafka import tool
from tests.peers.ottla_broker import OttlaBroker

INVALID_REPLICA_ASSIGNMENT = 39


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    directories = f"{tmp_path}/one,{tmp_path}/two"
    running = OttlaBroker(tmp_path, log_dirs=directories, log_segment_bytes="1048576", log_segment_delete_delay_ms="0")
    yield running
    running.stop()


def places(tmp_path: Path, topic: str) -> dict[int, str]:
    """Partition → the name of its log directory."""
    return {
        int(path.name.rpartition("-")[2]): path.parent.name
        for home in ("one", "two")
        for path in (tmp_path / home).glob(f"{topic}-[0-9]")
    }


class Writer(threading.Thread):
    """Writes consecutive numbers to partition 0 until `stopping` is set."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.errors: list[str] = []
        self.stopping = False
        self._topic = topic
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def run(self) -> None:
        number = 0
        while not self.stopping:
            self._send(number)
            number += 1
        self._producer.flush(30)

    def _send(self, number: int) -> None:
        def answered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.errors.append(str(error))

        while True:
            try:
                self._producer.produce(self._topic, b"%d" % number + b"." * 200, partition=0, on_delivery=answered)
                break
            except BufferError:  # the broker is slower than this loop
                self._producer.poll(0.1)
        self._producer.poll(0.0005)


def test_a_partition_moves_while_it_is_written(broker: OttlaBroker, tmp_path: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"moving": {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
    before = places(tmp_path, "moving")
    assert sorted(before.values()) == ["one", "one", "two", "two"]
    writer = Writer(broker.bootstrap, "moving")
    writer.start()
    replica = TopicPartitionReplica("moving", 0, 0)
    for _ in range(3):
        time.sleep(1)
        target = "two" if places(tmp_path, "moving")[0] == "one" else "one"
        result = admin.alter_replica_log_dirs({replica: str(tmp_path / target)})
        assert result[replica].errno == 0
        deadline = time.monotonic() + 30
        while places(tmp_path, "moving")[0] != target:
            assert time.monotonic() < deadline, broker.log_path.read_text()[-3000:]
            time.sleep(0.05)
    time.sleep(0.5)
    writer.stopping = True
    writer.join(60)
    assert not writer.errors
    assert numbers(broker.bootstrap) == writer.acknowledged
    assert admin.alter_replica_log_dirs({replica: "/nowhere"})[replica].errno == 57
    admin.close()
    broker.restart()
    assert places(tmp_path, "moving")[0] == target
    assert numbers(broker.bootstrap) == writer.acknowledged


def test_a_move_that_a_kill_interrupts_begins_anew(broker: OttlaBroker, tmp_path: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"moving": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    writer = Writer(broker.bootstrap, "moving")
    writer.start()
    while len(writer.acknowledged) < 3000:
        time.sleep(0.01)
    writer.stopping = True
    writer.join(60)
    throttle = "replica.alter.log.dirs.io.max.bytes.per.second"
    arguments = ("--bootstrap-server", broker.bootstrap, "--alter", "--entity-type", "brokers", "--entity-default")
    tool("configs", *arguments, "--add-config", f"{throttle}=20000")
    replica = TopicPartitionReplica("moving", 0, 0)
    source = places(tmp_path, "moving")[0]
    target = "two" if source == "one" else "one"
    assert admin.alter_replica_log_dirs({replica: str(tmp_path / source)})[replica].errno == 0, (
        "a move to the replica's present directory changes nothing"
    )
    assert admin.alter_replica_log_dirs({replica: str(tmp_path / target)})[replica].errno == 0
    admin.close()

    future = described(broker.bootstrap, tmp_path / target)
    assert (future["partition"], future["isFuture"]) == ("moving-0", True)
    assert 0 < future["offsetLag"] <= len(writer.acknowledged)
    current = described(broker.bootstrap, tmp_path / source)
    assert (current["isFuture"], current["offsetLag"]) == (False, 0)
    broker.kill()
    broker.start_again()
    assert places(tmp_path, "moving")[0] == source
    assert described(broker.bootstrap, tmp_path / target)["isFuture"]
    tool("configs", *arguments, "--delete-config", throttle)
    broker.restart()
    deadline = time.monotonic() + 30
    while places(tmp_path, "moving")[0] != target:
        assert time.monotonic() < deadline, broker.log_path.read_text()[-3000:]
        time.sleep(0.05)
    assert numbers(broker.bootstrap) == writer.acknowledged


def described(bootstrap: str, home: Path) -> dict[str, Any]:
    """The entry of the one replica in a log directory, as Kafka's own `kafka-log-dirs --describe` prints it."""
    printed = tool("log-dirs", "--bootstrap-server", bootstrap, "--describe", "--topic-list", "moving")
    found = json.loads(printed.splitlines()[-1])["brokers"][0]["logDirs"]
    (replica,) = next(item["partitions"] for item in found if item["logDir"] == str(home))
    return dict(replica)


def numbers(bootstrap: str) -> list[int]:
    """The numbers in partition 0, in order."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None, check_crcs=True)
    partition = TopicPartition("moving", 0)
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < end and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found.extend(int(record.value.rstrip(b".")) for record in records)
    consumer.close()
    return found


def test_a_cordoned_directory_gets_no_new_replicas_and_says_so(broker: OttlaBroker, tmp_path: Path) -> None:
    """The cases of Kafka's CordonedLogDirsIntegrationTest, except those in which all directories of a broker are
    cordoned."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    confluent = AdminClient({"bootstrap.servers": broker.bootstrap})
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    admin.create_topics({"before": {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
    before = places(tmp_path, "before")

    def cordon(value: str) -> None:
        entry = ConfigEntry("cordoned.log.dirs", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[entry])
        confluent.incremental_alter_configs([resource])[resource].result(10)

    with pytest.raises(confluent_kafka.KafkaException, match="must be present in"):
        cordon("/elsewhere")
    cordon(one)
    (described,) = admin.describe_log_dirs()
    assert {each["log_dir"]: each["is_cordoned"] for each in described["log_dirs"]} == {one: True, two: False}
    admin.create_topics({"after": {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
    assert set(places(tmp_path, "after").values()) == {"two"}
    assert places(tmp_path, "before") == before
    assert (
        admin.alter_replica_log_dirs({TopicPartitionReplica("after", 0, 0): one})[
            TopicPartitionReplica("after", 0, 0)
        ].errno
        == INVALID_REPLICA_ASSIGNMENT
    )
    admin.close()
    broker.restart()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"later": {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
    assert set(places(tmp_path, "later").values()) == {"two"}, "a restart doesn't lift the cordon"
    cordon("")
    admin.create_topics({"again": {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
    assert set(places(tmp_path, "again").values()) == {"one"}, (
        "the directory with the fewest replicas gets new replicas"
    )
    admin.close()
