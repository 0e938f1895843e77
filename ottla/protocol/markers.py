"""Transaction markers: control batches of one record, which end a producer's transaction in a partition. Pure.

The record's key is version i16 (0) and type i16 (0 abort, 1 commit); its value is version i16 (0) and the coordinator's
epoch i32. A batch that compaction emptied is still a control batch, and has no marker.

Source: Kafka's EndTransactionMarker, ControlRecordType and MemoryRecords.withEndTransactionMarker.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .batches import Record, build_batch, records
from .errors import KafkaError, ProtocolError
from .received import Buffer

ABORT, COMMIT = 0, 1
NO_COORDINATOR_EPOCH = -1
_key = struct.Struct(">hh")
_value = struct.Struct(">hi")


class Marker(NamedTuple):
    """The outcome of a transaction, the epoch of the coordinator that decided it (−1 where the marker doesn't say), and
    the marker's time in ms."""

    committed: bool
    coordinator_epoch: int
    timestamp: int


def read_marker(batch: Buffer) -> Marker | None:
    """The marker in a control batch; None where the batch is empty, can't be read, or has a control record of another
    type."""
    try:
        record = next(records(batch), None)
    except (KafkaError, ProtocolError):
        return None
    if record is None or record.key is None or len(record.key) < _key.size:
        return None
    _, kind = _key.unpack_from(record.key)
    if kind not in (ABORT, COMMIT):
        return None
    coordinator_epoch = NO_COORDINATOR_EPOCH
    if record.value is not None and len(record.value) >= _value.size:
        _, coordinator_epoch = _value.unpack_from(record.value)
    return Marker(kind == COMMIT, coordinator_epoch, record.timestamp)


def marker_batch(producer_id: int, producer_epoch: int, marker: Marker) -> bytearray:
    """The control batch with `marker`, as the leader of a partition appends it; its offset and its leader epoch aren't
    assigned yet."""
    key = _key.pack(0, COMMIT if marker.committed else ABORT)
    record = Record(0, marker.timestamp, key, _value.pack(0, marker.coordinator_epoch))
    return bytearray(
        build_batch([record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True)
    )
