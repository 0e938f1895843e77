"""A disk that can be made to wait. Only those bytes of its files that were written or read lately are in memory."""

from __future__ import annotations

import os
import threading

from ottla.broker.log.disk import RealDisk, RealFile
from ottla.protocol.received import Buffer

PAGE = 4096


class ColdFile(RealFile):
    """A file of a `ColdDisk`."""

    __slots__ = ("_disk", "_name")

    def __init__(self, disk: ColdDisk, path: str, descriptor: int) -> None:
        super().__init__(descriptor)
        self._disk = disk
        self._name = os.path.basename(path)

    def _pages(self, size: int, position: int) -> set[tuple[str, int]]:
        size = min(size, os.fstat(self.fileno()).st_size - position)
        return {(self._name, page) for page in range(position // PAGE, (position + size - 1) // PAGE + 1)}

    def _wait(self, size: int, position: int) -> None:
        pages = self._pages(size, position)
        if not pages <= self._disk.warm:
            self._disk.wait()
            self._disk.warm |= pages

    def pread(self, size: int, position: int) -> bytes:
        self._wait(size, position)
        return super().pread(size, position)

    def pread_cached(self, size: int, position: int) -> bytes:
        if not self._pages(size, position) <= self._disk.warm:
            raise BlockingIOError
        return super().pread(size, position)

    def cached(self, size: int, position: int) -> int:
        missing = [page for _, page in self._pages(size, position) - self._disk.warm]
        return max(min(missing) * PAGE - position, 0) if missing else size

    def read_ahead(self, size: int, position: int) -> None:
        self._wait(size, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        super().pwrite(data, position)
        self._disk.warm |= self._pages(len(data), position)


class ColdDisk(RealDisk):
    """While `answers` isn't set, the disk doesn't answer. `waits` counts the threads that had to wait for it. `held`
    counts the waits of the event loop's thread, which must never wait. `error`, if there is one, is raised after the
    wait."""

    def __init__(self) -> None:
        self.warm: set[tuple[str, int]] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.error: OSError | None = None
        self.waits = 0
        self.held = 0

    def grow_cold(self) -> None:
        """Empties the page cache, as when other processes need the memory."""
        self.warm.clear()

    def wait(self) -> None:
        """Waits until the disk answers."""
        self.waits += 1
        if threading.current_thread() is threading.main_thread():
            self.held += 1
        self.answers.wait(30)
        if self.error is not None:
            raise self.error

    def open(self, path: str, *, create: bool = False) -> ColdFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return ColdFile(self, path, os.open(path, flags, 0o644))
