"""A disk in memory that loses unsynced data, tears writes, fills up, and fails.

Each file has the content that programs see (`data`, the page cache) and the content on the platter (`durable`). They
differ by the writes since the last `fsync`, in order. The same holds for directories: the names that programs see
differ from the durable names by the changes since the last `fsync_directory`. A kill leaves the page cache alone. After
a loss of power, a prefix of each list of unsynced changes survives. The first lost write of a file may survive in part,
and the file may have grown by zeros instead of its rest (as with delayed allocation).
"""

from __future__ import annotations

import errno
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from ottla.broker.log.disk import Entry
from ottla.protocol.received import Buffer

from .machine import Descriptors

Change = tuple[int, bytes | None]  # (position, the written bytes), or (size, None) for a truncation
Names = dict[str, "Inode | Directory"]


class Inode:
    """A file's content."""

    __slots__ = ("data", "descriptor", "disk", "durable", "locked", "modified_ms", "unsynced")

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.data = bytearray()
        self.durable = bytearray()
        self.unsynced: list[Change] = []
        self.modified_ms = disk.now_ms()
        self.descriptor = 0
        self.locked = False

    def change(self, position: int, data: bytes | None) -> None:
        """Writes to the page cache."""
        self.unsynced.append((position, data))
        _apply(self.data, position, data)
        self.modified_ms = self.disk.now_ms()

    def sync(self) -> None:
        """Makes all writes durable."""
        for position, data in self.unsynced:
            _apply(self.durable, position, data)
        self.unsynced.clear()

    def lose_power(self, random: Random) -> int:
        """Simulates a loss of power: keeps only some of the unsynced changes. Returns the number of lost changes."""
        lost = 0
        if self.unsynced:
            kept = random.randrange(len(self.unsynced) + 1)
            lost = len(self.unsynced) - kept
            for position, data in self.unsynced[:kept]:
                _apply(self.durable, position, data)
            if lost:
                position, data = self.unsynced[kept]
                if data and random.random() < 0.5:
                    torn = data[: random.randrange(len(data))]
                    if random.random() < 0.3:
                        torn = torn + bytes(len(data) - len(torn))
                    _apply(self.durable, position, torn)
        self.unsynced.clear()
        self.data = bytearray(self.durable)
        self.locked = False
        return lost


class Directory:
    """A directory. `unsynced` are the changes since the last sync, each a list of (name, its new entry or None)."""

    __slots__ = ("durable", "names", "unsynced")

    def __init__(self) -> None:
        self.names: Names = {}
        self.durable: Names = {}
        self.unsynced: list[list[tuple[str, Inode | Directory | None]]] = []

    def change(self, *names: tuple[str, Inode | Directory | None]) -> None:
        """Sets and removes names, as one change that no loss of power splits."""
        self.unsynced.append(list(names))
        _rename(self.names, names)

    def sync(self) -> None:
        for names in self.unsynced:
            _rename(self.durable, names)
        self.unsynced.clear()

    def lose_power(self, random: Random) -> int:
        """Keeps a prefix of the unsynced changes, here and in subdirectories. Returns the number of lost changes."""
        lost = 0
        if self.unsynced:
            kept = random.randrange(len(self.unsynced) + 1)
            lost = len(self.unsynced) - kept
            for names in self.unsynced[:kept]:
                _rename(self.durable, names)
            self.unsynced.clear()
        self.names = dict(self.durable)
        for item in self.names.values():
            lost += item.lose_power(random)
        return lost


class SimulatedFile:
    """An open file. It stays usable after its name is removed."""

    __slots__ = ("_inode",)

    def __init__(self, inode: Inode) -> None:
        self._inode = inode

    def fileno(self) -> int:
        inode = self._inode
        if not inode.descriptor:
            inode.descriptor = inode.disk.descriptors.new()
            inode.disk.descriptors.files[inode.descriptor] = self
        return inode.descriptor

    def pread(self, size: int, position: int) -> bytes:
        self._inode.disk.used("read")
        return bytes(self._inode.data[position : position + size])

    @property
    def volume(self) -> int:
        return id(self._inode.disk)

    def pread_cached(self, size: int, position: int) -> bytes:
        return self.pread(size, position)

    def cached(self, size: int, position: int) -> int:
        return size

    def read_ahead(self, size: int, position: int) -> None:
        self._inode.disk.used("read")

    def pwrite(self, data: Buffer, position: int) -> None:
        disk = self._inode.disk
        disk.used("write")
        written = bytes(data)
        room = disk.room_for(max(position + len(written) - len(self._inode.data), 0))
        if room < 0:
            part = written[: max(len(written) + room, 0)]
            if part:
                self._inode.change(position, part)
            disk.fail_full()
        self._inode.change(position, written)

    def truncate(self, size: int) -> None:
        self._inode.disk.used("write")
        self._inode.change(size, None)

    def fsync(self) -> None:
        self._inode.disk.used("fsync")
        self._inode.sync()


class SimulatedDisk:
    """An `ottla.broker.log.disk.Disk` with faults: `full`, `failing` (operations that fail with EIO), `lose_power`."""

    def __init__(self, random: Random, now_ms: Callable[[], int] = lambda: 0, descriptors: Descriptors | None = None):
        self.now_ms = now_ms
        self.descriptors = descriptors or Descriptors()
        self.counts: Counter[str] = Counter()
        self.full = False
        self.failing: frozenset[str] = frozenset()  # a subset of "read", "write", "fsync"
        self._random = random
        self._root = Directory()
        self._capacity = 1 << 40
        self._free = self._capacity

    # ---- faults

    def lose_power(self) -> int:
        """Loses unsynced changes, all or a part of them. Returns the number of lost changes."""
        self.full = False
        self.failing = frozenset()
        lost = self._root.lose_power(self._random)
        self.counts["lost changes"] += lost
        return lost

    def process_died(self) -> None:
        """Releases the locks of the dead process; the page cache stays."""
        for inode in self._inodes(self._root):
            inode.locked = False

    def used(self, kind: str) -> None:
        """Raises EIO if operations of this kind fail now."""
        if kind in self.failing:
            self.counts[f"{kind} errors"] += 1
            raise OSError(errno.EIO, "Input/output error")

    def room_for(self, growth: int) -> int:
        """0 if a file can grow by this many bytes; otherwise a negative number, the count of bytes that don't fit."""
        if self.full and growth:
            return -self._random.randint(1, growth)
        return 0

    def fail_full(self) -> None:
        """Raises ENOSPC."""
        self.counts["full"] += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    def names_in(self, path: str) -> list[str]:
        """The names in a directory, for checks from outside the world: faults don't affect this call."""
        return [*self._directory(path).names]

    # ---- Disk

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        parent, name = self._parent(path)
        found = parent.names.get(name)
        if found is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            found = self._create(parent, name)
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return SimulatedFile(found)

    def list(self, path: str) -> list[Entry]:
        self.used("read")
        return [
            Entry(name, 0, 0, True)
            if isinstance(item, Directory)
            else Entry(name, len(item.data), item.modified_ms, False)
            for name, item in self._directory(path).names.items()
        ]

    def exists(self, path: str) -> bool:
        try:
            parent, name = self._parent(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return name in parent.names

    def read(self, path: str) -> bytes:
        return self.open(path).pread(1 << 40, 0)

    def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
        self.used("write")
        parent, name = self._parent(path)
        if self.full:
            self.fail_full()
        inode = Inode(self)
        inode.change(0, bytes(data))
        if fsync:
            self.used("fsync")
            inode.sync()
        parent.change((name, inode))
        if fsync:
            parent.sync()

    def rename(self, source: str, target: str) -> None:
        self.used("write")
        parent, name = self._parent(source)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        beside, new = self._parent(target)
        item = parent.names[name]
        if beside is parent:
            parent.change((name, None), (new, item))
        else:  # a rename between two directories is one change
            parent.sync()
            beside.sync()
            parent.change((name, None))
            beside.change((new, item))
            parent.sync()
            beside.sync()

    def remove(self, path: str) -> None:
        try:
            parent, name = self._parent(path)
        except FileNotFoundError:
            return
        if isinstance(parent.names.get(name), Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if name in parent.names:
            parent.change((name, None))

    def make_directory(self, path: str) -> None:
        at = self._root
        for name in _parts(path):
            item = at.names.get(name)
            if item is None:
                if self.full:
                    self.fail_full()
                item = Directory()
                at.change((name, item))
            if isinstance(item, Inode):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            at = item

    def remove_tree(self, path: str) -> None:
        self._directory(path)
        parent, name = self._parent(path)
        parent.change((name, None))

    def fsync_directory(self, path: str) -> None:
        self.used("fsync")
        self._directory(path).sync()

    def lock(self, path: str) -> object:
        parent, name = self._parent(path)
        inode = parent.names.get(name) or self._create(parent, name)
        assert isinstance(inode, Inode)
        if inode.locked:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable", path)
        return _Lock(inode)

    def free_bytes(self, path: str) -> tuple[int, int]:
        self._directory(path)
        return self._capacity, 0 if self.full else self._free

    # ---- look-ups

    def _create(self, parent: Directory, name: str) -> Inode:
        self.used("write")
        if self.full:
            self.fail_full()
        inode = Inode(self)
        parent.change((name, inode))
        return inode

    def _directory(self, path: str) -> Directory:
        at = self._root
        for name in _parts(path):
            item = at.names.get(name)
            if item is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            if isinstance(item, Inode):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            at = item
        return at

    def _parent(self, path: str) -> tuple[Directory, str]:
        folder, name = posixpath.split(path.rstrip("/"))
        return self._directory(folder), name

    def _inodes(self, directory: Directory) -> Iterator[Inode]:
        for item in directory.names.values():
            if isinstance(item, Directory):
                yield from self._inodes(item)
            else:
                yield item


class _Lock:
    """A lock that is held until the object is deleted, or its process dies."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        inode.locked = True

    def __del__(self) -> None:
        self._inode.locked = False


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _rename(into: Names, names: Any) -> None:
    for name, item in names:
        if item is None:
            into.pop(name, None)
        else:
            into[name] = item


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
