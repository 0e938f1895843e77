"""Recovers one segment: reads it whole, rebuilds all state that is derived from its batches, and finds where the valid
batches end.

A batch is valid if it is whole, of magic 2, with the right CRC and ascending offsets. Source: Kafka's
LogSegment.recover.
"""

from __future__ import annotations

from ottla.protocol.batches import MAGIC, BatchHeader, crc_valid

from .config import LogConfig
from .disk import unless_full
from .epochs import LeaderEpochs
from .producers import Producers
from .replay import note_batch
from .segment import Segment


def recover_segment(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochs,
    known_starts: dict[int, int],
    producers: Producers,
    next_offset: int,
) -> tuple[int, str]:
    """Reads a whole segment, rebuilds its indexes, and sets its end behind the last valid batch; the file isn't
    truncated yet.

    `next_offset` is the least offset that the segment may begin with; `known_starts` has the start offsets of epochs
    from the checkpoint. Returns the offset after the last valid batch, and why the bytes behind it aren't valid (empty
    if there are none).
    """
    size = segment.size
    segment.offsets.clear()
    segment.times.clear()
    segment.forget_aborted()
    segment.size = segment.bytes_since_index = 0
    segment.resume()
    reason = ""
    try:
        for position, header, batch in segment.batches(size):
            reason = _fault(segment, header, batch, next_offset)
            if reason:
                reason = f"{reason} at position {position}"
                break
            if header.leader_epoch >= 0 and header.leader_epoch > epochs.latest:
                start = known_starts.get(header.leader_epoch, header.base_offset)
                # Compaction may have removed an epoch's first batches: then only the checkpoint knows where it began.
                if not next_offset <= start <= header.base_offset:
                    start = header.base_offset
                epochs.assign(header.leader_epoch, start)
            aborted = None
            if header.producer_id >= 0:
                aborted = note_batch(producers, batch, header, header.last_offset, header.max_timestamp)
            segment.appended(header.last_offset, position, header.size, header.max_timestamp, config)
            if aborted is not None:
                segment.note_aborted(aborted)
            next_offset = header.last_offset + 1
    except ValueError as error:
        reason = str(error)
    if segment.size < size:
        reason = reason or f"no batch at position {segment.size}"
    with unless_full():  # entries that the index's file lacks stay in memory until the next sync
        segment.seal()
    return next_offset, reason


def _fault(segment: Segment, header: BatchHeader, batch: memoryview, next_offset: int) -> str:
    """The reason why a whole batch is invalid; empty where the batch is valid."""
    if header.magic != MAGIC:
        return f"a batch has magic {header.magic} instead of {MAGIC}"
    if not crc_valid(batch, 0, header.size):
        return "a batch with a wrong CRC"
    if header.base_offset < max(next_offset, segment.base_offset) or header.last_offset_delta < 0:
        return f"offset {header.base_offset} follows offset {next_offset - 1}"
    if not segment.has_room_for(header.last_offset):
        return f"offset {header.last_offset} is too far from the segment's base offset"
    return ""
