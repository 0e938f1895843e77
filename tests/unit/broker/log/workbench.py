"""What the tests of the log share: a log directory with a clock of its own, and batches to put into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ottla.broker.log.config import LogConfig
from ottla.broker.log.deletion import Deletions, remove
from ottla.broker.log.disk import Disk, RealDisk
from ottla.broker.log.log import Log, LogSurroundings
from ottla.broker.log.recovery import Opened, open_log
from ottla.broker.log.segment import OpenFiles
from ottla.protocol.batches import Record, assign, build_batch, iterate_headers, read_header, records


@dataclass
class Workbench:
    """One partition's directory."""

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
        self.surroundings = LogSurroundings(
            self.disk,
            self.deletions,
            OpenFiles(self.open_files),
            lambda: self.now_ms,
            self.wanting.append,
            self.errors.append,
        )

    def open(self, *, clean: bool = True, recovery_point: int = 0, log_start_offset: int = 0) -> Opened:
        return open_log(
            self.surroundings,
            str(self.path),
            "topic",
            0,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
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


def batch_of(
    values: list[bytes],
    *,
    timestamp: int = 1000,
    key: bytes | None = b"k",
    producer: tuple[int, int, int] | None = None,
) -> bytearray:
    """An unplaced batch; `producer` is (id, epoch, base sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    items = [Record(index, timestamp + index, key, value) for index, value in enumerate(values)]
    return bytearray(build_batch(items, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def append(log: Log, batch: bytearray, epoch: int = 0) -> int:
    """Appends as a leader does; the base offset."""
    base = log.log_end_offset
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch)
    return base


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
