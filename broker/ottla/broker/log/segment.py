"""One segment: a log file, its indexes, and its greatest timestamp.

A segment is searched by offset, and the result is a position in its file: `sendfile` sends the batches from the file.
No file is opened before it is needed, because a broker has tens of thousands of segments; `OpenFiles` bounds how many
stay open.

Source: Kafka's LogSegment (KIP-33 for the timestamps).
"""

from __future__ import annotations

import contextlib
import resource
import struct
import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ottla.protocol.batches import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header, records
from ottla.protocol.received import Buffer
from ottla.storage import names
from ottla.storage.indexes import MAX_RELATIVE_OFFSET, AbortedTransaction, TimestampOffset

from .config import LogConfig
from .disk import Disk, File
from .index import OffsetIndex, TimeIndex
from .transaction_index import TransactionIndex

UNKNOWN = -1
_OPEN_FILES_MAX = 4096
_SCAN_SIZE = 16 << 10
_CHUNK_SIZE = 1 << 20
_FIRST_SCAN_SIZE = 1 << 10
_offsets = struct.Struct(">qi11xi")  # base offset, length, last offset delta


class FileRange(NamedTuple):
    """`size` bytes of a log file from `position` on; the file stays open as long as the range is held."""

    file: File
    position: int
    size: int


class Sizes(NamedTuple):
    """The bytes of a segment's files. `transaction_index` is 0 where there is no such file."""

    log: int
    offset_index: int
    time_index: int
    transaction_index: int


class FoundRecord(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


class DamagedSegment(OSError):
    """A segment's file contains something that isn't a batch, although the disk works."""


def files_to_keep_open() -> int:
    """How many segments may stay open in this process: each may hold three file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else max(min(soft // 8, _OPEN_FILES_MAX), 16)


class OpenFiles:
    """The segments with an open log file. Beyond `limit`, segments that weren't used lately are closed."""

    __slots__ = ("_lock", "_open", "changing", "limit")

    def __init__(self, limit: int = 4096) -> None:
        self.limit = limit
        self._open: deque[Segment] = deque()
        self._lock = threading.Lock()  # recovery opens segments from several threads
        self.changing = threading.Lock()  # guards the open file and the path of each segment

    def opened(self, segment: Segment) -> None:
        """Notes an opened segment. Beyond the limit, closes a segment that hasn't been used since this method last
        examined it."""
        with self._lock:
            self._open.append(segment)
            while len(self._open) > self.limit:
                oldest = self._open.popleft()
                if oldest.used and oldest is not segment:
                    oldest.used = False
                    self._open.append(oldest)
                else:
                    oldest.let_go()


class Segment:
    """The batches from `base_offset` on, in one file. `size` is where the batches end in the file; bytes behind that
    position don't count. `aborted` is None where no aborted transaction has its marker in the segment."""

    __slots__ = (
        "_file",
        "_max_timestamp",
        "_offset_of_max",
        "_open_files",
        "_path",
        "aborted",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "disk",
        "first_timestamp",
        "full",
        "modified_ms",
        "offsets",
        "size",
        "times",
        "used",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        open_files: OpenFiles,
        size: int = 0,
        created_ms: int = 0,
        index_bytes: int = 0,
        time_index_bytes: int = 0,
        transaction_index_bytes: int = 0,
        suffix: str = "",
    ) -> None:
        self.disk = disk
        stem = f"{directory}/{base_offset:020d}"
        self._path = f"{stem}{names.LOG}{suffix}"
        self.base_offset = base_offset
        self.size = size
        self.offsets = OffsetIndex(disk, f"{stem}{names.OFFSET_INDEX}{suffix}", base_offset, index_bytes)
        self.times = TimeIndex(disk, f"{stem}{names.TIME_INDEX}{suffix}", base_offset, time_index_bytes)
        self.aborted: TransactionIndex | None = None
        if transaction_index_bytes:
            self.aborted = TransactionIndex(disk, f"{stem}{names.TRANSACTION_INDEX}{suffix}", transaction_index_bytes)
        self.bytes_since_index = 0
        self.created_ms = created_ms
        self.modified_ms = created_ms
        self.first_timestamp = UNKNOWN  # of the first batch, for rolling by time
        self.full = False  # whether its indexes take no more entries
        self.used = False
        self._file: File | None = None
        self._open_files = open_files
        self._max_timestamp = UNKNOWN
        self._offset_of_max = base_offset
        if not size:
            self._max_timestamp = -1

    # ---- the file

    @property
    def path(self) -> str:
        return self._path

    @property
    def opened(self) -> File:
        """The log file if it is open. Raises BlockingIOError if not, because opening it would wait for the disk."""
        self.used = True
        if self._file is None:
            raise BlockingIOError
        return self._file

    @property
    def file(self) -> File:
        """The log file, opened if it isn't open."""
        self.used = True
        file = self._file
        if file is None:
            file = self._open(create=False)
        return file

    @property
    def sizes(self) -> Sizes:
        """The bytes of the sealed segment's files."""
        aborted_bytes = 0 if self.aborted is None else self.aborted.size_bytes
        return Sizes(self.size, self.offsets.size_bytes, self.times.size_bytes, aborted_bytes)

    def begin(self) -> None:
        """Creates the segment's files, empty; without a transaction index."""
        self._open(create=True).truncate(0)
        self.disk.remove(self._beside(names.TRANSACTION_INDEX))
        self.offsets.clear()
        self.times.clear()

    def erase(self) -> None:
        """Removes the segment's files, as far as possible."""
        self.let_go()
        for path in (self._path, self.offsets.path, self.times.path, self._beside(names.TRANSACTION_INDEX)):
            with contextlib.suppress(OSError):
                self.disk.remove(path)

    def _open(self, *, create: bool) -> File:
        path = self._path
        file = self.disk.open(path, create=create)
        with self._open_files.changing:
            if path == self._path:  # else they were moved while this thread waited for the disk: the old files are read
                self._file = file
        self._open_files.opened(self)
        return file

    def let_go(self) -> None:
        """Closes the files, except those that a reader still holds; the next access opens them again."""
        self._file = None
        self.offsets.let_go()
        self.times.let_go()
        if self.aborted is not None:
            self.aborted.let_go()

    def moved(self, directory: str) -> None:
        """Notes that the files are in `directory` now."""
        self._renamed(f"{directory}/{self.base_offset:020d}", "")

    def doomed(self) -> None:
        """Notes that the files were renamed for deletion: threads that still read find these files under the new names,
        and never other files under the old names."""
        self._renamed(self._path.removesuffix(names.LOG), names.DELETED)

    def _renamed(self, stem: str, suffix: str) -> None:
        with self._open_files.changing:
            self._file = None
            self._path = f"{stem}{names.LOG}{suffix}"
        self.offsets.moved(f"{stem}{names.OFFSET_INDEX}{suffix}")
        self.times.moved(f"{stem}{names.TIME_INDEX}{suffix}")
        if self.aborted is not None:
            self.aborted.moved(f"{stem}{names.TRANSACTION_INDEX}{suffix}")

    def _beside(self, kind: str) -> str:
        """The path of the segment's file of this `kind`, such as its offset index."""
        stem, _, suffix = self._path.rpartition(names.LOG)
        return f"{stem}{kind}{suffix}"

    # ---- writing

    def write(self, data: Buffer, position: int) -> None:
        """Writes batches at `position`, the segment's end. Raises OSError; then the file is cut there, if possible."""
        self.used = True
        file = self._file
        if file is None:
            file = self._open(create=False)
        try:
            file.pwrite(data, position)
        except OSError:
            with contextlib.suppress(OSError):  # bytes that stay behind the end are overwritten, or dropped by recovery
                file.truncate(position)
            raise

    def appended(self, last_offset: int, position: int, size: int, max_timestamp: int, config: LogConfig) -> None:
        """Notes a batch of `size` bytes that was written at `position`, the segment's end; adds index entries for it if
        more than an index interval was written since the last entry."""
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max = last_offset
        if self.first_timestamp == UNKNOWN:
            self.first_timestamp = max_timestamp
        if self.bytes_since_index > config.index_interval_bytes:
            self.offsets.append(last_offset, position)
            self.times.append(self._max_timestamp, self._offset_of_max)
            self.bytes_since_index = 0
            self.full = self.offsets.size_bytes + self.offsets.entry.size > config.segment_index_bytes or (
                self.times.size_bytes + self.times.entry.size > config.segment_index_bytes
            )
        self.bytes_since_index += size
        self.size = position + size

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """Notes an aborted transaction, whose marker is the segment's last batch."""
        if self.aborted is None:
            self.aborted = TransactionIndex(self.disk, self._beside(names.TRANSACTION_INDEX))
        self.aborted.append(transaction)

    def forget_aborted(self) -> None:
        """Drops the transaction index, which the caller builds anew. Raises OSError."""
        if self.aborted is not None:
            self.aborted.clear()
            self.aborted = None

    @property
    def age_stamp(self) -> int:
        """The greatest timestamp in ms; the time of the file's last change where its records have no timestamps."""
        timestamp = self.largest().timestamp
        return timestamp if timestamp >= 0 else self.modified_ms

    def has_room_for(self, last_offset: int) -> bool:
        """Whether the indexes can express `last_offset` relative to the base offset."""
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def seal(self) -> None:
        """Completes the indexes, because nothing is appended to this segment any more."""
        self.times.append(*self.largest())
        self.offsets.seal()
        self.times.seal()
        if self.aborted is not None:
            self.aborted.seal()

    def write_out(self) -> None:
        """Writes the indexes' tails to their files, so that they can be synced."""
        self.offsets.write_out()
        self.times.write_out()
        if self.aborted is not None:
            self.aborted.write_out()

    def files(self) -> list[File]:
        """The open files, for a sync. A deletion meanwhile doesn't matter, because open files can still be synced."""
        file = self._file or self.disk.open(self._path)
        found = [file, self.offsets.file(create=True), self.times.file(create=True)]
        return found if self.aborted is None else found + self.aborted.files()

    def cut_for(self, offset: int) -> tuple[int, int]:
        """The arguments with which `cut` drops every batch that has `offset` or later offsets: the position, and the
        offset at which the log ends then. That end is `offset`, or the base offset of a batch that contains `offset`.
        Opens the files that will be cut, and reads the transaction index."""
        self.offsets.file(create=True)
        self.times.file(create=True)
        if self.aborted is not None:
            self.aborted.load()
        position = self.position_of(offset)
        header = None if position is None else self.header_at(position)
        if position is None or header is None:
            return self.size, offset
        return position, min(offset, header.base_offset)

    def cut(self, position: int, end_offset: int) -> None:
        """Drops the batches from `position` on, so that the log ends at `end_offset`."""
        self.offsets.truncate_to(end_offset)
        self.times.truncate_to(end_offset)
        if self.aborted is not None:
            self.aborted.truncate_to(end_offset)
            if not self.aborted.size_bytes:
                self.aborted = None
        self.file.truncate(position)
        self.size = position
        self.full = False
        self.resume()

    def resume(self) -> int:
        """Prepares for appends after opening or cutting. Reads the batches from the last index entry on to find the
        greatest timestamp, the bytes since that entry, and the end offset. Returns the end offset."""
        end = self.base_offset
        start = self.offsets.last().position if len(self.offsets) else 0
        self._max_timestamp, self._offset_of_max = self.times.last()
        self.bytes_since_index = 0
        self.first_timestamp = UNKNOWN
        for position, header in self.headers(start):
            end = header.last_offset + 1
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._offset_of_max = header.max_timestamp, header.last_offset
            self.bytes_since_index = position + header.size - start
        first = self.header_at(0) if self.size else None
        if first is not None:
            self.first_timestamp = first.max_timestamp
        return end

    # ---- reading

    def header_at(self, position: int, wait: bool = True) -> BatchHeader | None:
        """The header of the batch at `position`; None at the segment's end. `wait` is as in `position_of`."""
        if position + HEADER_SIZE > self.size:
            return None
        read = self.file.pread if wait else self.opened.pread_cached
        return read_header(read(HEADER_SIZE, position))

    def headers(self, position: int = 0, stop: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the whole batches from `position` on, up to `stop` (default: the segment's present
        end)."""
        end = self.size if stop is None else stop
        while position + HEADER_SIZE <= end:
            chunk = self.file.pread(min(_SCAN_SIZE, end - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = read_header(chunk, at)
                if header.size < HEADER_SIZE or position + at + header.size > end:
                    return
                yield position + at, header
                at += header.size
            if at == 0:
                return
            position += at

    def batches(self, size: int | None = None) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """(position, header, bytes) of each batch in the first `size` bytes of the file (default: the segment's size).

        Raises ValueError at a batch that isn't whole.
        """
        end = self.size if size is None else size
        position, wanted = 0, _CHUNK_SIZE
        while position < end:
            chunk = memoryview(self.file.pread(min(wanted, end - position), position))
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = read_header(chunk, at)
                if header.size < HEADER_SIZE:
                    raise ValueError(f"the batch at position {position + at} has length {header.length}")
                if at + header.size > len(chunk):
                    break
                yield position + at, header, chunk[at : at + header.size]
                at += header.size
            if position + len(chunk) >= end:
                if at < len(chunk):
                    raise ValueError(f"the batch at position {position + at} isn't whole")
                return
            wanted = _CHUNK_SIZE if at else max(2 * _CHUNK_SIZE, read_header(chunk).size)
            position += at

    def position_of(self, offset: int, wait: bool = True) -> int | None:
        """The position of the first batch that ends at or after `offset`; None where the segment has none. Without
        `wait`, raises BlockingIOError where the search would have to wait for the disk."""
        if offset <= self.base_offset:
            return 0 if self.size else None
        position = self.offsets.floor(offset, wait).position
        end = self.size
        if not 0 <= position <= end and end:
            raise DamagedSegment(f"{self._path}: its offset index names position {position}, which has no batch")
        wanted = _FIRST_SCAN_SIZE
        read = self.file.pread if wait else self.opened.pread_cached
        while position < end:
            chunk = read(min(wanted, end - position), position)
            at, last = 0, len(chunk) - _offsets.size
            while at <= last:
                base_offset, length, delta = _offsets.unpack_from(chunk, at)
                if base_offset + delta >= offset:
                    return position + at
                if length <= 0:
                    raise DamagedSegment(f"{self._path}: no batch at {position + at}")
                at += LOG_OVERHEAD + length
            if at == 0:
                return None
            wanted = HEADER_SIZE if at > 2 * len(chunk) else _SCAN_SIZE  # after a large batch, only a header is read
            position += at
        return None

    def read_end(self, start: int, max_bytes: int, minimum_one: bool, wait: bool) -> int:
        """The position where a read of `max_bytes` from the batch at position `start` ends. This may be inside a batch,
        but not inside the first one. With `minimum_one`, the first batch is read whole whatever its size; otherwise a
        first batch of more than `max_bytes` isn't read. `wait` is as in `position_of`."""
        header = self.header_at(start, wait)
        if header is None:
            return start
        if header.size <= max_bytes:
            return start + max_bytes
        return start + header.size if minimum_one else start

    def read_ahead(self, offset: int, limit_offset: int, size: int) -> None:
        """Brings into memory the bytes that a search for `offset` and for `limit_offset` reads, and the `size` bytes
        from `offset` on, or the first batch where it is larger. Runs in a thread: the event loop may change the segment
        meanwhile, and therefore looks the positions up again afterwards."""
        start = self.position_of(offset)
        if start is not None:
            header = self.header_at(start)
            wanted = size if header is None else max(size, header.size)
            self.file.read_ahead(min(wanted, max(self.size - start, 0)), start)
        self.position_of(limit_offset)

    def end_offset(self) -> int:
        """The offset after the last batch; the base offset of an empty segment."""
        end = self.base_offset
        for _, header in self.headers(self.offsets.last().position if len(self.offsets) else 0):
            end = header.last_offset + 1
        return end

    def batch_at(self, position: int, header: BatchHeader) -> bytes:
        """The bytes of a whole batch."""
        return self.file.pread(header.size, position)

    # ---- timestamps

    def largest(self) -> TimestampOffset:
        """The greatest timestamp, and the last offset of its batch; (−1, base offset) where there is none."""
        if self._max_timestamp == UNKNOWN and self.size:
            self._max_timestamp, self._offset_of_max = self.times.last()
        return TimestampOffset(self._max_timestamp, self._offset_of_max)

    def find_timestamp(self, timestamp: int, start_offset: int) -> FoundRecord | None:
        """The first record at or after `start_offset` whose timestamp is at least `timestamp`."""
        if self.largest().timestamp < timestamp:
            return None
        known = max(self.times.floor(timestamp - 1).offset, start_offset)
        start = self.position_of(known)
        if start is None:
            return None
        for position, header in self.headers(start):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            for record in records(self.batch_at(position, header)):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return FoundRecord(record.offset, record.timestamp, header.leader_epoch)
        return None
