"""Selects the batches of a fetched record set whose records are read, and checks their CRCs. No I/O.

Leaves out batches outside of the requested offsets, control batches, and under read_committed the batches of aborted
transactions. As in Kafka's consumer (CompletedFetch), a producer's batches are aborted from the transaction's first
offset, which the broker's answer has, to the producer's next abort marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from crc32c import crc32c

from ottla.protocol.batches import CONTROL, CRC_START, MAGIC, TRANSACTIONAL, records
from ottla.protocol.errors import ErrorCode, KafkaError

from . import headers
from .headers import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_COUNT,
    H_CRC,
    H_LAST_OFFSET,
    H_MAGIC,
    H_POSITION,
    H_PRODUCER_ID,
    H_SIZE,
    HEADER_COLUMNS,
)

kernel: ModuleType | None
try:
    from . import kernel
except ImportError:  # numba is missing, or doesn't support this Python yet
    kernel = None

_ABORT_MARKER = b"\x00\x00\x00\x00"  # key of a control record: version 0, type 0


def select(
    record_set: bytes | memoryview,
    start: int,
    end: int,
    *,
    aborted: Sequence[tuple[int, int]] = (),
    check_crc: bool = True,
    where: str = "a record set",
) -> Any:
    """The batches that may have records with offsets in [start, end), as rows of the array that `headers` describes.

    `aborted` has the (producer id, first offset) of each aborted transaction; it is empty under read_uncommitted.
    Raises KafkaError corrupt_message for a wrong CRC, and unsupported_for_message_format for a batch of magic 0 or 1.
    The messages contain `where`, the partition's name.
    """
    found = _headers(record_set)
    old = found[found[:, H_MAGIC] != MAGIC]
    if len(old):
        message = f"{where} has messages of magic {old[0, H_MAGIC]}, and only magic 2 can be read"
        raise KafkaError(ErrorCode.unsupported_for_message_format, message)
    wanted = (
        (found[:, H_LAST_OFFSET] >= start)
        & (found[:, H_BASE_OFFSET] < end)
        & (found[:, H_COUNT] > 0)
        & (found[:, H_ATTRIBUTES] & CONTROL == 0)
    )
    if aborted:
        wanted &= ~_aborted(record_set, found, aborted)
    chosen = found[wanted]
    if check_crc:
        _check_crcs(memoryview(record_set), chosen, where)
    return chosen


def _headers(record_set: bytes | memoryview) -> Any:
    if kernel is None:
        return headers.table(record_set)
    source = np.frombuffer(record_set, np.uint8)
    source.flags.writeable = False
    count = kernel.scan(source, np.empty((0, HEADER_COLUMNS), np.int64))
    if count < 0:
        return headers.table(record_set)  # raises the KafkaError with a message
    found = np.empty((count, HEADER_COLUMNS), np.int64)
    kernel.scan(source, found)
    return found


def _check_crcs(view: memoryview, batches: Any, where: str) -> None:
    positions, ends = batches[:, H_POSITION], batches[:, H_POSITION] + batches[:, H_SIZE]
    for index, (position, end, stated) in enumerate(
        zip(positions.tolist(), ends.tolist(), batches[:, H_CRC].tolist(), strict=True)
    ):
        if crc32c(view[position + CRC_START : end]) != stated:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"{where}: the batch at offset {batches[index, H_BASE_OFFSET]} has a wrong CRC",
            )


def _aborted(record_set: bytes | memoryview, batches: Any, aborted: Sequence[tuple[int, int]]) -> Any:
    """An array with a boolean for each batch: whether it belongs to an aborted transaction."""
    pending = sorted(aborted, key=lambda entry: entry[1])
    aborting: set[int] = set()
    found = np.zeros(len(batches), np.bool_)
    view = memoryview(record_set)
    columns = (H_POSITION, H_SIZE, H_LAST_OFFSET, H_ATTRIBUTES, H_PRODUCER_ID)
    for index, (position, size, last_offset, attributes, producer) in enumerate(batches[:, columns].tolist()):
        while pending and pending[0][1] <= last_offset:
            aborting.add(pending.pop(0)[0])
        if producer not in aborting:
            continue
        if not attributes & CONTROL:
            found[index] = bool(attributes & TRANSACTIONAL)
        elif next(records(view[position : position + size])).key == _ABORT_MARKER:
            aborting.discard(producer)
    return found
