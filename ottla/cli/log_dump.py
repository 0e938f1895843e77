"""The content of a log's files for people and programs: each file as an iterator of plain values. Reads only.

One batch is read at a time, so that a segment of a GB needs little memory. `ottla.cli.log_verification` finds the
faults in files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ottla.protocol.batches import HEADER_SIZE, MAGIC, BatchHeader, Record, crc_valid, read_header, records
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import read_marker
from ottla.storage import names
from ottla.storage.checkpoints import EpochEntry, parse_epochs, parse_offsets
from ottla.storage.indexes import (
    AbortedTransaction,
    OffsetPosition,
    TimestampOffset,
    aborted_transactions,
    offset_entries,
    time_entries,
)
from ottla.storage.producer_snapshot import read_snapshot

_BATCH_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch and its position in the log file. `records` is None unless the caller wants records and the batch is
    valid. It is also None if the unpacked records would take too much memory; then `is_too_large` is set. A control
    batch that ends a transaction has a `marker` (COMMIT or ABORT) and the epoch of the coordinator that decided it."""

    position: int
    base_offset: int
    last_offset: int
    count: int
    size: int
    codec: str
    leader_epoch: int
    max_timestamp: int
    timestamp_type: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    is_control: bool
    marker: str | None
    coordinator_epoch: int | None
    delete_horizon: int | None
    crc: int
    is_valid: bool
    is_too_large: bool = False
    records: list[Record] | None = None


@dataclass(frozen=True, slots=True)
class DumpedProducer:
    """A producer in a producer snapshot."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class DumpedOffset:
    """A line of an offset checkpoint."""

    topic: str
    partition: int
    offset: int


Dumped = (
    DumpedBatch | OffsetPosition | TimestampOffset | AbortedTransaction | DumpedProducer | EpochEntry | DumpedOffset
)


class UnknownFile(ValueError):
    """A file's name is neither that of a segment's file nor that of a checkpoint."""


def dump(path: str, *, deep: bool = False) -> Iterator[Dumped]:
    """The content of the file at `path`, whose name tells its format. With `deep`, batches have their records.

    Raises UnknownFile, OSError; ValueError where the file isn't what its name says.
    """
    name = plain_name(path)
    if name == names.LEADER_EPOCHS:
        return iter(parse_epochs(_read(path)))
    if name.endswith("-checkpoint"):
        return (DumpedOffset(*key, offset) for key, offset in parse_offsets(_read(path)).items())
    parsed = names.parse_offset_name(name)
    if parsed is None:
        raise UnknownFile(f"{path}: neither a segment's file nor a checkpoint")
    base_offset, suffix = parsed
    if suffix == names.LOG:
        return dump_log(path, deep=deep)
    if suffix == names.PRODUCER_SNAPSHOT:
        return _dump_snapshot(path)
    if suffix == names.TRANSACTION_INDEX:
        return aborted_transactions(_read(path))
    if suffix == names.OFFSET_INDEX:
        return offset_entries(_read(path), base_offset)
    if suffix == names.TIME_INDEX:
        return time_entries(_read(path), base_offset)
    raise UnknownFile(f"{path}: `ottla log dump` can't show {suffix} files")


def dump_log(path: str, *, deep: bool = False) -> Iterator[DumpedBatch]:
    """The batches of a log file that come before the first incomplete batch."""
    with open(path, "rb") as file:
        for position, header, batch in _batches(file):
            valid = header.magic == MAGIC and crc_valid(batch, 0, len(batch))
            found = _records(batch) if deep and valid else None
            marker = read_marker(batch) if header.is_control and valid else None
            yield DumpedBatch(
                position=position,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                count=header.count,
                size=header.size,
                codec=Codec(header.codec).name if header.codec in list(Codec) else f"codec {header.codec}",
                leader_epoch=header.leader_epoch,
                max_timestamp=header.max_timestamp,
                timestamp_type="LogAppendTime" if header.log_append_time else "CreateTime",
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                last_sequence=header.last_sequence,
                is_transactional=header.is_transactional,
                is_control=header.is_control,
                marker=None if marker is None else "COMMIT" if marker.committed else "ABORT",
                coordinator_epoch=None if marker is None else marker.coordinator_epoch,
                delete_horizon=header.delete_horizon,
                crc=header.crc,
                is_valid=valid,
                is_too_large=deep and valid and found is None,
                records=found,
            )


def _records(batch: bytes) -> list[Record] | None:
    """A batch's records; None if they would take too much memory when unpacked."""
    try:
        return list(records(batch))
    except KafkaError as error:
        if error.code == ErrorCode.record_list_too_large:
            return None
        raise


def _batches(file: BinaryIO) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yields (position, header, bytes) of the batches that come before the first incomplete batch."""
    position = 0
    while len(start := file.read(HEADER_SIZE)) == HEADER_SIZE:
        header = read_header(start)
        if not HEADER_SIZE <= header.size <= _BATCH_BYTES_MAX:
            return
        batch = start + file.read(header.size - HEADER_SIZE)
        if len(batch) < header.size:
            return
        yield position, header, batch
        position += header.size


def _dump_snapshot(path: str) -> Iterator[DumpedProducer]:
    for entry in read_snapshot(_read(path)):
        yield DumpedProducer(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_start,
        )


def plain_name(path: str) -> str:
    """The file's name without the suffixes of new files and of files that wait for deletion."""
    name = os.path.basename(path)
    for suffix in (names.DELETED, names.CLEANED, names.SWAP):
        name = name.removesuffix(suffix)
    return name


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
