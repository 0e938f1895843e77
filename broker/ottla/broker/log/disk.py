"""The part of a file system that logs need: the port behind which tests put a simulated disk.

All methods block. Writes reach the page cache; only `fsync` and `fsync_directory` reach the disk. `write_atomically`
replaces a file so that a crash leaves either the old content or the new one.

An open `File` closes itself when its last reference goes, because a range of it may be on its way to a socket while its
segment is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from ottla.protocol.received import Buffer

from .residency import NOT_SUPPORTED, NOWAIT, PAGE_CACHE, Coming, Lately

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the process or the machine has too few resources
_READ_AHEAD_BYTES = 256 << 10  # in one system call


@contextlib.contextmanager
def unless_full() -> Iterator[None]:
    """Wraps a write that is repeated later, or can be done without: suppresses an OSError for a lack of room,
    descriptors or memory."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM + OUT_OF_RESOURCES:
            raise


@contextlib.contextmanager
def all_or_unusable() -> Iterator[None]:
    """Wraps changes that only make sense together. After a failure of one of them only recovery helps, so any OSError
    is raised as EIO."""
    try:
        yield
    except OSError as error:
        raise OSError(errno.EIO, f"only a part of a change was made: {error}") from error


class Entry(NamedTuple):
    """A file or a directory inside a directory."""

    name: str
    size: int
    modified_ms: int
    is_directory: bool


class File(Protocol):
    """An open file, read and written at positions."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the file's end."""

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        """As `pread`, but doesn't wait for the disk: raises BlockingIOError where it would have to."""

    def cached(self, size: int, position: int) -> int:
        """How many of the `size` bytes at `position` can be read without waiting for the disk, counted up to the first
        byte that can't."""

    def read_ahead(self, size: int, position: int) -> None:
        """Brings the `size` bytes at `position` into memory, as far as the file has them. Waits for the disk."""

    @property
    def volume(self) -> int:
        """The number of the volume (`st_dev`) that has the file: if a volume doesn't answer, none of its files can be
        read."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Writes all of `data` at `position`. After an OSError some of it may have been written."""

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes."""

    def fsync(self) -> None:
        """Returns when the file's content is on the disk."""


class Disk(Protocol):
    """Directories and files by path."""

    def open(self, path: str, *, create: bool = False) -> File:
        """The file at `path`, for reading and writing."""

    def list(self, path: str) -> list[Entry]:
        """The entries of the directory `path`, in no order."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory at `path`."""

    def read(self, path: str) -> bytes:
        """The content of a small file."""

    def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
        """Replaces a small file, whole or not at all."""

    def rename(self, source: str, target: str) -> None:
        """Renames a file or a directory within a volume. A file at `target` is replaced."""

    def remove(self, path: str) -> None:
        """Removes a file; one that is gone already is no error."""

    def make_directory(self, path: str) -> None:
        """Makes a directory and its parents; an existing one is no error."""

    def remove_tree(self, path: str) -> None:
        """Removes a directory and its content."""

    def fsync_directory(self, path: str) -> None:
        """Returns when the names in a directory are on the disk."""

    def lock(self, path: str) -> object:
        """Locks a file for this process, as long as the result is referenced. Raises BlockingIOError where another
        process has locked it."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds `path`."""


class RealFile:
    """A file of the operating system, which has an open descriptor."""

    __slots__ = ("_coming", "_descriptor", "_lately", "volume")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._coming: Coming | None = None  # None until the first read that may wait for the disk
        self._lately = Lately()
        self.volume = os.fstat(descriptor).st_dev

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def pread(self, size: int, position: int) -> bytes:
        coming = self._comes(size, position)
        data = self._pread(size, position)
        coming.came(len(data), position)
        return data

    def _pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        if not NOWAIT:
            return self.pread(size, position)
        lately = self._lately
        if lately.holds(size, position):
            return self._pread(size, position)
        data = bytearray(size)
        try:
            got = os.preadv(self._descriptor, (data,), position, NOWAIT)
            while got < size:
                step = os.preadv(self._descriptor, (memoryview(data)[got:],), position + got, NOWAIT)
                if not step:
                    data = data[:got]
                    break
                got += step
        except BlockingIOError:
            self._comes(size, position)  # the kernel has asked the disk for these bytes by now
            raise
        except OSError as error:
            if error.errno in NOT_SUPPORTED:
                return self.pread(size, position)
            raise
        lately.found(got, position)
        return data

    def cached(self, size: int, position: int) -> int:
        lately, coming = self._lately, self._coming
        if lately.holds(size, position):
            return size
        if (coming is None or not coming.holds(size, position)) and PAGE_CACHE.has_all(
            self._descriptor, size, position
        ):
            found = size
        else:
            found = PAGE_CACHE.prefix(self._descriptor, size, position)
            if coming is not None:
                coming.came(found, position)
        lately.found(found, position)
        return found

    def read_ahead(self, size: int, position: int) -> None:
        coming = self._comes(size, position)
        step = bytearray(min(size, _READ_AHEAD_BYTES))
        at, end = position, position + size
        while at < end and (got := os.preadv(self._descriptor, (memoryview(step)[: end - at],), at)):
            at += got
        coming.came(at - position, position)

    def _comes(self, size: int, position: int) -> Coming:
        """Notes that the `size` bytes at `position` may be on their way from the disk."""
        coming = self._coming
        if coming is None:
            coming = self._coming = Coming()
        coming.asked(size, position)
        return coming

    def pwrite(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        if written == len(data):
            self._lately.found(written, position)
            return
        rest = memoryview(data)
        while written < len(rest):
            step = os.pwrite(self._descriptor, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "a write made no progress")
            written += step

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._lately.cut()

    def fsync(self) -> None:
        os.fsync(self._descriptor)


class RealDisk:
    """The operating system's file systems."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644))

    def list(self, path: str) -> list[Entry]:
        return list(_entries(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
        finally:
            os.close(descriptor)
        return b"".join(parts)

    def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
        temporary = path + ".tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                if fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(temporary)  # the temporary file takes room, and the volume may be full
            raise
        if fsync:
            self.fsync_directory(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=False)

    def fsync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> object:
        file = RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind of lock that Kafka takes
        return file

    def free_bytes(self, path: str) -> tuple[int, int]:
        usage = os.statvfs(path)
        return usage.f_frsize * usage.f_blocks, usage.f_frsize * usage.f_bavail


def _entries(path: str) -> Iterable[Entry]:
    with os.scandir(path) as found:
        for item in found:
            try:
                status = item.stat(follow_symlinks=True)
            except FileNotFoundError:  # removed meanwhile, or a dangling link
                continue
            yield Entry(item.name, status.st_size, status.st_mtime_ns // 1_000_000, item.is_dir())
