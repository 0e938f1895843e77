"""What a follower does with a leader's answer for one partition. Pure: headers come in, never records' bytes.

Rules, as in Kafka's `AbstractFetcherThread` and `ReplicaFetcherThread`:

1. A follower's log is always a prefix of its leader's, or on its way to become one: records are appended only at the
   log's end, and only whole batches with a right CRC, of the followed epoch or an earlier one.
2. A leader tells of divergence by the last epoch that both may share and where that ended with it. The follower
   truncates to the lower of that and its own end of that epoch, and asks again: one round for each epoch in which the
   two logs went different ways (KIP-101, KIP-279). It never truncates to the high watermark, which may lie below what
   an earlier leader committed, nor below the point up to which both logs are alike: below that point both know the same
   epochs, so neither end of a shared epoch can lie there.
3. Whoever is out of the leader's range asks for the range: one that is ahead truncates to the leader's end, one that is
   behind starts anew at the leader's start.
4. A truncation below the point to which this log is compacted takes records that had superseded others, which are
   gone here and not with the leader (committed records were lost there): the log starts anew, except where this
   replica may be elected, and would lead with nothing: from the ISR, the eligible, or by a topic that lets anybody
   lead. Kafka truncates in any case.
5. Answers that show another idea of who leads wait for newer metadata; a failed log directory ends the following.
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
        """The epochs of a log, as `LeaderEpochs`."""

        def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
            """(last epoch at or below `epoch`, where it ends here); both −1 where that isn't known."""


class CorruptBatch(KafkaError):
    """What a leader sent isn't a batch, or not the one that was written. `offset` is the first that can't be copied."""

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
"""Errors that end when the metadata of one of the two moves on."""

UNKNOWN = -1


class Held(NamedTuple):
    """What the follower has."""

    log_start_offset: int
    log_end_offset: int
    last_epoch: int
    epochs: EpochHistory
    compacted_to: int = 0
    electable: bool = True


class Told(NamedTuple):
    """What the leader answered. `headers` are the (position, header) of the batches that `whole_batches` let pass."""

    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    headers: Sequence[tuple[int, BatchHeader]]


class Append(NamedTuple):
    """Append these batches (maybe none), and take over the leader's high watermark and log start.

    `restart_at`: first drop what there is and begin at that offset, because the first batch begins below the end of a
    log that holds nothing that the leader still has: its records were deleted up to the middle of that batch.
    """

    headers: Sequence[tuple[int, BatchHeader]]
    high_watermark: int
    log_start_offset: int
    restart_at: int | None = None


class Truncate(NamedTuple):
    """Drop everything from `offset` on, and ask again."""

    offset: int


class Restart(NamedTuple):
    """Drop everything, begin at `offset`, and ask again."""

    offset: int


class AskRange(NamedTuple):
    """Ask for the leader's start and end, and go on with `out_of_range`."""


class Pause(NamedTuple):
    """Ask again after a while. `awaited`: what is missing is newer metadata, so there is nothing to warn of."""

    error: int
    awaited: bool


Decision = Append | Truncate | Restart | AskRange | Pause


def decide(held: Held, told: Told) -> Decision:
    """What to do with the answer to a fetch at `held.log_end_offset` in the epoch that is followed."""
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
    """Where to truncate to when the leader says that `leader_epoch` is the last shared one and ended there."""
    own_epoch, own_end_offset = held.epochs.end_offset_for(leader_epoch, held.log_end_offset)
    if own_end_offset == UNKNOWN:  # no epoch is known here, or only later ones: the leader's word alone counts
        return min(leader_end_offset, held.log_end_offset)
    if own_epoch != leader_epoch:
        # The leader's epoch isn't known here: what is below it may diverge, too, and the next round will tell.
        return min(own_end_offset, held.log_end_offset)
    return min(own_end_offset, leader_end_offset, held.log_end_offset)


def _shortened(held: Held, offset: int, leader_start_offset: int) -> Decision:
    """How to become a log that ends at `offset` (rule 4)."""
    return Truncate(offset) if offset >= held.compacted_to or held.electable else Restart(leader_start_offset)


def out_of_range(held: Held, leader_start_offset: int, leader_end_offset: int) -> Decision:
    """What to do after OFFSET_OUT_OF_RANGE, knowing what the leader holds."""
    if leader_end_offset < held.log_end_offset:
        return _shortened(held, leader_end_offset, leader_start_offset)
    if leader_start_offset > held.log_end_offset:
        return Restart(leader_start_offset)
    return Pause(ErrorCode.offset_out_of_range, False)  # the range moved meanwhile: the next fetch finds what it needs


def whole_batches(
    buffer: Buffer, leader_epoch: int, due_offset: int, count_max: int = sys.maxsize
) -> list[tuple[int, BatchHeader]]:
    """(position, header) of the whole batches at the start of a record set, `count_max` at most; what is cut off at its
    end is left out. `due_offset` was asked for: the first batch ends there or later.

    So is what follows a batch of a later epoch than the one followed: the leader's file was truncated and written anew
    while it was being sent. Raises CorruptBatch where a batch is no batch, or they don't ascend.
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
