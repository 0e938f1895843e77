"""Rebuilds the producers' state: from a snapshot beside the segments, then from the headers of the batches after that
snapshot, and from the transaction markers among them.

Blocks. Source: Kafka's ProducerStateManager and UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.batches import CONTROL, BatchHeader
from ottla.protocol.markers import read_marker
from ottla.protocol.received import Buffer
from ottla.storage import names
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.producer_snapshot import read_marked_to, read_snapshot

from .disk import Disk
from .producers import Producers
from .segment import Segment


def write_snapshot(disk: Disk, directory: str, offset: int, producers: Producers) -> None:
    """Writes the producers' state as of `offset` to the snapshot file of that offset."""
    path = f"{directory}/{names.offset_name(offset, names.PRODUCER_SNAPSHOT)}"
    disk.write_atomically(path, producers.snapshot(), fsync=False)


def producers_at(
    end: int,
    now: Producers,
    disk: Disk,
    directory: str,
    snapshots: list[int],
    segments: Sequence[Segment],
    now_ms: int,
    expiration_ms: int,
) -> Producers:
    """The producers as they were when the log ended at `end`. The parameter `now` is the log's present `Producers`: it
    is set back and returned if possible; otherwise a new `Producers` is built from a snapshot and the log. Damaged
    snapshots are removed from the disk and from the list `snapshots`."""
    if now.truncate_to(end):
        return now  # reading a segment's headers would take seconds, or minutes
    producers = Producers(min(now.transactions.replicated_to, end))
    usable = [offset for offset in snapshots if offset <= end]
    later = snapshots[len(usable) :]
    start = restore_snapshot(disk, directory, usable, producers, now_ms, expiration_ms)
    snapshots[:] = usable + later
    replay_producers(producers, segments, start, end)
    return producers


def restore_snapshot(
    disk: Disk, directory: str, snapshots: list[int], producers: Producers, now_ms: int, expiration_ms: int
) -> int:
    """Loads the newest readable snapshot, and returns the offset to replay from. Damaged or missing snapshots are
    removed from the disk and from the list `snapshots`."""
    while snapshots:
        path = f"{directory}/{names.offset_name(snapshots[-1], names.PRODUCER_SNAPSHOT)}"
        try:
            content = disk.read(path)
            entries = list(read_snapshot(content))
            producers.restore(entries, snapshots[-1], now_ms, expiration_ms, read_marked_to(content))
            return snapshots[-1]
        except (ValueError, FileNotFoundError):
            disk.remove(path)
            snapshots.pop()
    return 0


def replay_producers(producers: Producers, segments: Sequence[Segment], start: int, end: int) -> None:
    """Adds to the producers' state the batches from `start` to `end`, by their headers."""
    for at, segment in enumerate(segments):
        if at + 1 < len(segments) and segments[at + 1].base_offset <= start:
            continue
        if segment.base_offset >= end:
            return
        position = segment.position_of(start) if start > segment.base_offset else 0
        if position is None:
            continue
        for place, header in segment.headers(position):
            if header.base_offset >= end:
                return
            if header.producer_id < 0 or header.base_offset < start:
                continue
            if header.attributes & CONTROL:
                note_marker(producers, segment.batch_at(place, header), header, header.base_offset)
            else:
                producers.update(header, header.last_offset, header.max_timestamp)


def note_batch(
    producers: Producers, batch: Buffer, header: BatchHeader, last_offset: int, max_timestamp: int
) -> AbortedTransaction | None:
    """Adds a batch to the state of its producer: its records, or the transaction marker in it. `last_offset` and
    `max_timestamp` (in ms) are those of the batch in the log. Returns the transaction that the batch aborts, for the
    transaction index of the batch's segment."""
    if header.attributes & CONTROL:
        return note_marker(producers, batch, header, last_offset)
    producers.update(header, last_offset, max_timestamp)
    return None


def note_marker(producers: Producers, batch: Buffer, header: BatchHeader, offset: int) -> AbortedTransaction | None:
    """Ends a producer's transaction by the marker in the control batch at `offset`. Returns the transaction if it was
    aborted and has data. A control batch without a marker changes nothing."""
    marker = read_marker(batch)
    if marker is None:
        return None
    return producers.transaction_ended(header.producer_id, header.producer_epoch, marker, offset)
