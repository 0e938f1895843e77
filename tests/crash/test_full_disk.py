"""A full log directory: no unwritten record is acknowledged, reads go on, and writes go on once there is room."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.volumes import small_volume
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import free_port

VOLUME_BYTES = 24 << 20
RECORD = b"r" * 10_000


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_volume(tmp_path / "volume", VOLUME_BYTES) as path:
        yield path


@pytest.fixture
def metrics_port() -> int:
    return free_port()


@pytest.fixture(params=["metadata elsewhere", "metadata on the same volume"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, volume: Path, metrics_port: int) -> Iterator[OttlaBroker]:
    store = f"embedded:{tmp_path / 'metadata'}" if request.param == "metadata elsewhere" else "embedded"
    settings = {
        "log_dirs": str(volume / "data"),
        "log_segment_bytes": "4194304",
        "log_index_size_max_bytes": "65536",
        "offsets_topic_num_partitions": "2",
        "ottla_metadata_store": store,
        "ottla_http_listener": f"127.0.0.1:{metrics_port}",
    }
    running = OttlaBroker(tmp_path, **settings)
    yield running
    running.stop()


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)


def produce(bootstrap: str, topic: str, numbers: range, timeout_ms: int = 3000) -> tuple[list[int], list[str]]:
    """Produces a record for each number, and returns (acknowledged numbers, errors)."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": timeout_ms,
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    acknowledged, errors = list[int](), list[str]()

    def answered(number: int) -> Callable[..., None]:
        return lambda error, _: acknowledged.append(number) if error is None else errors.append(str(error))

    for number in numbers:
        producer.produce(topic, b"%d " % number + RECORD, on_delivery=answered(number))
        producer.poll(0)
    producer.flush(60)
    return acknowledged, errors


def consume(bootstrap: str, topic: str) -> list[int]:
    """Reads the partition, and returns the numbers in its records."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    )
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = list[int]()
    deadline = time.monotonic() + 30
    while len(found) < end and time.monotonic() < deadline:
        found.extend(int(message.value().split()[0]) for message in consumer.consume(500, timeout=1) if message.value())
    consumer.close()
    return found


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


@pytest.mark.timeout(180)
def test_full_disk(broker: OttlaBroker, volume: Path, metrics_port: int) -> None:
    create(broker.bootstrap, "filled")
    first, errors = produce(broker.bootstrap, "filled", range(100))
    assert not errors
    ballast = volume / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError:
            pass

    acknowledged, errors = produce(broker.bootstrap, "filled", range(100, 600))
    assert len(errors) > 300
    assert consume(broker.bootstrap, "filled") == first + acknowledged, (
        "reads go on, and return the acknowledged records"
    )
    assert "is full" in broker.log_path.read_text()
    assert metric(metrics_port, "ottla_log_directories_full") == 1
    if not list(volume.glob("data/*metadata*")):  # a metadata store on this volume is full, too
        broker.kill()
        broker.start_again()
        assert consume(broker.bootstrap, "filled") == first + acknowledged, (
            "a broker that starts without room serves reads"
        )

    ballast.unlink()
    time.sleep(2)
    later, errors = produce(broker.bootstrap, "filled", range(600, 700), timeout_ms=20_000)
    assert not errors
    found = consume(broker.bootstrap, "filled")
    written = first + acknowledged + later
    assert [number for number in found if number in set(written)] == written
    assert len(found) == len(set(found)), "nothing twice"
    assert metric(metrics_port, "ottla_log_directories_full") == 0
    assert "has room again" in broker.log_path.read_text()
    broker.restart()
    assert consume(broker.bootstrap, "filled") == found
