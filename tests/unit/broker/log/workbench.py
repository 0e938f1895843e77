"""Helpers for the tests of the log: a log directory with a clock of its own, and batches to append."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ottla.broker.log.compaction_child import Job, compact
from ottla.broker.log.config import LogConfig
from ottla.broker.log.deletion import Deletions, remove
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.directory_services import DirectoryServices
from ottla.broker.log.disk import Disk, RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.owner import Owner
from ottla.broker.log.recovery import Opened, open_log
from ottla.broker.log.segment import OpenFiles, Sizes
from ottla.protocol.batches import (
    Record,
    assign,
    build_batch,
    iterate_headers,
    read_header,
    records,
    stamp_append_time,
)
from ottla.protocol.codecs import Codec
from ottla.protocol.markers import Marker, marker_batch

ALONE = Owner(
    high_watermark_of=lambda log: log.log_end_offset,
    went_offline=lambda logs: None,
    room_again=lambda: None,
    none_left=lambda: None,
)
"""The owner of log directories without a broker: all their records are committed."""


@dataclass
class Workbench:
    """The directory of one partition, with its log's surroundings."""

    path: Path
    config: LogConfig = field(default_factory=lambda: LogConfig(segment_bytes=4096, index_interval_bytes=256))
    now_ms: int = 1_000_000
    open_files: int = 100
    disk: Disk = field(default_factory=RealDisk)

    def __post_init__(self) -> None:
        self.deletions = Deletions()
        self.wanting: list[Log] = []
        self.errors: list[OSError] = []
        self.path.mkdir(exist_ok=True)
        self.services = DirectoryServices(
            self.disk,
            self.deletions,
            OpenFiles(self.open_files),
            lambda: self.now_ms,
            self.wanting.append,
            lambda log, error: self.errors.append(error),
        )

    def open(
        self,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        compacted_to: int = 0,
        high_watermark: int = 0,
    ) -> Opened:
        return open_log(
            self.services,
            str(self.path),
            "topic",
            0,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            compacted_to=compacted_to,
            high_watermark=high_watermark,
        )

    def log(self, *, clean: bool = True, recovery_point: int = 0, log_start_offset: int = 0) -> Log:
        return self.open(clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset).log

    def sweep(self) -> None:
        remove(self.disk, self.deletions.due(self.now_ms))

    def files(self, *suffixes: str) -> dict[str, bytes]:
        return {
            item.name: item.read_bytes()
            for item in sorted(self.path.iterdir())
            if not suffixes or item.name.endswith(suffixes)
        }


def open_directories(
    *paths: Path,
    config: LogConfig,
    disk: Disk | None = None,
    cluster_id: str = "c",
    node_id: int = 1,
    owner: Owner = ALONE,
) -> LogDirectories:
    """A broker's opened log directories; their clock always shows 5 s."""
    logs = LogDirectories([str(path) for path in paths], lambda: 5000, owner, disk=disk)
    logs.open(cluster_id, node_id, lambda topic: config)
    return logs


def crash(logs: LogDirectories) -> None:
    """Leaves the log directories as if their process had been killed: another process may open them."""
    logs._homes.release()


def batch_of(
    values: list[bytes],
    *,
    timestamp: int = 1000,
    key: bytes | None = b"k",
    producer: tuple[int, int, int] | None = None,
    codec: int = 0,
) -> bytearray:
    """A batch without an offset; `producer` is (id, epoch, base sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    items = [Record(index, timestamp + index, key, value) for index, value in enumerate(values)]
    made = build_batch(items, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return bytearray(made)


def append(log: Log, batch: bytearray, epoch: int = 0) -> int:
    """Appends as a leader does; returns the base offset."""
    base = log.log_end_offset
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch)
    return base


def transact(log: Log, producer: int, sequence: int, *, committed: bool, key: bytes = b"k", epoch: int = 0) -> None:
    """Appends a transaction of one batch, and its marker."""
    made = [Record(0, 1000, key, b"committed" if committed else b"aborted")]
    batch = build_batch(made, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
    append(log, bytearray(batch), epoch)
    append(log, marker_batch(producer, 0, Marker(committed, 0, 1000)), epoch)


def fill(log: Log, count: int, *, size: int = 20, start: int = 0) -> None:
    """Appends `count` batches of 1 to 3 records with growing timestamps."""
    for index in range(start, start + count):
        append(
            log,
            batch_of([b"%d-%d" % (index, n) + bytes(size) for n in range(index % 3 + 1)], timestamp=1000 + index * 10),
        )


def contents(log: Log, start: int | None = None, max_bytes: int = 700) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record, fetched as a consumer does."""
    offset = log.log_start_offset if start is None else start
    found: list[tuple[int, bytes | None]] = []
    while offset < log.log_end_offset:
        data = log.read_bytes(offset, max_bytes, log.log_end_offset)
        before = offset
        for position, header in iterate_headers(data):
            found.extend(
                (record.offset, record.value)
                for record in records(data[position : position + header.size])
                if record.offset >= offset
            )
            offset = header.last_offset + 1
        if offset == before:
            break
    return found


def write_sample(path: Path) -> Path:
    """Writes a partition's directory with everything that a log can have, for tools that read Kafka's files: several
    segments, every codec, idempotent batches, leader epochs, append time, tombstones, compacted and empty batches, a
    clean end."""
    bench = Workbench(path, config=LogConfig(segment_bytes=6000, index_interval_bytes=500, delete_retention_ms=1))
    log = bench.log()
    sequence = 0
    for index in range(150):
        codec = list(Codec)[index % len(Codec)]
        base = log.log_end_offset
        made = []
        for at in range(index % 4 + 1):
            key = b"key-%d" % (index if index % 3 == 0 else index % 7)
            value = None if at == 2 else b"value-%d" % index * 9
            made.append(Record(base + at, 1000 + index * 10 + at, key, value))
        batch = bytearray(
            build_batch(made, base_offset=base, codec=codec, producer_id=9, producer_epoch=1, base_sequence=sequence)
        )
        sequence += len(made)
        if index % 10 == 9:
            stamp_append_time(batch, 0, 1000 + index * 10 + 9)
        assign(batch, 0, base, index // 40)
        log.append(batch, read_header(batch), base, index // 40)
    ends = [segment.base_offset for segment in log.segments[1:]]
    job = Job(
        directory=log.directory,
        segments=[
            [segment.base_offset, end, segment.size, segment.offsets.size_bytes]
            for segment, end in zip(log.segments, ends, strict=False)
        ],
        first_dirty=0,
        end_offset=ends[2],
        now_ms=bench.now_ms,
        delete_retention_ms=1,
        segment_bytes=6000,
        segment_index_bytes=10_000,
        index_interval_bytes=500,
        aborted=[],
        producers=[],
        keys_max=1000,
        bytes_per_second=float("inf"),
    )
    job = replace(job, segments=job.segments[:3])
    for segment in compact(job, bench.disk, lambda count: None).segments:
        log.swap_in(segment.old_bases, Sizes(*segment.sizes))
    log.close()
    bench.now_ms += 10**9
    bench.sweep()
    return path
