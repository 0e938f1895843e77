"""A log directory that fails takes its partitions offline, and no others. A start without this directory loses no
record. A fault of one log takes no other log offline."""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.batches import Record, build_batch
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port

TOPIC = "spread"
PARTITIONS = 4
PRODUCE, FETCH, LIST_OFFSETS, DESCRIBE_LOG_DIRS = 0, 1, 2, 35
NONE, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR = 0, 2, 56
BATCHES = 5
HTTP = free_port()


@pytest.mark.timeout(60)
def test_without_any_log_directory_the_broker_stops(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'metadata'}"
    broker = OttlaBroker(tmp_path, ottla_metadata_store=store, replica_high_watermark_checkpoint_interval_ms="300")
    try:
        broker.data.rename(tmp_path / "aside")
        broker.data.write_text("not a directory")
        assert broker.process.wait(20) == 1
    finally:
        broker.process.kill()
    assert "every log directory has failed: the broker stops" in broker.log_path.read_text()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    running = OttlaBroker(
        tmp_path,
        log_dirs=f"{tmp_path}/one,{tmp_path}/two",
        replica_high_watermark_checkpoint_interval_ms="300",
        ottla_http_listener=f"127.0.0.1:{HTTP}",
    )
    yield running
    running.stop()


acknowledged: Counter[int] = Counter()  # by partition


def produce(wire: Wire, partition: int, timestamp_ms: int | None = None) -> int:
    when = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    batch = bytes(build_batch([Record(0, when, b"key", b"value" * 100, [])]))
    data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}]
    answer = wire.call(PRODUCE, 9, {"acks": -1, "timeout_ms": 5000, "topic_data": data})
    error = int(answer.responses[0].partition_responses[0].error_code)
    acknowledged[partition] += error == NONE
    return error


def fetch(wire: Wire, partition: int, offset: int = 0) -> tuple[int, int]:
    """Fetches from a partition, and returns (error, high watermark)."""
    wanted = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
    topics = [{"topic": TOPIC, "partitions": wanted}]
    message = {"replica_id": -1, "max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics}
    answer = wire.call(FETCH, 11, message)
    found = answer.responses[0].partitions[0]
    return int(found.error_code), int(found.high_watermark)


def partitions_in(home: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in home.glob(f"{TOPIC}-[0-9]")}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "the condition wasn't met within 15 s"
        time.sleep(0.1)


def page(path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP}{path}", timeout=10) as answer:
        return json.load(answer)


def find(wire: Wire, partition: int, timestamp_ms: int) -> tuple[int, int]:
    """Looks up a timestamp by ListOffsets, and returns (error, offset)."""
    topics = [{"name": TOPIC, "partitions": [{"partition_index": partition, "timestamp": timestamp_ms}]}]
    answer = wire.call(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    found = answer.topics[0].partitions[0]
    return int(found.error_code), int(found.offset)


def offline_replicas() -> int:
    """The broker's number of offline replicas, from its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("kafka_server_replicamanager_offlinereplicacount ")]
    return int(float(line.split()[1]))


def others_serve(wire: Wire, healthy: set[int], lost: set[int]) -> bool:
    """Whether Produce and Fetch requests get KAFKA_STORAGE_ERROR for the lost partitions, and no error for the healthy
    ones."""
    errors = {partition: produce(wire, partition) for partition in healthy | lost}
    reads = {partition: fetch(wire, partition)[0] for partition in healthy | lost}
    expected = dict.fromkeys(healthy, NONE) | dict.fromkeys(lost, KAFKA_STORAGE_ERROR)
    return errors == expected and reads == expected


@pytest.mark.timeout(120)
def test_failed_log_directory(broker: OttlaBroker, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
    healthy, lost = partitions_in(tmp_path / "one"), partitions_in(tmp_path / "two")
    assert len(healthy) == len(lost) == 2
    with Wire(broker.bootstrap) as wire:
        for partition in range(PARTITIONS):
            assert [produce(wire, partition) for _ in range(BATCHES)] == [NONE] * BATCHES

        (tmp_path / "two").rename(tmp_path / "two-aside")
        (tmp_path / "two").write_text("not a directory")
        eventually(lambda: others_serve(wire, healthy, lost))
        states = {item.log_dir: item.error_code for item in wire.call(DESCRIBE_LOG_DIRS, 4, {"topics": None}).results}
        assert states == {str(tmp_path / "one"): NONE, str(tmp_path / "two"): KAFKA_STORAGE_ERROR}
    assert f"log directory {tmp_path}/two has failed" in broker.log_path.read_text()
    names_of_lost = [f"{TOPIC}-{index}" for index in sorted(lost)]
    assert page("/v1/caught-up")["offline"]["partitions"] == names_of_lost
    only_copies = page("/v1/restart-risk")["risks"]["only_copy"]["partitions"]
    assert only_copies == [f"{TOPIC}-{index}" for index in sorted(healthy)], (
        "a restart doesn't endanger partitions that are offline already"
    )

    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert others_serve(wire, healthy, lost), "no empty log takes the place of a log that can't be read"
        admin.create_topics([NewTopic("later", 2, 1)])["later"].result(20)
        assert len(list((tmp_path / "one").glob("later-[0-9]"))) == 2, "new topics go to the directory that works"
    assert page("/v1/caught-up")["offline"]["partitions"] == names_of_lost
    assert offline_replicas() == len(lost), (
        "the offline replicas are counted after a start without their log directory, too"
    )
    assert partitions_in(tmp_path / "one") == healthy

    (tmp_path / "two").unlink()
    (tmp_path / "two-aside").rename(tmp_path / "two")
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert others_serve(wire, healthy | lost, set())
        for partition in range(PARTITIONS):
            assert fetch(wire, partition) == (NONE, acknowledged[partition]), "the log has all acknowledged records"


@pytest.mark.timeout(120)
def test_a_misleading_index_costs_one_log(broker: OttlaBroker, tmp_path: Path) -> None:
    """A look-up in an index with wrong positions takes only the index's log offline. Before the fix, such a look-up
    took the whole log directory offline."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config={"index.interval.bytes": "1000"})])[TOPIC].result(20)
    bad, good = sorted(partitions_in(tmp_path / "one"))
    now_ms = int(time.time() * 1000)
    with Wire(broker.bootstrap) as wire:
        for number in range(30):
            assert produce(wire, bad, now_ms + number) == produce(wire, good, now_ms + number) == NONE
    broker.restart()
    (index,) = (tmp_path / "one" / f"{TOPIC}-{bad}").glob("*.index")
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    assert len(entries) > 5
    offset = entries[2][0]
    behind = offset + 1
    with index.open("r+b") as file:
        file.seek(2 * 8)
        file.write(struct.pack(">ii", offset, -7))
    with Wire(broker.bootstrap) as wire:
        assert find(wire, bad, now_ms + behind)[0] == CORRUPT_MESSAGE
        assert fetch(wire, bad, behind)[0] == CORRUPT_MESSAGE
        assert fetch(wire, bad, 0) == (NONE, 30)
        assert find(wire, good, now_ms + behind) == (NONE, behind)
        assert fetch(wire, good, behind) == (NONE, 30)
        assert produce(wire, good) == produce(wire, bad) == NONE
    assert offline_replicas() == 0
