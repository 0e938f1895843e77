"""Decides what a follower does with a leader's answer for one partition. Pure: it sees headers, never records' bytes.

Rules, as in Kafka's `AbstractFetcherThread` and `ReplicaFetcherThread`:

1. A follower's log is always a prefix of its leader's log, or is about to become one: records are appended only at the
   log's end, and only whole batches with a valid CRC, of the followed epoch or an earlier one.
2. A leader reports divergence as the last epoch that both logs may share, with that epoch's end in the leader's log.
   The follower truncates to the lower of that end and its own end of that epoch, and asks again: one round for each
   epoch in which the logs diverged (KIP-101, KIP-279). It never truncates to the high watermark, because records above
   its own high watermark may have been committed by an earlier leader. Nor does it truncate below the point up to which
   both logs are alike: below that point both logs have the same epochs, so no end of a shared epoch lies there.
3. A follower whose fetch offset is out of the leader's range asks for the range. If its end is beyond the leader's end,
   it truncates to the leader's end. If its end is before the leader's start, it starts anew at the leader's start.
4. A truncation below the offset up to which this log is compacted removes newer records of keys whose older records
   compaction has removed. The leader, which has lost committed records, still has these older records. So the log
   starts anew. The exception is a replica that may be elected (in the ISR, eligible, or of a topic that allows unclean
   elections), because it would lead with an empty log. Kafka truncates in any case.
5. After an answer that shows another leader or epoch than the follower knows, the follower waits for newer metadata.
   After a failure of its log directory, the follower stops copying.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.batches import MAGIC, BatchHeader, crc_valid, iterate_headers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.received import Buffer

if TYPE_CHECKING:
    from typing import Protocol

    class EpochHistory(Protocol):
        """The leader epochs of a log: the part of `LeaderEpochs` that `decide` uses."""

        def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
            """(the last epoch at or below `epoch`, that epoch's end offset in this log); both −1 where it isn't
            known."""


class CorruptBatch(KafkaError):
    """The leader sent bytes that aren't a batch, or a batch with a wrong CRC. `offset` is the first offset that can't
    be copied."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(ErrorCode.corrupt_message, f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


AWAITED = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.replica_not_available,
    }
)
"""The leader's errors that end when the follower or the leader has applied newer metadata."""

UNKNOWN = -1


class Held(NamedTuple):
    """The state of the follower's log, as `decide` needs it."""

    log_start_offset: int
    log_end_offset: int
    last_epoch: int
    epochs: EpochHistory
    compacted_to: int = 0
    electable: bool = True


class Told(NamedTuple):
    """The leader's answer for one partition. `headers` are the (position, header) of the batches that `whole_batches`
    accepted."""

    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    headers: Sequence[tuple[int, BatchHeader]]


class Append(NamedTuple):
    """Decision: append these batches (there may be none), and take over the leader's high watermark and log start.

    `restart_at`: first drop all records and begin at that offset. This is needed where the first batch begins below
    this log's end, and this log has no record that the leader still has: the leader's records were deleted up to the
    middle of that batch.
    """

    headers: Sequence[tuple[int, BatchHeader]]
    high_watermark: int
    log_start_offset: int
    restart_at: int | None = None


class Truncate(NamedTuple):
    """Decision: truncate the log to `offset`, and fetch again."""

    offset: int


class Restart(NamedTuple):
    """Decision: drop all records, begin the log at `offset`, and fetch again."""

    offset: int


class AskRange(NamedTuple):
    """Decision: ask for the leader's start and end offsets, and go on with `out_of_range`."""


class Pause(NamedTuple):
    """Decision: fetch again after a pause. `awaited` says that only newer metadata is missing, so no warning is
    logged."""

    error: int
    awaited: bool


Decision = Append | Truncate | Restart | AskRange | Pause


def decide(held: Held, told: Told) -> Decision:
    """Decides what follows from the answer to a fetch at `held.log_end_offset` in the followed epoch."""
    if told.error == ErrorCode.offset_out_of_range:
        return AskRange()
    if told.error:
        return Pause(told.error, told.error in AWAITED)
    if told.diverging is not None:
        return _shortened(held, truncation_point(held, *told.diverging), told.log_start_offset)
    headers = told.headers
    if not headers:
        return Append((), told.high_watermark, told.log_start_offset)
    first = headers[0][1]
    if first.base_offset >= held.log_end_offset:
        return Append(headers, told.high_watermark, told.log_start_offset)
    nothing_to_keep = held.log_start_offset == held.log_end_offset or held.log_end_offset <= told.log_start_offset
    if nothing_to_keep and held.log_end_offset <= first.last_offset:
        return Append(headers, told.high_watermark, told.log_start_offset, first.base_offset)
    return Pause(ErrorCode.corrupt_message, False)


def truncation_point(held: Held, leader_epoch: int, leader_end_offset: int) -> int:
    """The offset to truncate to when the leader says that `leader_epoch` is the last shared epoch and ends at
    `leader_end_offset` in its log."""
    own_epoch, own_end_offset = held.epochs.end_offset_for(leader_epoch, held.log_end_offset)
    if own_end_offset == UNKNOWN:  # this log has no epoch, or only later ones: the leader's end alone counts
        return min(leader_end_offset, held.log_end_offset)
    if own_epoch != leader_epoch:
        # This log doesn't have the leader's epoch: earlier epochs may diverge, too, which the next round shows.
        return min(own_end_offset, held.log_end_offset)
    return min(own_end_offset, leader_end_offset, held.log_end_offset)


def _shortened(held: Held, offset: int, leader_start_offset: int) -> Decision:
    """The decision to truncate the log to `offset`, or to start it anew (rule 4)."""
    return Truncate(offset) if offset >= held.compacted_to or held.electable else Restart(leader_start_offset)


def out_of_range(held: Held, leader_start_offset: int, leader_end_offset: int) -> Decision:
    """Decides, by the leader's start and end offsets, what follows from the error OFFSET_OUT_OF_RANGE."""
    if leader_end_offset < held.log_end_offset:
        return _shortened(held, leader_end_offset, leader_start_offset)
    if leader_start_offset > held.log_end_offset:
        return Restart(leader_start_offset)
    return Pause(ErrorCode.offset_out_of_range, False)  # the leader's range has moved: the next fetch is within it


def whole_batches(
    buffer: Buffer, leader_epoch: int, due_offset: int, count_max: int = sys.maxsize
) -> list[tuple[int, BatchHeader]]:
    """(position, header) of the whole batches at the start of a record set, `count_max` at most; a batch that is cut
    off at the set's end is left out. `due_offset` is the fetch offset: the first batch contains it or begins behind it.

    The first batch of a later epoch than `leader_epoch` and all batches behind it are left out, too: they show that the
    leader's file was truncated and written anew while it was sent. Raises CorruptBatch where bytes aren't a batch, a
    CRC is wrong, or offsets don't ascend.
    """
    headers: list[tuple[int, BatchHeader]] = []
    next_offset = 0
    try:
        for position, header in iterate_headers(buffer):
            if header.leader_epoch > leader_epoch or len(headers) == count_max:
                break
            if header.magic != MAGIC or header.last_offset_delta < 0 or header.base_offset < next_offset:
                raise CorruptBatch(max(next_offset, due_offset), "there is no batch")
            if not crc_valid(buffer, position, header.size):
                raise CorruptBatch(header.base_offset, "the batch has a wrong CRC")
            next_offset = header.last_offset + 1
            headers.append((position, header))
    except CorruptBatch:
        raise
    except KafkaError as error:
        raise CorruptBatch(max(next_offset, due_offset), error.message) from error
    return headers
