"""Finds the faults in the files of a log, and the offsets behind them where consumers can continue. Reads only.

Files are mapped, compressed records are unpacked piece by piece, and an index is read along with its log file, so that
memory doesn't grow with the files' sizes. A faulty batch doesn't end the search: the batch's length says where the next
batch begins. A batch is faulty if some client's consumer can't read it. Brokers check the batches that producers send
by the same rule.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ottla.cli.log_dump import UnknownFile, dump, plain_name
from ottla.cli.transaction_index_verification import TransactionIndexes
from ottla.protocol.batches import HEADER_SIZE, MAGIC, BatchHeader, crc_valid
from ottla.protocol.errors import KafkaError
from ottla.protocol.record_walk import walk_of
from ottla.protocol.unpacking import pieces
from ottla.storage import names
from ottla.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetPosition, TimestampOffset
from ottla.storage.log_file import whole_batches


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a file.

    For a batch, `offset` and `last_offset` are those of its header. `next_offset` is the base offset of the next whole
    batch in the file; where there is none, it is the offset after `last_offset`. All three are −1 for indexes. `repair`
    says what makes a faulty index anew, and is empty where the next start does so without being told.
    """

    path: str
    position: int
    message: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    last_offset: int = -1
    next_offset: int = -1
    repair: str = ""


def verify(path: str) -> Iterator[Fault]:
    """The faults in the logs at `path`: a segment's log file (with its indexes), the directory of a partition, or a log
    directory.

    Raises UnknownFile where `path` is none of these three, OSError.
    """
    path = path.rstrip("/") or "/"
    if not os.path.isdir(path):
        parsed = names.parse_offset_name(plain_name(path))
        if parsed is None or parsed[1] != names.LOG:
            raise UnknownFile(f"{path}: neither a segment's log file, nor a partition's directory, nor a log directory")
        yield from _verify_segments(os.path.dirname(path) or ".", {parsed[0]: path})
        return
    partitions, segments = [], {}
    for name in sorted(os.listdir(path)):
        if (parsed := names.parse_offset_name(name)) is not None and name.endswith(names.LOG):
            segments[parsed[0]] = f"{path}/{name}"
        elif names.parse_partition_name(name) is not None and os.path.isdir(f"{path}/{name}"):
            partitions.append(f"{path}/{name}")
    if not partitions and not segments and names.parse_partition_name(os.path.basename(path)) is None:
        raise UnknownFile(f"{path}: neither a partition's directory nor a log directory")
    if segments:
        yield from _verify_segments(path, segments)
        return
    for each in partitions:
        yield from verify(each)


def _verify_segments(directory: str, segments: dict[int, str]) -> Iterator[Fault]:
    """The faults of segments (base offset → log file) of one partition, in the order of their offsets."""
    topic, partition = names.parse_partition_name(os.path.basename(os.path.abspath(directory))) or ("", -1)
    aborted = TransactionIndexes(directory, sorted(segments))
    for base_offset, path in sorted(segments.items()):
        stem = path.removesuffix(names.LOG)
        indexes = [_OffsetIndex(stem + names.OFFSET_INDEX, base_offset), _TimeIndex(stem + names.TIME_INDEX)]
        aborted.begin(base_offset)
        for fault in _verify_batches(path, base_offset, indexes, aborted):
            yield replace(fault, topic=topic, partition=partition)
        for index in indexes:
            for position, message in index.ended():
                yield Fault(index.path, position, message, topic, partition)
        for position, message, repair in aborted.ended():
            yield Fault(aborted.path, position, message, topic, partition, repair=repair)


def _verify_batches(
    path: str, base_offset: int, indexes: Sequence[_Index], aborted: TransactionIndexes
) -> Iterator[Fault]:
    if not os.path.getsize(path):
        return
    next_offset, end = base_offset, 0
    waiting: list[Fault] = []  # faults that wait for the offset of the next batch
    with open(path, "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for position, header, batch in whole_batches(content):
        for fault in waiting:
            yield replace(fault, next_offset=max(header.base_offset, fault.offset))
        waiting.clear()
        for index in indexes:
            for place, message in index.passed(position, header):
                yield Fault(index.path, place, message)
        for place, message, repair in aborted.passed(header, batch):
            yield Fault(aborted.path, place, message, repair=repair)
        message = _fault(header, batch, next_offset)
        if message:
            first, last = header.base_offset, header.last_offset
            fault = Fault(path, position, message, offset=first, last_offset=last, next_offset=last + 1)
            waiting.append(fault)
        next_offset = max(next_offset, header.last_offset + 1)
        end = position + header.size
    yield from waiting
    if end < len(content):
        message = f"{len(content) - end} bytes at the end are no whole batch"
        yield Fault(path, end, message, offset=next_offset)


def _fault(header: BatchHeader, batch: memoryview, next_offset: int) -> str:
    if header.magic != MAGIC:
        return f"magic {header.magic}"
    if not crc_valid(batch, 0, len(batch)):
        return "the CRC doesn't match"
    if header.base_offset < next_offset:
        return f"the batch begins at offset {header.base_offset}, after a batch that ends at {next_offset - 1}"
    if header.count < 0 or header.last_offset_delta < 0:
        return f"the batch states {header.count} records and a last offset delta of {header.last_offset_delta}"
    payload = batch[HEADER_SIZE:]
    if not header.count and not payload:
        return ""  # a compaction keeps a producer's last batch, without its records
    walk = walk_of(header, compacted=False)
    try:
        for piece in pieces(header.codec, payload, one_frame=True):
            walk.feed(piece)
        walk.finish()
    except KafkaError as error:
        return error.message
    return ""


class _Index:
    """Compares the entries of an index with the batches of its log file. Both are read once, in the files' order."""

    def __init__(self, path: str, entry_size: int) -> None:
        self.path = path
        entries = enumerate(dump(path) if os.path.exists(path) else ())
        self._entries = ((number * entry_size, entry) for number, entry in entries)
        self._pending = next(self._entries, None)

    def _take(self) -> None:
        self._pending = next(self._entries, None)

    def passed(self, position: int, header: BatchHeader) -> Iterator[tuple[int, str]]:
        """The faults, as (place, message), of the index entries up to the batch at `position`."""
        raise NotImplementedError

    def ended(self) -> Iterator[tuple[int, str]]:
        """The faults, as (place, message), of the index entries after the last batch."""
        raise NotImplementedError


class _OffsetIndex(_Index):
    def __init__(self, path: str, base_offset: int) -> None:
        super().__init__(path, OFFSET_ENTRY.size)
        self._last = base_offset - 1

    def passed(self, position: int, header: BatchHeader) -> Iterator[tuple[int, str]]:
        while self._pending is not None:
            place, entry = self._pending
            assert isinstance(entry, OffsetPosition)
            if entry.position > position:
                return
            if entry.position < position:
                yield place, f"no batch starts at position {entry.position}"
            elif entry.offset != header.last_offset:
                yield place, f"offset {entry.offset}, but the batch there ends with {header.last_offset}"
            yield from self._ascends(place, entry.offset)

    def ended(self) -> Iterator[tuple[int, str]]:
        while self._pending is not None:
            place, entry = self._pending
            assert isinstance(entry, OffsetPosition)
            yield place, f"no batch starts at position {entry.position}"
            yield from self._ascends(place, entry.offset)

    def _ascends(self, place: int, offset: int) -> Iterator[tuple[int, str]]:
        if offset <= self._last:
            yield place, f"offset {offset} comes after offset {self._last}"
        self._last = offset
        self._take()


class _TimeIndex(_Index):
    def __init__(self, path: str) -> None:
        super().__init__(path, TIME_ENTRY.size)
        self._greatest = -1  # greatest timestamp of the batches so far
        self._last = -1

    def passed(self, position: int, header: BatchHeader) -> Iterator[tuple[int, str]]:
        yield from self._look(header.last_offset)
        self._greatest = max(self._greatest, header.max_timestamp)

    def ended(self) -> Iterator[tuple[int, str]]:
        yield from self._look(1 << 63)

    def _look(self, below: int) -> Iterator[tuple[int, str]]:
        while self._pending is not None:
            place, entry = self._pending
            assert isinstance(entry, TimestampOffset)
            if entry.offset >= below:
                return
            if entry.timestamp != self._greatest:
                yield (
                    place,
                    f"timestamp {entry.timestamp} at offset {entry.offset}, but the log's greatest is {self._greatest}",
                )
            if entry.timestamp <= self._last:
                yield place, f"timestamp {entry.timestamp} comes after timestamp {self._last}"
            self._last = entry.timestamp
            self._take()
