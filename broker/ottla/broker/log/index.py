"""A segment's sparse indexes: offset → position, timestamp → offset.

Both are sorted arrays of entries of a fixed size, without a checksum, with offsets relative to the segment's base
offset. All entries can be rebuilt from the log. New entries are appended to a tail in memory. The tail is written to
the file when it fills a page, when the segment is sealed or flushed, and at close. Its loss does no harm, because a
start that wasn't preceded by a clean stop rebuilds the index of every segment beyond the recovery point.

`ottla.storage.indexes` has the entries' bytes. Source: Kafka's OffsetIndex and TimeIndex.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator

from ottla.protocol.received import Buffer
from ottla.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetPosition, TimestampOffset

from .disk import Disk, File

Read = Callable[[int, int], bytes | bytearray]  # (size, position)
_PAGE = 4096
_changing = threading.Lock()  # guards the open file and the path of each index
_SEARCH_BLOCK = 256  # entries: a search reads its last entries in one block of this size


class _SparseIndex:
    """An index: the entries in the file, then the entries of the tail in memory."""

    __slots__ = ("_ends", "_entries", "_file", "base_offset", "disk", "path")
    entry: struct.Struct

    def __init__(self, disk: Disk, path: str, base_offset: int, size_bytes: int = 0) -> None:
        """`size_bytes` is the size of the file at `path`; where the size is 0, the file need not exist."""
        self.disk = disk
        self.path = path
        self.base_offset = base_offset
        # The number of changes of the stored entries, how many entries are stored, and the tail. They are one object,
        # because threads search while the event loop changes it: a thread that saw half of a change would count entries
        # twice.
        self._entries = 0, size_bytes // self.entry.size, bytearray()
        self._file: File | None = None
        self._ends: tuple[int, tuple[int, int], tuple[int, int]] | None = (
            None  # the number of changes, and the first and last stored entry as of then
        )

    def __len__(self) -> int:
        _, stored, tail = self._entries
        return stored + len(tail) // self.entry.size

    @property
    def size_bytes(self) -> int:
        return len(self) * self.entry.size

    @property
    def stored_bytes(self) -> int:
        """How many bytes of the file are entries; bytes behind them don't count."""
        return self._entries[1] * self.entry.size

    def moved(self, path: str) -> None:
        """Notes that the file is at `path` now."""
        with _changing:
            self._file = None
            self.path = path

    def _add(self, entry: bytes) -> None:
        tail = self._entries[2]
        tail += entry
        if len(tail) >= _PAGE:
            with contextlib.suppress(OSError):  # the entries stay in the tail: the next entry, or the seal, tries again
                self.write_out()

    def write_out(self) -> None:
        """Writes the tail to the file."""
        changes, stored, tail = self._entries
        if tail:
            self.file(create=True).pwrite(tail, stored * self.entry.size)
            self._entries = changes + 1, len(self), bytearray()

    def seal(self) -> None:
        """Writes the tail to the file, and truncates the file behind it (Kafka preallocates)."""
        self.write_out()
        self.file(create=True).truncate(self.stored_bytes)
        self.let_go()

    def clear(self) -> None:
        """Drops every entry."""
        self._entries = self._entries[0] + 1, 0, bytearray()
        self.file(create=True).truncate(0)
        self.let_go()

    def let_go(self) -> None:
        """Closes the file; the next access opens it again."""
        self._file = None

    def file(self, *, create: bool = False) -> File:
        """The file, opened if it isn't open. A reader must not create it, because the segment may just have been
        deleted."""
        file = self._file
        if file is None:
            path = self.path
            file = self.disk.open(path, create=create)
            with _changing:
                if path == self.path:  # else it was moved while this thread waited for the disk: the old file is read
                    self._file = file
        return file

    def _reader(self, wait: bool) -> Read:
        """The function that reads the file. Without `wait`, raises BlockingIOError where the file isn't open."""
        if wait:
            return self.file().pread
        if self._file is None:
            raise BlockingIOError
        return self._file.pread_cached

    def _raw(self, index: int, wait: bool = True) -> tuple[int, int]:
        size = self.entry.size
        _, stored, tail = self._entries
        if index >= stored:
            return self.entry.unpack_from(tail, (index - stored) * size)
        return self.entry.unpack(self._reader(wait)(size, index * size))

    def _all(self) -> Iterator[tuple[int, int]]:
        _, stored, tail = self._entries
        if stored:
            yield from self.entry.iter_unpack(self.file().pread(stored * self.entry.size, 0))
        yield from self.entry.iter_unpack(bytes(tail))

    def _count_at_most(self, column: int, value: int, wait: bool = True) -> int:
        """How many entries have a `column` of at most `value`."""
        size, unpack_from = self.entry.size, self.entry.unpack_from
        changes, stored, tail = self._entries
        if tail and (not stored or unpack_from(tail, 0)[column] <= value):
            low, high = 0, len(tail) // size
            while low < high:
                middle = (low + high) // 2
                if unpack_from(tail, middle * size)[column] <= value:
                    low = middle + 1
                else:
                    high = middle
            return stored + low
        if not stored:
            return 0
        return self._count_stored(column, value, changes, stored, wait)

    def _count_stored(self, column: int, value: int, changes: int, stored: int, wait: bool) -> int:
        size = self.entry.size
        read = self._reader(wait)
        low, high, block = self._guess(read, column, value, changes, stored, wait)
        while high - low > _SEARCH_BLOCK:
            middle = (low + high) // 2
            if self.entry.unpack(read(size, middle * size))[column] <= value:
                low = middle + 1
            else:
                high = middle
        if not block:
            block = read((high - low) * size, low * size)
        start, count = low, len(block) // size
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.entry.unpack_from(block, middle * size)[column] <= value:
                low = middle + 1
            else:
                high = middle
        return start + low

    def _guess(
        self, read: Read, column: int, value: int, changes: int, stored: int, wait: bool
    ) -> tuple[int, int, Buffer]:
        """Bounds for a search, and the entries between them if they have been read: the entries' values grow so evenly
        that the first guess nearly always finds the right block."""
        size = self.entry.size
        if stored <= _SEARCH_BLOCK:
            return 0, stored, b""
        ends = self._ends
        if ends is None or ends[0] != changes:
            ends = self._ends = changes, self._raw(0, wait), self._raw(stored - 1, wait)
        least, greatest = ends[1][column], ends[2][column]
        if value < least or value >= greatest:
            return (0, 0, b"") if value < least else (stored, stored, b"")
        guess = (value - least) * stored // (greatest - least)
        low = max(guess - _SEARCH_BLOCK // 2, 0)
        high = min(low + _SEARCH_BLOCK, stored)
        block = read((high - low) * size, low * size)
        if self.entry.unpack_from(block)[column] > value:
            return 0, low, b""
        if self.entry.unpack_from(block, len(block) - size)[column] <= value:
            return high, stored, b""
        return low, high, block

    def _keep(self, count: int) -> None:
        """Drops all entries but the first `count`."""
        changes, stored, tail = self._entries
        if count >= stored:
            self._entries = changes, stored, tail[: (count - stored) * self.entry.size]
            return
        self._entries = changes + 1, count, bytearray()
        self.file().truncate(count * self.entry.size)


class OffsetIndex(_SparseIndex):
    """Where batches start in the log file. Sorted by offset, and thereby by position."""

    __slots__ = ()
    entry = OFFSET_ENTRY

    def append(self, offset: int, position: int) -> None:
        """Adds an entry for the batch that ends with `offset`, a greater offset than in all earlier entries, and starts
        at `position`."""
        self._add(self.entry.pack(offset - self.base_offset, position))

    def floor(self, offset: int, wait: bool = True) -> OffsetPosition:
        """The last entry whose batch ends at or before `offset`; the segment's start where there is none. Without
        `wait`, raises BlockingIOError where the search would have to wait for the disk."""
        count = self._count_at_most(0, offset - self.base_offset, wait)
        return self._entry(count - 1, wait)

    def above(self, position: int, wait: bool = True) -> int | None:
        """The offset of the first entry whose batch starts at `position` or behind it; None where there is none.
        `wait` is as in `floor`."""
        count = self._count_at_most(1, position - 1, wait)
        return self._entry(count, wait).offset if count < len(self) else None

    def last(self) -> OffsetPosition:
        """The last entry; the segment's start where there is none."""
        return self._entry(len(self) - 1)

    def truncate_to(self, offset: int) -> None:
        """Drops the entries of batches that end at or after `offset`."""
        self._keep(self._count_at_most(0, offset - self.base_offset - 1))

    def entries(self) -> Iterator[OffsetPosition]:
        """All entries."""
        for relative, position in self._all():
            yield OffsetPosition(self.base_offset + relative, position)

    def _entry(self, index: int, wait: bool = True) -> OffsetPosition:
        if index < 0:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._raw(index, wait)
        return OffsetPosition(self.base_offset + relative, position)


class TimeIndex(_SparseIndex):
    """The greatest timestamp up to an offset; timestamps and offsets both ascend."""

    __slots__ = ("_last",)
    entry = TIME_ENTRY

    def __init__(self, disk: Disk, path: str, base_offset: int, size_bytes: int = 0) -> None:
        super().__init__(disk, path, base_offset, size_bytes)
        self._last: TimestampOffset | None = None

    def append(self, timestamp: int, offset: int) -> None:
        """Adds an entry, unless the last one has the same or a greater timestamp."""
        last = self.last()
        if timestamp > last.timestamp and offset >= last.offset:
            self._last = TimestampOffset(timestamp, offset)
            self._add(self.entry.pack(timestamp, offset - self.base_offset))

    def floor(self, timestamp: int) -> TimestampOffset:
        """The last entry with a timestamp of at most `timestamp`; (−1, base offset) where there is none."""
        return self._entry(self._count_at_most(0, timestamp) - 1)

    def last(self) -> TimestampOffset:
        """The last entry; (−1, base offset) where there is none."""
        if self._last is None:
            self._last = self._entry(len(self) - 1)
        return self._last

    def truncate_to(self, offset: int) -> None:
        """Drops the entries of batches that end at or after `offset`."""
        self._keep(self._count_at_most(1, offset - self.base_offset - 1))
        self._last = None

    def clear(self) -> None:
        super().clear()
        self._last = None

    def entries(self) -> Iterator[TimestampOffset]:
        """All entries."""
        for timestamp, relative in self._all():
            yield TimestampOffset(timestamp, self.base_offset + relative)

    def _entry(self, index: int) -> TimestampOffset:
        if index < 0:
            return TimestampOffset(-1, self.base_offset)
        timestamp, relative = self._raw(index)
        return TimestampOffset(timestamp, self.base_offset + relative)
