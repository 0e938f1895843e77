"""A segment's transaction index: the aborted transactions whose markers are in the segment, in the markers' order.

A transaction without data has no entry, and a segment without entries has no file. New entries go to a tail in memory,
which is written to the file when it fills a page, and with the tails of the other indexes. The loss of a tail does no
harm, because a start that wasn't preceded by a clean stop rebuilds the index of every segment beyond the recovery
point. The file is read when a consumer first needs its entries, and kept in memory until the segment is closed.

`ottla.storage.indexes` has the entries' bytes. Source: Kafka's TransactionIndex.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from typing import NamedTuple

from ottla.storage.indexes import ABORTED_ENTRY_BYTES, AbortedTransaction, aborted_entry, aborted_transaction_at

from .disk import Disk, File

_PAGE = 4096


class _Content(NamedTuple):
    """The entries: those in the file's first `stored` bytes, then the `tail`. `loaded` has the bytes of the file, or is
    None before they are read."""

    stored: int
    loaded: bytes | None
    tail: bytes


class TransactionIndex:
    """The index of one segment. The event loop changes it, and threads may read it meanwhile: so its content is one
    object, which each change replaces."""

    __slots__ = ("_content", "disk", "path")

    def __init__(self, disk: Disk, path: str, size_bytes: int = 0) -> None:
        """`size_bytes` is the size of the file at `path`, 0 where there is none."""
        self.disk = disk
        self.path = path
        stored = size_bytes // ABORTED_ENTRY_BYTES * ABORTED_ENTRY_BYTES
        self._content = _Content(stored, None if stored else b"", b"")

    @property
    def size_bytes(self) -> int:
        """The bytes of all entries."""
        return self._content.stored + len(self._content.tail)

    @property
    def stored_bytes(self) -> int:
        """How many bytes of the file are entries; bytes behind them don't count."""
        return self._content.stored

    # ---- reading

    def load(self, wait: bool = True) -> bytes:
        """The bytes of the entries in the file. Without `wait`, raises BlockingIOError where the file must be read.
        Raises FileNotFoundError where the segment was removed meanwhile."""
        content = self._content
        loaded = content.loaded
        if loaded is None:
            if not wait:
                raise BlockingIOError
            loaded = self.disk.read(self.path)[: content.stored]
            if self._content is content:
                self._content = content._replace(loaded=loaded)
        return loaded

    def find(self, offset: int, end_offset: int, found: list[AbortedTransaction], wait: bool = True) -> bool:
        """Adds to `found` the transactions that a reader of the records from `offset` up to `end_offset` has to know.
        Returns whether later segments have none to add: a transaction that ends later than all found ones began at
        `end_offset` or later. `wait` is as in `load`."""
        tail = self._content.tail
        return _find(self.load(wait), offset, end_offset, found) or _find(tail, offset, end_offset, found)

    def entries(self) -> list[AbortedTransaction]:
        """All entries. Blocks."""
        found: list[AbortedTransaction] = []
        self.find(-1, 1 << 63, found)
        return found

    # ---- writing

    def append(self, transaction: AbortedTransaction) -> None:
        """Adds a transaction, whose marker is behind the markers of all earlier transactions."""
        stored, loaded, tail = self._content
        self._content = _Content(stored, loaded, tail + aborted_entry(transaction))
        if len(self._content.tail) >= _PAGE:
            with contextlib.suppress(OSError):  # the entries stay in the tail: the next one, or the seal, tries again
                self.write_out()

    def write_out(self) -> None:
        """Writes the tail to the file, which is created if needed. Raises OSError."""
        stored, loaded, tail = self._content
        if tail:
            self.disk.open(self.path, create=True).pwrite(tail, stored)
            self._content = _Content(stored + len(tail), None if loaded is None else loaded + tail, b"")

    def seal(self) -> None:
        """Writes the tail to the file, because nothing is added any more, and truncates the file behind it. Raises
        OSError."""
        self.write_out()
        self.disk.open(self.path).truncate(self.stored_bytes)

    def truncate_to(self, end_offset: int) -> None:
        """Drops the transactions whose markers are at or behind `end_offset`. If none is left, the file is removed.
        Raises OSError."""
        stored, tail = self.stored_bytes, self._content.tail
        loaded = self.load()
        kept = _count_below(loaded, end_offset) * ABORTED_ENTRY_BYTES
        tail = tail[: _count_below(tail, end_offset) * ABORTED_ENTRY_BYTES] if kept == stored else b""
        if not kept:
            self.disk.remove(self.path)
        elif kept < stored:
            self.disk.open(self.path).truncate(kept)
        self._content = _Content(kept, loaded[:kept], tail)

    def clear(self) -> None:
        """Drops all entries, and removes the file. Raises OSError."""
        self.disk.remove(self.path)
        self._content = _Content(0, b"", b"")

    # ---- the file

    def files(self) -> list[File]:
        """The file, for a sync, where there are entries in it."""
        return [self.disk.open(self.path)] if self.stored_bytes else []

    def moved(self, path: str) -> None:
        """Notes that the file lies at `path` now."""
        self.path = path

    def let_go(self) -> None:
        """Drops the entries from memory that can be read from the file again."""
        content = self._content
        if content.stored and content.loaded is not None:
            self._content = content._replace(loaded=None)


def _count_below(data: bytes, offset: int) -> int:
    """How many entries have their marker below `offset`. Entries are in the order of their markers."""
    count = len(data) // ABORTED_ENTRY_BYTES
    return bisect_left(range(count), offset, key=lambda at: aborted_transaction_at(data, at).last_offset)


def _find(data: bytes, offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
    """As `TransactionIndex.find`, in the entries of `data`."""
    for at in range(_count_below(data, offset), len(data) // ABORTED_ENTRY_BYTES):
        entry = aborted_transaction_at(data, at)
        if entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return True
    return False
