"""The process that compacts one log: reads a job from standard input, writes `.cleaned` segments, prints the result.

Input and output are lines of JSON. The output is one line with the result or the damage. The input is one line with the
job, then lines with some of the job's producers each: there may be a hundred thousand of them, and the thread that
encodes them shares the interpreter with the broker's event loop.

It is a process of its own, because a compaction decompresses and copies for minutes. The process changes only its new
files; the broker swaps them in, or drops them if the log changed meanwhile. The process keeps to a limit of the rate at
which it reads and writes, and ends when the broker ends.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any

from ottla.protocol.batches import BatchHeader, crc_valid
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.storage import names
from ottla.storage.indexes import AbortedTransaction, aborted_transactions

from .compaction import Cleaning, SegmentSizes, Throttle, filtered, grouped, note_keys
from .config import LogConfig
from .disk import Disk, RealDisk
from .segment import OpenFiles, Segment

DAMAGED_STATUS = 3  # the process's exit status for damage; 1 and 2 are Python's own
_PRODUCERS_A_LINE = 500


class Damaged(Exception):
    """The log is damaged at `offset`: no further try can compact the log."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Job:
    """One log to compact. Offsets from `first_dirty` to `end_offset` are dirty; `segments` are the segments below the
    end."""

    directory: str
    segments: list[list[int]]  # of each segment: base offset, end offset, size and index size in bytes
    first_dirty: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    aborted: list[list[int]]  # transactions that began below `end_offset`, and whose markers are at or above it
    producers: Iterable[Sequence[int]]  # (id, last data offset, epoch) of each producer; iterated over once
    keys_max: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that replaces the segments `old_bases`. `sizes` are those of `Sizes`, in their order."""

    old_bases: list[int]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Result:
    """`end_offset`: the log is clean below it. `too_large` counts the batches that stayed as they are, because they
    unpack to more bytes than the child's limit."""

    end_offset: int
    segments: list[NewSegment]
    bytes_before: int
    bytes_after: int
    too_large: int


def encode_job(job: Job) -> Iterator[bytes]:
    """A job, encoded as lines. Each line takes a fraction of a millisecond, so the caller can let the event loop run
    between two lines."""
    yield _line({field.name: getattr(job, field.name) for field in fields(job) if field.name != "producers"})
    producers = iter(job.producers)
    while some := list(islice(producers, _PRODUCERS_A_LINE)):
        yield _line(some)


def encode_damage(damage: Damaged) -> bytes:
    """The line that is printed instead of a result where the log is damaged."""
    return _line({"message": str(damage), "offset": damage.offset})


def decode_damage(line: bytes) -> Damaged:
    """Decodes the damage in a line of `encode_damage`."""
    return Damaged(**json.loads(line))


def encode_result(result: Result) -> bytes:
    """A result, encoded as a line."""
    return _line(asdict(result))


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode_job(lines: bytes) -> Job:
    """The job in the lines of `encode_job`."""
    first, *others = lines.splitlines()
    return Job(**json.loads(first), producers=[producer for line in others for producer in json.loads(line)])


def decode_result(line: bytes) -> Result:
    """Decodes the result in a line of `encode_result`."""
    found: dict[str, Any] = json.loads(line)
    found["segments"] = [NewSegment(**item) for item in found["segments"]]
    return Result(**found)


def compact(job: Job, disk: Disk, pause: Callable[[int], None]) -> Result:
    """Compacts the log that the job names. `pause` is called with each count of bytes read or written, and waits for as
    long as the rate demands.

    Raises Damaged, OSError; the `.cleaned` files are left for the broker to remove.
    """
    compaction = _Compaction(job, disk, pause)
    try:
        return compaction.run()
    except (ValueError, KafkaError, ProtocolError) as error:
        raise Damaged(f"{job.directory}: {error}", compaction.offset) from error


class _Compaction:
    def __init__(self, job: Job, disk: Disk, pause: Callable[[int], None]) -> None:
        self.job = job
        self.disk = disk
        self.pause = pause
        self.offset = job.first_dirty  # of the batch that is being read
        self.open_files = OpenFiles()
        self.config = LogConfig(
            segment_bytes=job.segment_bytes,
            segment_index_bytes=job.segment_index_bytes,
            index_interval_bytes=job.index_interval_bytes,
        )
        self.sizes = [SegmentSizes(base, end, size, index, -1) for base, end, size, index in job.segments]
        self.cleaning = Cleaning(
            job.now_ms,
            job.delete_retention_ms,
            producers={producer_id: (offset, epoch) for producer_id, offset, epoch in job.producers},
            aborted=[
                *(entry for sizes in self.sizes for entry in self._aborted(sizes.base_offset)),
                *(AbortedTransaction(*entry) for entry in job.aborted),
            ],
        )

    def run(self) -> Result:
        self._build_map()
        end = self.cleaning.end_offset
        below = [sizes for sizes in self.sizes if sizes.base_offset < end]
        groups = grouped(below, segment_bytes=self.job.segment_bytes, segment_index_bytes=self.job.segment_index_bytes)
        self.cleaning.segment_ends = frozenset(group[-1].end_offset for group in groups)
        written = [self._clean(group) for group in groups]
        return Result(
            end,
            written,
            sum(sizes.size for sizes in below),
            sum(segment.sizes[0] for segment in written),
            self.cleaning.too_large,
        )

    def _segment(self, sizes: SegmentSizes) -> Segment:
        return Segment(self.disk, self.job.directory, sizes.base_offset, open_files=self.open_files, size=sizes.size)

    def _batches(self, sizes: SegmentSizes) -> Iterator[tuple[BatchHeader, memoryview]]:
        segment = self._segment(sizes)
        self.offset = sizes.base_offset
        for position, header, batch in segment.batches():
            self.offset = header.base_offset
            self.pause(header.size)
            if not crc_valid(batch, 0, header.size):
                raise ValueError(f"{segment.path} has a wrong CRC at position {position}")
            yield header, batch
            self.offset = header.last_offset + 1
        segment.let_go()

    def _build_map(self) -> None:
        """Reads the keys of the dirty batches. When the map is full, the rest is left for a later round."""
        self.cleaning.end_offset = self.job.first_dirty
        for sizes in self.sizes:
            if sizes.end_offset <= self.job.first_dirty:
                continue
            for header, batch in self._batches(sizes):
                if header.last_offset < self.job.first_dirty:
                    continue
                if header.base_offset >= self.job.end_offset or len(self.cleaning.latest) >= self.job.keys_max:
                    return
                note_keys(self.cleaning, batch, header)
            if len(self.cleaning.latest) < self.job.keys_max:
                self.cleaning.end_offset = max(self.cleaning.end_offset, min(sizes.end_offset, self.job.end_offset))

    def _clean(self, group: Sequence[SegmentSizes]) -> NewSegment:
        new = Segment(
            self.disk, self.job.directory, group[0].base_offset, open_files=self.open_files, suffix=names.CLEANED
        )
        new.begin()
        for sizes in group:
            for header, batch in self._batches(sizes):
                kept = filtered(self.cleaning, batch, header)
                if kept is None:
                    continue
                self.pause(len(kept))
                position = new.size
                new.file.pwrite(kept, position)
                greatest = struct.unpack_from(">q", kept, 35)[0]
                new.appended(header.last_offset, position, len(kept), greatest, self.config)
        for transaction in self.cleaning.filtered.take_kept():
            new.note_aborted(transaction)
        new.seal()
        for file in new.files():
            file.fsync()
        return NewSegment([sizes.base_offset for sizes in group], list(new.sizes))

    def _aborted(self, base_offset: int) -> list[AbortedTransaction]:
        path = f"{self.job.directory}/{names.offset_name(base_offset, names.TRANSACTION_INDEX)}"
        return list(aborted_transactions(self.disk.read(path))) if self.disk.exists(path) else []


def main() -> int:
    """Reads a job, does it, and prints the result. Returns the exit status: DAMAGED_STATUS with the damage printed, or
    1 with a sentence on standard error."""
    parent = os.getppid()
    job = decode_job(sys.stdin.buffer.read())
    throttle = Throttle(job.bytes_per_second)

    def pause(count: int) -> None:
        wait = throttle.wait_seconds(count, time.monotonic())
        if wait > 0:
            time.sleep(wait)
        if os.getppid() != parent:
            raise SystemExit("the broker has gone")

    try:
        result = compact(job, RealDisk(), pause)
    except Damaged as damage:
        sys.stdout.buffer.write(encode_damage(damage))
        return DAMAGED_STATUS
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(encode_result(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
