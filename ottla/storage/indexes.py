"""The entries of a segment's indexes as bytes: offset index, time index and transaction index. Pure.

An index is an array of entries of a fixed size, big-endian, without a checksum. The offset index and the time index
have offsets relative to the segment's base offset. Source: Kafka's OffsetIndex, TimeIndex and TransactionIndex
(AbortedTxn).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

OFFSET_ENTRY = struct.Struct(">ii")  # relative offset, position
TIME_ENTRY = struct.Struct(">qi")  # timestamp, relative offset
MAX_RELATIVE_OFFSET = (1 << 31) - 1  # the greatest distance from a segment's base offset that an index entry can have
_aborted_entry = struct.Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset
ABORTED_ENTRY_BYTES = _aborted_entry.size
_ABORTED_VERSION = 0


class OffsetPosition(NamedTuple):
    """A batch: its last offset, and where in the log file it starts."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """The greatest timestamp up to and including the batch with this last offset."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer, its first and last offset, and the log's last stable offset when the
    transaction ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def offset_entries(content: bytes, base_offset: int) -> Iterator[OffsetPosition]:
    """The entries of an offset index, without Kafka's preallocated zeros and without an incomplete last entry."""
    for number, (relative, position) in enumerate(OFFSET_ENTRY.iter_unpack(_whole(content, OFFSET_ENTRY))):
        if number and not relative and not position:
            return
        yield OffsetPosition(base_offset + relative, position)


def time_entries(content: bytes, base_offset: int) -> Iterator[TimestampOffset]:
    """The entries of a time index, without Kafka's preallocated zeros and without an incomplete last entry."""
    for timestamp, relative in TIME_ENTRY.iter_unpack(_whole(content, TIME_ENTRY)):
        if not timestamp and not relative:
            return
        yield TimestampOffset(timestamp, base_offset + relative)


def aborted_entry(transaction: AbortedTransaction) -> bytes:
    """The entry of a transaction index for `transaction`."""
    return _aborted_entry.pack(_ABORTED_VERSION, *transaction)


def aborted_transaction_at(content: bytes, number: int) -> AbortedTransaction:
    """The entry of that number, counted from 0, in a transaction index."""
    _, *entry = _aborted_entry.unpack_from(content, number * ABORTED_ENTRY_BYTES)
    return AbortedTransaction(*entry)


def aborted_transactions(content: bytes) -> Iterator[AbortedTransaction]:
    """The entries of a transaction index, without an incomplete last entry."""
    for _, *entry in _aborted_entry.iter_unpack(_whole(content, _aborted_entry)):
        yield AbortedTransaction(*entry)


def _whole(content: bytes, entry: struct.Struct) -> bytes:
    return content[: len(content) // entry.size * entry.size]
