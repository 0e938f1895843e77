"""Shortens a log: at its end, where the log diverges from its leader's log, and at its start, by retention.

Epochs, producers, their snapshots and the recovery point depend on the dropped batches, and change with them. The
functions here are steps of `Log`, on the event loop. Source: Kafka's UnifiedLog (truncateTo, truncateFullyAndStartAt,
deleteOldSegments) and LocalLog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.storage import names

from .disk import all_or_unusable
from .replay import producers_at
from .retention import deletable

if TYPE_CHECKING:
    from .log import Log


def truncate_to(log: Log, offset: int) -> bool:
    """Drops everything from `offset` on; see `Log.truncate_to`."""
    if offset >= log.log_end_offset:
        # A leader notes its epoch even if it writes nothing in it, and the next leader doesn't know of that epoch.
        log.epochs.truncate_from_end(log.log_end_offset)
        return False
    segments = log.segments
    if offset < segments.all[0].base_offset:
        truncate_fully_and_start_at(log, offset)
        return True
    # The steps that may fail for lack of descriptors come first: their failure leaves the log unchanged.
    at = segments.index_of(offset)
    position, end = segments.all[at].cut_for(offset)
    disk, now_ms, keep_ms = log.services.disk, log.services.now_ms(), log.config.producer_id_expiration_ms
    producers = producers_at(end, log.producers, disk, log.directory, log.snapshots, segments.all, now_ms, keep_ms)
    with all_or_unusable():
        _drop(log, at + 1, None, from_end=True)
        if position < segments.active.size:
            segments.active.cut(position, end)
            log.was_cut(segments.active)
        _ended_at(log, end)
        drop_snapshots(log, lambda offset: offset > end)
    log.producers = producers
    return True


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Drops all records; the empty log begins at `offset`."""
    segments = log.segments
    fresh = None if offset in segments.bases else segments.begin(offset)
    with all_or_unusable():
        _drop(log, 0, None, from_end=True)
        segments.add(fresh or segments.begin(offset))
        log.log_start_offset = offset
        log.epochs.clear()
        _ended_at(log, offset)
        drop_snapshots(log, lambda _: True)
    log.producers.clear()


def delete_old_segments(
    log: Log, now_ms: int, high_watermark: int, count_max: int | None = None
) -> tuple[int, str] | None:
    """Deletes the oldest segments that the topic no longer keeps; see `Log.retention`."""
    if log.retired:
        return None
    segments = log.segments
    count, reason = deletable(
        segments.all, log.log_end_offset, log.config, now_ms, high_watermark, log.log_start_offset, count_max
    )
    if not count:
        return None
    if count == len(segments.all):
        log.roll()
    # The log's start rises first: no read may begin in a segment whose index has been renamed already, and the log file
    # not yet.
    log.log_start_offset = max(log.log_start_offset, segments.bases[count])
    log.epochs.truncate_from_start(log.log_start_offset)
    _drop(log, 0, count, from_end=False)
    return count, reason


def drop_snapshots(log: Log, unwanted: Callable[[int], bool]) -> None:
    """Drops the producers' snapshots whose offsets `unwanted` accepts."""
    gone = log.producer_snapshots.forget(unwanted)
    files = (names.offset_name(offset, names.PRODUCER_SNAPSHOT) for offset in gone)
    log.services.doom(log.directory, files, log.config.file_delete_delay_ms)


def _drop(log: Log, start: int, stop: int | None, *, from_end: bool) -> None:
    """Drops segments, and the snapshots of their base offsets."""
    bases = log.segments.drop(start, stop, log.config.file_delete_delay_ms, from_end=from_end)
    drop_snapshots(log, lambda offset: offset in bases)


def _ended_at(log: Log, offset: int) -> None:
    log.generation += 1
    log.segments.boundaries.clear()
    log.log_end_offset = offset
    log.log_start_offset = min(log.log_start_offset, offset)
    log.recovery_point = min(log.recovery_point, offset)
    log.unsynced.truncated(log.compacted_to)
    log.compacted_to = min(log.compacted_to, offset)
    log.epochs.truncate_from_end(offset)
