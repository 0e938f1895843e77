"""The segments of one log, in the order of their offsets: finds, adds and removes segments.

Owned by the event loop; threads only read. The files of removed segments are renamed immediately, in such an order that
a stop halfway leaves no gap in the log. They are deleted after a delay: threads that still read find them under the new
names. Source: Kafka's LogSegments, and LocalLog for the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from ottla.storage import names

from .directory_services import DirectoryServices
from .segment import Segment, Sizes
from .swapping import put_in_place

_BOUNDARIES_MAX = 16


class LogSegments(Sequence[Segment]):
    """The segments, of which there is at least one. `active` is the last one, which batches are appended to; `all` is
    the list of all of them, and `bases` the list of their base offsets. `boundaries` has the positions of recent
    batches of the active segment, by their base offsets."""

    __slots__ = ("active", "all", "bases", "boundaries", "directory", "services")

    def __init__(self, services: DirectoryServices, directory: str, segments: list[Segment]) -> None:
        self.services = services
        self.directory = directory
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.boundaries: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self.all[index]

    def index_of(self, offset: int) -> int:
        """The index of the segment whose range of offsets contains `offset`; the first segment where `offset` is below
        all."""
        if offset >= self.active.base_offset:
            return len(self.all) - 1
        return max(bisect_right(self.bases, offset) - 1, 0)

    def remember(self, base_offset: int, position: int) -> None:
        """Notes where a batch of the active segment starts."""
        boundaries = self.boundaries
        boundaries[base_offset] = position
        if len(boundaries) > _BOUNDARIES_MAX:
            del boundaries[next(iter(boundaries))]

    def end_position(self, at: int, limit_offset: int, wait: bool) -> int:
        """The end position, in segment `at`, of the batches below `limit_offset`. `limit_offset` must be below the
        log's end. `wait` is as in `Segment.position_of`."""
        segment = self.all[at]
        if at + 1 < len(self.bases) and limit_offset >= self.bases[at + 1]:
            return segment.size
        position = self.boundaries.get(limit_offset) if segment is self.active else None
        if position is None:
            position = segment.position_of(limit_offset, wait)
        return segment.size if position is None else position

    # ---- adding

    def begin(self, base_offset: int) -> Segment:
        """Creates a segment with empty files, which the caller passes to `add`. Raises OSError; then its files don't
        exist."""
        services = self.services
        segment = Segment(
            services.disk,
            self.directory,
            base_offset,
            open_files=services.open_files,
            created_ms=services.now_ms(),
        )
        try:
            segment.begin()
        except OSError:
            segment.erase()  # otherwise, after a restart, the log would end where it begins
            raise
        return segment

    def add(self, segment: Segment) -> None:
        """Adds a new segment as the active one."""
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self.boundaries.clear()

    # ---- taking away

    def drop(self, start: int, stop: int | None, delete_delay_ms: int, *, from_end: bool) -> set[int]:
        """Removes the segments from index `start` to `stop`; with `from_end`, for a truncation, in the order from last
        to first. Returns their base offsets. Raises OSError; then only some may be removed. If no segment is left, the
        caller adds one."""
        dropped = self.all[start:stop]
        for segment in reversed(dropped) if from_end else dropped:
            self._doom(segment, delete_delay_ms)
            at = -1 if from_end else start
            del self.all[at], self.bases[at]
        if self.all:
            self.active = self.all[-1]
        return {segment.base_offset for segment in dropped}

    def replace(self, old_bases: Sequence[int], sizes: Sizes, delete_delay_ms: int) -> None:
        """Replaces the sealed segments `old_bases` by the segment of `sizes` whose `.cleaned` files a compaction wrote
        and synced. Raises OSError."""
        first = bisect_right(self.bases, old_bases[0]) - 1
        old = self.all[first : first + len(old_bases)]
        if [segment.base_offset for segment in old] != list(old_bases) or self.active in old:
            raise AssertionError(f"{self.directory}: segments changed during compaction")

        def take_away() -> None:
            for segment in old:
                self._doom(segment, delete_delay_ms)

        disk = self.services.disk
        put_in_place(disk, f"{self.directory}/{old_bases[0]:020d}", take_away)
        new = Segment(
            disk,
            self.directory,
            old_bases[0],
            open_files=self.services.open_files,
            size=sizes.log,
            created_ms=old[-1].created_ms,
            index_bytes=sizes.offset_index,
            time_index_bytes=sizes.time_index,
            transaction_index_bytes=sizes.transaction_index,
        )
        new.modified_ms = old[-1].modified_ms
        self.all[first : first + len(old)] = [new]
        self.bases = [segment.base_offset for segment in self.all]

    def _doom(self, segment: Segment, delete_delay_ms: int) -> None:
        files = [names.offset_name(segment.base_offset, suffix) for suffix in names.SEGMENT_SUFFIXES]
        self.services.doom(self.directory, files, delete_delay_ms)
        segment.doomed()

    # ---- the files elsewhere

    def moved(self, services: DirectoryServices, directory: str) -> None:
        """Notes that the files are in `directory` now, in the log directory of `services`."""
        self.services = services
        self.directory = directory
        for segment in self.all:
            segment.moved(directory)

    def let_go(self) -> None:
        """Closes the files; the next access opens them again."""
        for segment in self.all:
            segment.let_go()
