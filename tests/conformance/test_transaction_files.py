"""The files of a log with transactions. Apache Kafka's dump tool reads the files that Ottla writes. From the batches of
a log that Apache Kafka wrote, Ottla rebuilds the same transaction indexes and producer snapshots."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.log.config import LogConfig
from ottla.cli.log_verification import verify
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.markers import Marker, marker_batch
from ottla.storage.producer_snapshot import SnapshotEntry, read_snapshot
from tests.peers.apache_kafka import ApacheKafka, tool
from tests.unit.broker.log.workbench import Workbench, append

INDEXED = re.compile(r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")
SEGMENT_BYTES = 1 << 20  # the least that Apache Kafka accepts


def test_dump_log_reads_our_transactions(tmp_path: Path) -> None:
    """One transaction is committed, the next is aborted, the last stays open."""
    log = Workbench(tmp_path / "t-0").log()
    for producer, committed in ((7, True), (8, False), (9, None)):
        records = [Record(0, 1000, b"key", b"value")]
        data = build_batch(records, producer_id=producer, producer_epoch=3, base_sequence=0, transactional=True)
        append(log, bytearray(data))
        if committed is not None:
            append(log, marker_batch(producer, 4, Marker(committed, 5, 2000)))
    log.close()
    batches, index, snapshot = (
        tool("dump-log", "--deep-iteration", "--files", str(path))
        for path in (
            tmp_path / f"t-0/{0:020d}.log",
            tmp_path / f"t-0/{0:020d}.txnindex",
            tmp_path / f"t-0/{log.log_end_offset:020d}.snapshot",
        )
    )
    assert "isvalid: false" not in batches
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", batches) == [("COMMIT", "5"), ("ABORT", "5")]
    assert INDEXED.findall(index) == [("8", "2", "3", "4")]
    states = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: OptionalLong(\S+)",
        snapshot,
    )
    assert states == [("7", "4", "5", ".empty"), ("8", "4", "5", ".empty"), ("9", "3", "-1", "[4]")]


def test_indexes_and_snapshots_are_rebuilt_as_apache_kafka_wrote_them(tmp_path: Path) -> None:
    theirs = ApacheKafka(tmp_path / "kafka")
    try:
        write_transactions(theirs.bootstrap, "t")
    finally:
        theirs.stop()
    written = theirs.data / "t-0"
    assert list(verify(str(written))) == []
    ours = tmp_path / "t-0"
    shutil.copytree(written, ours, ignore=shutil.ignore_patterns("*index", "*.snapshot"))
    log = Workbench(ours, config=LogConfig(segment_bytes=SEGMENT_BYTES)).log(clean=False)
    log.close()
    assert len(log.segments) > 2
    assert indexes(ours) == indexes(written)
    assert len(indexes(ours)) > 1
    assert len(log.snapshots) > 1
    for offset in log.snapshots:
        name = f"{offset:020d}.snapshot"
        assert known_to_apache_kafka(ours / name) == known_to_apache_kafka(written / name)


def write_transactions(bootstrap: str, topic: str) -> None:
    """Two producers write transactions beside each other, into several segments; some are aborted by their producers,
    some by the next producer with the same transactional id, and one stays open."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"segment.bytes": str(SEGMENT_BYTES)}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
    first, second = begun(bootstrap, "first"), begun(bootstrap, "second")
    for number in range(12):
        for producer in (first, second):
            write(producer, topic)
        if number % 3 == 0:
            first.abort_transaction(30)
        else:
            first.commit_transaction(30)
        if number % 4 == 1:
            second = begun(bootstrap, "second")
        elif number % 4 == 3:
            second.abort_transaction(30)
            second.begin_transaction()
        first.begin_transaction()
    write(first, topic)


def begun(bootstrap: str, transactional_id: str) -> confluent_kafka.Producer:
    """A producer that has begun a transaction. One that was open with the same id is aborted."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def write(producer: confluent_kafka.Producer, topic: str) -> None:
    for _ in range(2):
        producer.produce(topic, bytes(80_000), partition=0)
        assert producer.flush(30) == 0


def indexes(folder: Path) -> dict[str, bytes]:
    """The transaction indexes with entries."""
    return {path.name: content for path in folder.glob("*.txnindex") if (content := path.read_bytes())}


def known_to_apache_kafka(snapshot: Path) -> Sequence[SnapshotEntry]:
    """The producers in a snapshot, each with its last batch: earlier batches aren't in Apache Kafka's."""
    found = read_snapshot(snapshot.read_bytes())
    return sorted(entry._replace(batches=entry.batches[-1:]) for entry in found)
