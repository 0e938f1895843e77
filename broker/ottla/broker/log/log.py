"""One partition's log on one broker: its segments, offsets, epochs and producers.

Owned by the event loop: every method that changes the log, except `flush` and `close`, runs there, takes no lock, and
doesn't wait for the disk (writes reach the page cache). A sync has three steps: `begin_flush` lists the files,
`PendingFlush.run` syncs them in a thread, and `flushed` moves the recovery point, which never covers unsynced batches.

`recovery.open_log` creates the `Log` object. Source: Kafka's UnifiedLog and LocalLog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ottla.protocol.batches import BatchHeader
from ottla.protocol.received import Buffer
from ottla.storage.indexes import MAX_RELATIVE_OFFSET, AbortedTransaction

from . import flushing, shortening
from .config import LogConfig
from .directory_services import DirectoryServices
from .epochs import LeaderEpochs
from .flushing import PendingFlush
from .log_segments import LogSegments
from .producers import Producers
from .replay import note_batch
from .segment import FileRange, FoundRecord, Segment, Sizes
from .snapshots import Snapshots
from .timestamps import first_from, first_of_greatest
from .unsynced import Unsynced

_UNTIMED = -1
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class Log:
    """Batches from `log_start_offset` to `log_end_offset`.

    All batches below `recovery_point` are on the disk. Below `compacted_to`, each key has one record. `epochs` and
    `producers` change only when the log changes.
    """

    __slots__ = (
        "compacted_to",
        "config",
        "epochs",
        "generation",
        "index",
        "last_flush_ms",
        "log_end_offset",
        "log_start_offset",
        "producer_snapshots",
        "producers",
        "recovery_point",
        "retired",
        "segments",
        "services",
        "topic",
        "unsynced",
    )

    def __init__(
        self,
        services: DirectoryServices,
        directory: str,
        topic: str,
        index: int,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        compacted_to: int,
        epochs: LeaderEpochs,
        producers: Producers,
        snapshots: list[int],
    ) -> None:
        self.services = services
        self.topic = topic
        self.index = index
        self.config = config
        self.segments = LogSegments(services, directory, segments)
        self.unsynced = Unsynced()
        self.producer_snapshots = Snapshots(snapshots)
        self.generation = 0  # counts truncations and moves: a flush or a read that began before one doesn't count
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.compacted_to = compacted_to
        self.epochs = epochs
        self.producers = producers
        self.last_flush_ms = services.now_ms()
        self.retired = False  # whether the broker has given up this log

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def directory(self) -> str:
        """The path of the partition's directory."""
        return self.segments.directory

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments.all)

    @property
    def last_leader_epoch(self) -> int:
        """The epoch of the last leader that this log knows; −1 where none."""
        return self.epochs.latest

    @property
    def snapshots(self) -> list[int]:
        """The offsets of the producers' snapshots on the disk."""
        return self.producer_snapshots.on_disk

    @property
    def active(self) -> Segment:
        """The segment that batches are appended to."""
        return self.segments.active

    def directory_failed(self, error: OSError) -> None:
        """Reports an OSError of this log's files to the log directories, unless the log is retired. An error that means
        that the log is damaged takes only this log offline."""
        if not self.retired:
            self.services.failed(self, error)

    # ---- appending

    def append(
        self, batch: Buffer, header: BatchHeader, base_offset: int, leader_epoch: int, append_time: int = _UNTIMED
    ) -> None:
        """Appends the bytes of one batch, which the caller has checked and whose offset and epoch it has patched.

        `header` may be the batch's header from before the patching: the arguments overrule its base offset and epoch,
        and with `append_time` its timestamps. Raises OSError; then no record was added, though a segment or an epoch
        may be new.
        """
        if base_offset < self.log_end_offset:
            raise AssertionError(f"{self!r}: offset {base_offset} isn't the log's end {self.log_end_offset}")
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = append_time if append_time >= 0 else header.max_timestamp
        size = len(batch)
        segments, config = self.segments, self.config
        segment = segments.active
        position = segment.size
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET or (
            position
            and (
                position + size > config.segment_bytes
                or segment.full
                or self._waited_long_enough(segment, max_timestamp)
            )
        ):
            segment = self._roll_for(base_offset, last_offset)
            position = 0
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        segment.write(batch, position)
        segment.appended(last_offset, position, size, max_timestamp, config)
        segments.remember(base_offset, position)
        if header.producer_id >= 0:
            aborted = note_batch(self.producers, batch, header, last_offset, max_timestamp)
            if aborted is not None:
                segment.note_aborted(aborted)
        self.log_end_offset = last_offset + 1

    def append_replicated(self, buffer: Buffer, headers: Sequence[tuple[int, BatchHeader]]) -> None:
        """Appends batches from a leader: `headers` are the (position, header) of whole batches that fill `buffer`.

        All batches are written in one call. Raises OSError; then no record was added, though a segment or an epoch may
        be new.
        """
        if not headers:
            return
        first, last = headers[0][1], headers[-1][1]
        if first.base_offset < self.log_end_offset:
            raise AssertionError(f"{self!r}: offset {first.base_offset} is below the log's end {self.log_end_offset}")
        segments = self.segments
        segment = segments.active
        start = segment.size
        if last.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET or (
            start
            and (
                start + len(buffer) > self.config.segment_bytes
                or segment.full
                or self._waited_long_enough(segment, max(header.max_timestamp for _, header in headers))
            )
        ):
            segment = self._roll_for(first.base_offset, last.last_offset)
            start = 0
        for _, header in headers:
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
        segment.write(buffer, start)
        for position, header in headers:
            segment.appended(header.last_offset, start + position, header.size, header.max_timestamp, self.config)
            segments.remember(header.base_offset, start + position)
            if header.producer_id >= 0:
                batch = memoryview(buffer)[position : position + header.size]
                aborted = note_batch(self.producers, batch, header, header.last_offset, header.max_timestamp)
                if aborted is not None:
                    segment.note_aborted(aborted)
        self.log_end_offset = last.last_offset + 1

    def _waited_long_enough(self, segment: Segment, timestamp: int) -> bool:
        """Whether the active segment is so old that it has to be rolled (`LogConfig.roll_ms`), by the records'
        timestamps where they have any."""
        limit = self.config.roll_ms
        if timestamp >= 0 and segment.first_timestamp >= 0:
            return timestamp - segment.first_timestamp > limit
        return self.services.now_ms() - segment.created_ms > limit

    def _roll_for(self, base_offset: int, last_offset: int) -> Segment:
        """A new segment for records from `base_offset` to `last_offset`. It begins at the log's end, even if the
        leader's compaction removed the records right after it, so that recovery can tell where a segment is missing. It
        begins at `base_offset` only if the indexes couldn't express `last_offset` otherwise."""
        reached = last_offset - self.log_end_offset <= MAX_RELATIVE_OFFSET
        return self.roll(self.log_end_offset if reached else base_offset)

    def roll(self, base_offset: int | None = None) -> Segment:
        """Seals the active segment, begins a new one at `base_offset` (default: the log's end), and returns it.

        Returns the active segment unchanged where it begins there already and is therefore empty.
        """
        start = self.log_end_offset if base_offset is None else base_offset
        segments = self.segments
        old = segments.active
        if start == old.base_offset:
            return old
        old.seal()
        segment = segments.begin(start)
        self.producer_snapshots.write_later(self.services.disk, self.directory, self.log_end_offset, self.producers)
        segments.add(segment)
        self.services.wants_flush(self)
        return segment

    # ---- reading

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, minimum_one: bool = True, wait: bool = True
    ) -> list[FileRange]:
        """About `max_bytes` of the batches from the one with `offset` up to `limit_offset` (a batch boundary, at most
        the log's end). The last batch may be cut, as in Kafka.

        With `minimum_one` the first batch is whole whatever its size; without, the list is empty where the first batch
        doesn't fit. The list is empty, too, where there is nothing to read. The caller checks that `offset` is between
        the log's start and end. Without `wait`, raises BlockingIOError where the look-up would have to wait for the
        disk.
        """
        if offset >= limit_offset:
            return []
        segments = self.segments
        among = segments.all
        at = segments.index_of(offset)
        start = segments.boundaries.get(offset) if at == len(among) - 1 else None
        while start is None:
            if at == len(among):
                return []
            start = among[at].position_of(offset, wait)
            if start is None:
                at += 1
        segment = among[at]
        end = segment.size if limit_offset >= self.log_end_offset else segments.end_position(at, limit_offset, wait)
        if end - start > max_bytes:
            end = segment.read_end(start, max_bytes, minimum_one, wait)
        file = segment.file if wait else segment.opened
        return [_new(FileRange, (file, start, end - start))] if end > start else []

    def read_bytes(self, offset: int, max_bytes: int, limit_offset: int) -> bytes:
        """Returns the bytes of the batches that `read` finds: for the broker's own topics."""
        return b"".join(
            part.file.pread(part.size, part.position) for part in self.read(offset, max_bytes, limit_offset)
        )

    def segments_read(self, offset: int) -> list[Segment]:
        """The segments that a read from `offset` searches, one after the other until one has a batch for it. The first
        segment may have none, because compaction may have removed every record from `offset` on in it."""
        return self.segments[self.segments.index_of(offset) :]

    def aborted_between(self, offset: int, end_offset: int, wait: bool = True) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of the records from `offset` up to `end_offset` has to know: at least
        those that began before `end_offset`, and whose marker is at `offset` or behind it; in the order of their
        markers. Without `wait`, raises BlockingIOError where a transaction index must be read from the disk."""
        found: list[AbortedTransaction] = []
        for segment in self.segments.all[self.segments.index_of(offset) :]:
            if segment.aborted is not None and segment.aborted.find(offset, end_offset, found, wait):
                break
        return found

    def has_aborted(self, offset: int) -> bool:
        """Whether an aborted transaction has its marker in the segment of `offset`, or in a later one."""
        segments = self.segments
        return any(segment.aborted is not None for segment in segments.all[segments.index_of(offset) :])

    def end_of_read(self, offset: int, size: int, wait: bool = True) -> int:
        """An offset at or above the end of the `size` bytes of batches from `offset` on: as near as the offset index
        says. Without `wait`, raises BlockingIOError where the look-up would have to wait for the disk."""
        for segment in self.segments_read(offset):
            start = segment.position_of(offset, wait)
            if start is not None:
                found = segment.offsets.above(start + size, wait)
                after = self.segment_after(segment.base_offset) if found is None else found
                return self.log_end_offset if after is None else after
        return self.log_end_offset

    def segment_after(self, offset: int) -> int | None:
        """The base offset of the segment behind the segment with `offset`; None where there is no such segment."""
        bases, at = self.segments.bases, self.segments.index_of(offset) + 1
        return bases[at] if at < len(bases) else None

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """The size in bytes of the batches from the one with `offset` up to `end_offset`; batches of later segments
        aren't counted. Raises BlockingIOError where the look-up would have to wait for the disk."""
        segments = self.segments
        at = segments.index_of(offset)
        segment = segments.all[at]
        start = segments.boundaries.get(offset) if segment is segments.active else None
        if start is None:
            start = segment.position_of(offset, wait=False)
        if start is None:
            return 0
        whole = end_offset >= self.log_end_offset
        end = segment.size if whole else segments.end_position(at, end_offset, wait=False)
        return max(end - start, 0)

    # ---- looking up

    def offset_for_timestamp(self, timestamp: int) -> FoundRecord | None:
        """The first record whose timestamp is at least `timestamp`. Reads, and may decompress, one batch: not to be
        called on the event loop where batches are large."""
        return first_from(self, timestamp)

    def offset_of_max_timestamp(self) -> FoundRecord | None:
        """The first record with the greatest timestamp of the log (KIP-734)."""
        return first_of_greatest(self)

    # ---- durability

    @property
    def flush_overdue(self) -> bool:
        """Whether `flush.messages` demands a sync before the last append is acknowledged."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` demands a sync."""
        return self.log_end_offset > self.recovery_point and now_ms - self.last_flush_ms >= self.config.flush_ms

    def begin_flush(self, end_offset: int | None = None) -> PendingFlush:
        """Prepares the sync that makes everything below `end_offset` (default: the log's end) durable. Raises
        OSError."""
        return flushing.begin_flush(self, self.log_end_offset if end_offset is None else end_offset)

    def flushed(self, flush: PendingFlush) -> None:
        """Notes that a flush has run without error: moves the recovery point, unless the log was truncated or moved
        meanwhile."""
        self.producer_snapshots.synced(flush.snapshots)
        if flush.generation == self.generation:
            self.unsynced.synced()
            self.recovery_point = max(self.recovery_point, flush.end_offset)

    def flush(self) -> None:
        """Syncs now; blocks."""
        pending = self.begin_flush()
        pending.run()
        self.flushed(pending)

    def close(self) -> None:
        """Leaves the files as a clean stop does: indexes complete, producers in a snapshot, all synced. Blocks."""
        flushing.close(self)

    # ---- other directories

    def moved(self, services: DirectoryServices, directory: str, recovery_point: int) -> None:
        """Notes that the log's files are in `directory` now, where everything below `recovery_point` is synced."""
        self.producer_snapshots.moved()
        self.services = services
        self.generation += 1
        self.recovery_point = recovery_point
        self.compacted_to = min(self.compacted_to, recovery_point)  # recovery takes all records below it for synced
        self.unsynced.compacted_to = 0  # the truncated records have never been in these files
        self.segments.moved(services, directory)
        self.epochs.moved(directory)

    def retire(self, directory: str) -> None:
        """Notes that the broker gives up this log. Its files are in `directory` now, where threads that still read find
        them. A new log may take the former name of the directory immediately; later calls on this log don't touch the
        new one."""
        self.producer_snapshots.give_up()
        self.retired = True
        self.segments.moved(self.services, directory)

    # ---- shortening

    def truncate_to(self, offset: int) -> bool:
        """Drops everything from `offset` on. A batch that contains `offset` is dropped whole. Returns whether anything
        was dropped.

        Epochs, producers and the recovery point are set back, too. Raises OSError.
        """
        return shortening.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the empty log begins at `offset`. Raises OSError."""
        shortening.truncate_fully_and_start_at(self, offset)

    def was_cut(self, segment: Segment) -> None:
        """Notes that a segment was shortened: until its sync, a loss of power may bring back the dropped batches."""
        self.unsynced.segments[segment] = None
        self.services.wants_flush(self)

    def delete_records_before(self, offset: int) -> bool:
        """Raises the log start offset (DeleteRecords, the leader's start); returns whether it rose. Retention deletes
        the segments.

        The caller has checked `offset` against the high watermark.
        """
        if offset <= self.log_start_offset:
            return False
        if offset > self.log_end_offset:
            raise AssertionError(f"{self!r}: log start {offset} is beyond the log's end {self.log_end_offset}")
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def retention(self, now_ms: int, high_watermark: int, count_max: int | None = None) -> tuple[int, str] | None:
        """Deletes the oldest segments that the topic no longer keeps, at most `count_max`. Returns the number of
        deleted segments and the reason, or None if no segment was deleted.

        Never deletes beyond the high watermark; files are removed after `file.delete.delay.ms`. Raises OSError, also
        for lack of room, because a longer file name may take a block. The next call then deletes the remaining
        segments.
        """
        return shortening.delete_old_segments(self, now_ms, high_watermark, count_max)

    def expire_producers(self, now_ms: int, count_max: int) -> Iterator[None]:
        """Forgets idle producers in steps, each of which looks at `count_max` producers; yields between two steps."""
        return self.producers.expire_in_steps(now_ms, self.config.producer_id_expiration_ms, count_max)

    def swap_in(self, old_bases: Sequence[int], sizes: Sizes) -> None:
        """Replaces the sealed segments `old_bases` by the segment of `sizes` whose `.cleaned` files a compaction wrote
        and synced. Raises OSError."""
        self.segments.replace(old_bases, sizes, self.config.file_delete_delay_ms)
        shortening.drop_snapshots(self, lambda offset: offset in old_bases[1:])
