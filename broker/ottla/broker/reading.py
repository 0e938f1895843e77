"""Reads a replica for a fetch: for a consumer up to the high watermark, or up to the last stable offset if the consumer
reads committed records only; for a follower up to the log's end.

Reading changes nothing of the replica, except that it notes damage that it finds.

Source: KIP-74 (the first batch), KIP-98 (transactions), KIP-595 (diverging logs); Kafka's `Partition.readRecords` and
`UnifiedLog.addAbortedTransactions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.log.resident import WAIT, resident
from ottla.broker.log.segment import DamagedSegment
from ottla.broker.partition import NO_EPOCH, Partition
from ottla.net.pending import READ_AHEAD_BYTES
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.net.pending import Part

_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class Readable(NamedTuple):
    """The batches that a response to Fetch may contain, as ranges of files or as bytes, their size in bytes, and the
    partition's offsets. `aborted` has the (producer id, first offset) of the aborted transactions among the batches; it
    is None unless the reader reads committed records only."""

    ranges: Sequence[Part]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    cut: bool = False  # whether more batches can be read, which aren't in memory
    aborted: Sequence[tuple[int, int]] | None = None


def read(
    partition: Partition,
    offset: int,
    max_bytes: int,
    minimum_one: bool,
    read_committed: bool,
    small_bytes: int = WAIT,
) -> Readable:
    """The batches that a consumer may read from `offset`, at most `max_bytes`; with `minimum_one`, the first batch is
    returned whole even if it is larger. Batches of up to `small_bytes` in all are returned as bytes, more as ranges of
    files. Raises KafkaError OFFSET_OUT_OF_RANGE, OFFSET_NOT_AVAILABLE, KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE;
    BlockingIOError where the disk must be read, if `small_bytes` isn't WAIT."""
    if not read_committed:
        return _read(partition, offset, max_bytes, minimum_one, partition.high_watermark, small_bytes)
    stable = partition.last_stable_offset
    found = _read(partition, offset, max_bytes, minimum_one, stable, small_bytes)
    aborted = _aborted(partition, offset, found.size, stable, small_bytes == WAIT) if found.size else ()
    return _new(Readable, (*found[:-1], aborted))


def read_as_follower(
    partition: Partition, offset: int, max_bytes: int, minimum_one: bool, small_bytes: int = WAIT
) -> Readable:
    """As `read`, but up to the log's end: for a follower's fetch."""
    return _read(partition, offset, max_bytes, minimum_one, partition.log.log_end_offset, small_bytes)


def _read(
    partition: Partition, offset: int, max_bytes: int, minimum_one: bool, limit: int, small_bytes: int
) -> Readable:
    log, high_watermark = partition.log, partition.high_watermark
    log_start = log.log_start_offset
    if offset == limit:
        return nothing(partition)
    if offset > log.log_end_offset and partition.leader_epoch == NO_EPOCH:
        raise KafkaError(ErrorCode.offset_not_available)  # the leader may have it: the consumer keeps its offset
    if offset > log.log_end_offset or offset < log_start:
        raise KafkaError(ErrorCode.offset_out_of_range)
    if offset > limit:  # a consumer's offset above the high watermark
        return nothing(partition)
    try:
        found = log.read(offset, max_bytes, limit, minimum_one, small_bytes == WAIT)
        ranges, size = resident(found, small_bytes)
    except BlockingIOError:
        raise
    except OSError as error:
        raise _refusal(partition, offset, error) from error
    cut = size >= READ_AHEAD_BYTES and size < found[0].size
    return _new(Readable, (ranges, size, high_watermark, partition.last_stable_offset, log_start, cut, None))


def _aborted(partition: Partition, offset: int, size: int, stable: int, wait: bool) -> Sequence[tuple[int, int]]:
    """The (producer id, first offset) of each aborted transaction with records among the `size` bytes from `offset` on,
    and maybe of some transactions that begin right behind these bytes. The bytes end at or below `stable`. Raises as
    `read`."""
    log = partition.log
    if not log.has_aborted(offset):
        return ()
    try:
        end_offset = min(log.end_of_read(offset, size, wait), stable)
        return [entry[:2] for entry in log.aborted_between(offset, end_offset, wait)]
    except BlockingIOError:
        raise
    except OSError as error:
        raise _refusal(partition, offset, error) from error


def _refusal(partition: Partition, offset: int, error: OSError) -> KafkaError:
    """The consumer's error for an error of the disk, or for damage of the log at `offset`."""
    if isinstance(error, DamagedSegment):  # the damage concerns one segment, not the log directory
        partition.damage_met = offset, f"fetches of this offset are refused: {error}"
        return KafkaError(ErrorCode.corrupt_message, str(error))
    return partition.failed(error)


def nothing(partition: Partition, read_committed: bool = False) -> Readable:
    """The answer to a fetch for which there is nothing to read."""
    high_watermark, stable = partition.high_watermark, partition.last_stable_offset
    aborted = () if read_committed else None
    return _new(Readable, ((), 0, high_watermark, stable, partition.log.log_start_offset, False, aborted))


def diverges(partition: Partition, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
    """Where a follower's log, which ends at `fetch_offset` in `last_fetched_epoch`, diverges from this one: the last
    epoch that both logs may have, and the end of that epoch in this log; None where the follower's log doesn't diverge.
    Raises KafkaError OFFSET_OUT_OF_RANGE."""
    epoch, end = partition.log.epochs.end_offset_for(last_fetched_epoch, partition.log.log_end_offset)
    if epoch < 0 or end < 0:
        raise KafkaError(ErrorCode.offset_out_of_range)
    return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None
