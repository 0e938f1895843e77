"""A log directory that fails takes its partitions offline, and nothing else; a start without it loses nothing."""

from __future__ import annotations

import json
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
PRODUCE, FETCH, DESCRIBE_LOG_DIRS = 0, 1, 35
NONE, KAFKA_STORAGE_ERROR = 0, 56
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


def produce(wire: Wire, partition: int) -> int:
    batch = bytes(build_batch([Record(0, int(time.time() * 1000), b"key", b"value" * 100, [])]))
    data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}]
    answer = wire.call(PRODUCE, 9, {"acks": -1, "timeout_ms": 5000, "topic_data": data})
    error = int(answer.responses[0].partition_responses[0].error_code)
    acknowledged[partition] += error == NONE
    return error


def fetch(wire: Wire, partition: int) -> tuple[int, int]:
    """(error, high watermark)."""
    wanted = [{"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
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
        assert time.monotonic() < deadline, "it didn't come to that"
        time.sleep(0.1)


def page(path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP}{path}", timeout=10) as answer:
        return json.load(answer)


def others_serve(wire: Wire, healthy: set[int], lost: set[int]) -> bool:
    """Whether exactly the lost partitions answer KAFKA_STORAGE_ERROR."""
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
    assert only_copies == [f"{TOPIC}-{index}" for index in sorted(healthy)], "what is offline already isn't at risk"

    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert others_serve(wire, healthy, lost), "no empty log takes the place of one that can't be read"
        admin.create_topics([NewTopic("later", 2, 1)])["later"].result(20)
        assert len(list((tmp_path / "one").glob("later-[0-9]"))) == 2, "new topics go where there is a disk"
    assert page("/v1/caught-up")["offline"]["partitions"] == names_of_lost
    assert partitions_in(tmp_path / "one") == healthy

    (tmp_path / "two").unlink()
    (tmp_path / "two-aside").rename(tmp_path / "two")
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert others_serve(wire, healthy | lost, set())
        for partition in range(PARTITIONS):
            assert fetch(wire, partition) == (NONE, acknowledged[partition]), "all that was acknowledged is there"
