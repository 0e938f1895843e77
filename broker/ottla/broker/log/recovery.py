"""Opens a log from its directory, and after an unclean stop finds the longest valid prefix of it.

After a clean stop, only the last index interval of the active segment is scanned, unless indexes or leader epochs are
missing or damaged. After an unclean stop, every segment from the recovery point on is read: each batch must be whole,
of magic 2, with a valid CRC and ascending offsets. The log ends before the first batch that isn't, and later segments
are dropped. Indexes, leader epochs and producers are rebuilt on the way. A second recovery of the same log changes
nothing. A log can be opened and read even if the disk is full.

Segments are adjacent: each begins at the offset where the segment before it ends (`Log.roll` and compaction ensure
this). If a segment above the recovery point and the compacted part begins later, a loss of power took the end of the
segment before it: the log ends there, too.

A compaction or deletion that was interrupted is finished first. `.swap` files come from a complete compaction, and get
their final names. `.cleaned` files come from an incomplete one, and are removed, as `.deleted` files are. Source:
Kafka's LogLoader.
"""

from __future__ import annotations

import errno
import logging
from itertools import pairwise
from typing import NamedTuple

from ottla.protocol.batches import HEADER_SIZE, MAGIC
from ottla.storage import names
from ottla.storage.indexes import ABORTED_ENTRY_BYTES, MAX_RELATIVE_OFFSET, OFFSET_ENTRY, TIME_ENTRY

from . import epochs as leader_epochs
from .config import LogConfig
from .cuts import Cut
from .directory_services import DirectoryServices
from .disk import Disk, Entry, unless_full
from .epochs import LeaderEpochs
from .log import Log
from .producers import Producers
from .replay import replay_producers, restore_snapshot, write_snapshot
from .segment import DamagedSegment, Segment
from .segment_recovery import recover_segment
from .swapping import finish_interrupted

logger = logging.getLogger(__name__)


class BadLog(OSError):
    """A log can't be opened although its disk works: because of its files' content, or of a bug in Ottla."""


class Damage(NamedTuple):
    """Where a log's valid prefix ends, and what recovery dropped behind it."""

    segment: str
    offset: int
    bytes_dropped: int
    segments_dropped: int
    reason: str


class Opened(NamedTuple):
    """An opened log, and the results of its recovery."""

    log: Log
    segments_recovered: int
    damage: Damage | None
    shortened: Segment | None

    def take_over(self) -> Log:
        """Returns the log to its new owner. Called on the event loop, because recovery may have run in a thread."""
        if self.shortened is not None:
            self.log.was_cut(self.shortened)
        return self.log

    def tell(self, high_watermark: int) -> None:
        """Reports the log's losses in the broker's own log; `high_watermark` is the high watermark that was
        checkpointed last."""
        damage = self.damage
        if damage is not None:
            logger.warning(
                "%r ends at offset %d now: %s in %s; dropped %d bytes, %d later segments included",
                self.log, damage.offset, damage.reason, damage.segment, damage.bytes_dropped, damage.segments_dropped,
            )  # fmt: skip
        if self.log.log_end_offset < high_watermark:
            logger.error(
                "%r ends at offset %d, below its high watermark %d: committed records are missing here",
                self.log, self.log.log_end_offset, high_watermark,
            )  # fmt: skip

    def cut(self, high_watermark: int) -> Cut | None:
        """The log's loss, for the broker's reports; None where nothing was lost. `high_watermark` is as in `tell`."""
        log, damage = self.log, self.damage
        missing = max(high_watermark - log.log_end_offset, 0)
        if damage is None:
            gone = "the log ends below its high watermark"
            return Cut(log.topic, log.index, log.log_end_offset, 0, 0, missing, gone) if missing else None
        dropped = damage.bytes_dropped, damage.segments_dropped
        return Cut(log.topic, log.index, damage.offset, *dropped, missing, damage.reason)


def open_log(
    services: DirectoryServices,
    directory: str,
    topic: str,
    index: int,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    compacted_to: int = 0,
    high_watermark: int = 0,
) -> Opened:
    """Opens the log in `directory`, which exists; a directory without segments becomes an empty log.

    `clean` says whether the last stop was a clean one. The four offsets come from the checkpoints. Blocks; may run in
    any thread. Raises BadLog, and any other OSError of the disk's.
    """
    told = recovery_point, log_start_offset, compacted_to, high_watermark
    try:
        return _Opening(services, directory, topic, index, config, *told).run(clean)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, DamagedSegment):
            raise
        problem = str(error) or type(error).__name__
        raise BadLog(errno.EIO, f"{directory} can't be opened: {problem}") from error


class _Opening:
    """The state of one call of `open_log`."""

    def __init__(
        self,
        services: DirectoryServices,
        directory: str,
        topic: str,
        index: int,
        config: LogConfig,
        recovery_point: int,
        log_start_offset: int,
        compacted_to: int,
        high_watermark: int,
    ) -> None:
        self.services = services
        self.disk: Disk = services.disk
        self.directory = directory
        self.topic = topic
        self.index = index
        self.config = config
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.compacted_to = compacted_to
        self.producers = Producers(high_watermark)
        self.epochs_lost = False
        self.epochs = self._load_epochs()
        self.segments: list[Segment] = []
        self.snapshots: list[int] = []
        self.recovered = 0
        self.damage: Damage | None = None
        self.cut: Segment | None = None

    def run(self, clean: bool) -> Opened:
        now_ms = self.services.now_ms()
        files = finish_interrupted(self.disk, self.directory)
        unindexed = self._load_segments(files)
        first = min(unindexed, default=len(self.segments))
        if self.epochs_lost:
            first = 0
        elif not clean:
            first = self._first_running_on(min(first, self._first_unsynced()))
        replay_from = 0
        if first < len(self.segments):
            base = self.segments[first].base_offset
            self._drop_snapshots_above(base)
            # Compacted segments were synced, too, and in a directory of Kafka's they needn't be adjacent.
            synced = self.segments[-1].base_offset if clean else max(self.recovery_point, self.compacted_to)
            replay_from = self._recover_from(first, now_ms, synced)
        self._drop_hollow()
        end = self._end_offset()
        self.recovery_point = end if clean and not self.recovered else min(self.recovery_point, end)
        start = max(self.log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_start(start)
        self.epochs.truncate_from_end(end)
        if not self.recovered:
            self._drop_snapshots_above(end)
            replay_from = self._restore(now_ms)
        replay_producers(self.producers, self.segments, replay_from, end)
        self.producers.ends_at(end)
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)
        log = Log(
            self.services,
            self.directory,
            self.topic,
            self.index,
            self.config,
            self.segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=self.recovery_point,
            compacted_to=min(self.compacted_to, end),
            epochs=self.epochs,
            producers=self.producers,
            snapshots=self.snapshots,
        )
        for segment in self.segments:
            segment.let_go()
        return Opened(log, self.recovered, self.damage, self.cut)

    def _load_epochs(self) -> LeaderEpochs:
        try:
            return leader_epochs.load(self.disk, self.directory)
        except ValueError as error:
            logger.warning("%s: %s; the leader epochs are read from the batches", self.directory, error)
            self.epochs_lost = True
            return LeaderEpochs(self.disk, self.directory)

    def _load_segments(self, files: dict[str, Entry]) -> list[int]:
        """Fills `segments` and `snapshots`. Returns the positions of segments whose indexes are missing or
        implausible."""
        by_offset: dict[int, dict[str, Entry]] = {}
        for name, entry in files.items():
            parsed = names.parse_offset_name(name)
            if parsed is None:
                continue
            offset, suffix = parsed
            if suffix == names.PRODUCER_SNAPSHOT:
                self.snapshots.append(offset)
            elif suffix in names.SEGMENT_SUFFIXES:
                by_offset.setdefault(offset, {})[suffix] = entry
        self.snapshots.sort()
        unindexed = []
        for offset in sorted(by_offset):
            found = by_offset[offset]
            if names.LOG not in found:
                for entry in found.values():
                    logger.warning("%s/%s: an index without a log file is removed", self.directory, entry.name)
                    self.disk.remove(f"{self.directory}/{entry.name}")
                continue
            segment = self._segment(offset, found)
            if not self._indexes_plausible(segment, found):
                unindexed.append(len(self.segments))
            self.segments.append(segment)
        if self.segments and len(self.segments) - 1 not in unindexed and not _resumable(self.segments[-1]):
            unindexed.append(len(self.segments) - 1)
        return unindexed

    def _segment(self, offset: int, found: dict[str, Entry]) -> Segment:
        index, times = found.get(names.OFFSET_INDEX), found.get(names.TIME_INDEX)
        aborted = found.get(names.TRANSACTION_INDEX)
        log = found[names.LOG]
        segment = Segment(
            self.disk,
            self.directory,
            offset,
            open_files=self.services.open_files,
            size=log.size,
            created_ms=log.modified_ms,
            index_bytes=index.size if index else 0,
            time_index_bytes=times.size if times else 0,
            transaction_index_bytes=aborted.size if aborted else 0,
        )
        segment.modified_ms = log.modified_ms
        return segment

    def _indexes_plausible(self, segment: Segment, found: dict[str, Entry]) -> bool:
        index, times = found.get(names.OFFSET_INDEX), found.get(names.TIME_INDEX)
        aborted = found.get(names.TRANSACTION_INDEX)
        if aborted is not None and aborted.size % ABORTED_ENTRY_BYTES:
            return False
        if not segment.size:
            return not len(segment.offsets)
        if index is None or times is None or index.size % OFFSET_ENTRY.size or times.size % TIME_ENTRY.size:
            return False
        if not index.size:
            return segment.size <= 2 * self.config.index_interval_bytes or not self._has_several_batches(segment)
        last = segment.offsets.last()
        return last.offset > segment.base_offset and 0 <= last.position < segment.size

    def _has_several_batches(self, segment: Segment) -> bool:
        """Whether the segment, whose offset index is empty, has so many bytes behind its first batch that entries are
        missing. (For a single large batch, an empty index is right.)"""
        header = segment.header_at(0)
        return header is None or segment.size - header.size > 2 * self.config.index_interval_bytes

    def _first_unsynced(self) -> int:
        """The position of the segment with the recovery point, or of the last one: the indexes from that segment on may
        be incomplete on the disk."""
        at = len(self.segments) - 1
        while at > 0 and self.segments[at].base_offset > self.recovery_point:
            at -= 1
        return max(at, 0)

    def _first_running_on(self, stop: int) -> int:
        """The position of the first segment before `stop` whose offsets overlap those of the next segment; `stop` if no
        segment's do.

        Such a segment was truncated, and then a loss of power undid the truncation, which wasn't synced. The next
        segment was begun after the truncation, so it isn't synced either, and the caller drops it.
        """
        pairs = enumerate(pairwise(self.segments[: stop + 1]))
        running_on = (at for at, (segment, following) in pairs if segment.end_offset() > following.base_offset)
        return next(running_on, stop)

    def _restore(self, now_ms: int) -> int:
        return restore_snapshot(
            self.disk,
            self.directory,
            self.snapshots,
            self.producers,
            now_ms,
            self.config.producer_id_expiration_ms,
        )

    def _recover_from(self, first: int, now_ms: int, synced: int) -> int:
        """Recovers the segments from `first` on. A gap before a segment that begins at or below `synced` isn't damage,
        because the segment before the gap was synced whole. Returns the offset up to which the producers' state is
        known then."""
        base = self.segments[first].base_offset
        replay_producers(self.producers, self.segments[:first], self._restore(now_ms), base)
        known_starts = self.epochs.forget_from(base)
        next_offset = base
        for at in range(first, len(self.segments)):
            segment = self.segments[at]
            if at > first:
                if segment.base_offset > synced and _is_hole(next_offset, segment.base_offset):
                    reason = f"{segment.path} doesn't follow"
                    self._end_with(at - 1, self.segments[at - 1].size, next_offset, reason)
                    break
                self._snapshot(segment.base_offset)
            size = segment.size
            next_offset, reason = recover_segment(
                segment, self.config, self.epochs, known_starts, self.producers, next_offset
            )
            self.recovered += 1
            if reason:
                self._end_with(at, size, next_offset, reason)
                break
        self.epochs.write()
        return next_offset

    def _end_with(self, at: int, size: int, end: int, reason: str) -> None:
        """Ends the log with the segment `at`, which had `size` bytes: drops the invalid end of that segment, and all
        later segments."""
        segment = self.segments[at]
        dropped = self.segments[at + 1 :]
        del self.segments[at + 1 :]
        lost = size - segment.size + sum(later.size for later in dropped)
        for later in reversed(dropped):  # the cut comes last: a stop in between must not make a hole
            self._remove(later)
        segment.file.truncate(segment.size)
        self.cut = segment
        self.damage = Damage(segment.path, end, lost, len(dropped), reason)

    def _snapshot(self, offset: int) -> None:
        if not self.snapshots or self.snapshots[-1] < offset:
            with unless_full():
                write_snapshot(self.disk, self.directory, offset, self.producers)
                self.snapshots.append(offset)

    def _drop_snapshots_above(self, offset: int) -> None:
        while self.snapshots and self.snapshots[-1] > offset:
            self._drop_snapshot(self.snapshots[-1])

    def _drop_snapshot(self, offset: int) -> None:
        self.snapshots.remove(offset)
        self.disk.remove(f"{self.directory}/{names.offset_name(offset, names.PRODUCER_SNAPSHOT)}")

    def _remove(self, segment: Segment) -> None:
        segment.let_go()
        for suffix in names.SEGMENT_SUFFIXES:
            self.disk.remove(f"{self.directory}/{names.offset_name(segment.base_offset, suffix)}")

    def _drop_hollow(self) -> None:
        """Removes an empty segment whose base offset is among the offsets of the segment before: reads of the offsets
        from there on would find nothing. Such a segment was begun by a roll that failed, or all of its batches were cut
        off. Its producer snapshot is removed, too, because it wasn't taken at the offset in its name."""
        for at in range(len(self.segments) - 1, 0, -1):
            segment = self.segments[at]
            if not segment.size and self.segments[at - 1].end_offset() > segment.base_offset:
                logger.warning(
                    "%s is removed: it is empty, and the segment before ends at a higher offset", segment.path
                )
                self._remove(segment)
                del self.segments[at]
                if segment.base_offset in self.snapshots:
                    self._drop_snapshot(segment.base_offset)

    def _end_offset(self) -> int:
        """The log's end offset. Prepares the active segment for appends; creates a first segment where there is none,
        or where the log ends below the log start offset."""
        if self.segments:
            end = self.segments[-1].resume()
            if end >= self.log_start_offset:
                return end
            logger.warning(
                "%s: the log ends at %d, below its start offset %d: it becomes empty, and begins at its start offset",
                self.directory, end, self.log_start_offset,
            )  # fmt: skip
            for segment in self.segments:
                self._remove(segment)
            self.segments.clear()
            self._drop_snapshots_above(-1)
            self.producers.clear()
        segment = Segment(
            self.disk,
            self.directory,
            self.log_start_offset,
            open_files=self.services.open_files,
            created_ms=self.services.now_ms(),
        )
        segment.begin()
        self.segments.append(segment)
        return self.log_start_offset


def _resumable(segment: Segment) -> bool:
    """Whether the last entry of the offset index points to a batch, so that the search for the log's end can begin
    there.

    In a directory that Kafka wrote, an entry may have the last offset of several batches and the position of the first
    of them. There may also be batches of an older magic, whose headers differ.
    """
    if not segment.size or not len(segment.offsets):
        return True
    last = segment.offsets.last()
    header = segment.header_at(last.position)
    if header is None or not HEADER_SIZE <= header.size <= segment.size - last.position:
        return False
    if header.magic != MAGIC:
        return 0 <= header.magic < MAGIC
    return segment.base_offset <= header.base_offset <= header.last_offset <= last.offset


def _is_hole(end: int, base_offset: int) -> bool:
    """Whether offsets are missing between a segment that ends at `end` and the next one. A leap that is too wide for
    the relative offsets of indexes isn't a hole: `Log` began the next segment behind it on purpose. `Log` measures the
    leap up to the last offset of the batches to append, which is somewhat beyond `base_offset`. So the limit here is
    only half as high."""
    return 0 < base_offset - end <= MAX_RELATIVE_OFFSET // 2
