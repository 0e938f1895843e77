"""Which batches of a fetched record set hold rows to read. Pure.

Leaves out batches outside the offsets asked for, control batches, and under read_committed the batches of aborted
transactions, as Kafka's consumer does (CompletedFetch): a producer's transaction is aborted from the first offset that
the broker named until that producer's abort marker. Checks each chosen batch's CRC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.protocol.batches import MAGIC, BatchHeader, crc_valid, iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError

_ABORT_MARKER = b"\x00\x00\x00\x00"  # key of a control record: version 0, type 0


class SelectedBatch(NamedTuple):
    """A batch at record_set[position : position + header.size] with records to read."""

    position: int
    header: BatchHeader


def select(
    record_set: bytes,
    start: int,
    end: int,
    *,
    aborted: Sequence[tuple[int, int]] = (),
    check_crc: bool = True,
    where: str = "a record set",
) -> Iterator[SelectedBatch]:
    """The batches that hold records with offsets in [start, end).

    `aborted` has (producer id, first offset) of aborted transactions; empty under read_uncommitted. Raises KafkaError
    corrupt_message, naming `where`, for a bad CRC and unsupported_for_message_format for magic 0 and 1.
    """
    pending = sorted(aborted, key=lambda entry: entry[1])
    aborting: set[int] = set()
    view = memoryview(record_set)
    for position, header in iterate_headers(record_set):
        if header.magic != MAGIC:
            raise KafkaError(
                ErrorCode.unsupported_for_message_format, f"{where} holds messages of magic {header.magic}"
            )
        while pending and pending[0][1] <= header.last_offset:
            aborting.add(pending.pop(0)[0])
        if header.is_control:
            if header.producer_id in aborting and _is_abort(view[position : position + header.size]):
                aborting.discard(header.producer_id)
            continue
        if header.last_offset < start or header.base_offset >= end or header.count == 0:
            continue
        if header.is_transactional and header.producer_id in aborting:
            continue
        if check_crc and not crc_valid(record_set, position, header.size):
            raise KafkaError(
                ErrorCode.corrupt_message, f"{where}: the batch at offset {header.base_offset} has a wrong CRC"
            )
        yield SelectedBatch(position, header)


def _is_abort(batch: memoryview) -> bool:
    return next(records(batch)).key == _ABORT_MARKER
