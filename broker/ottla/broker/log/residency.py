"""What of a file is in the page cache, asked without waiting for the disk.

The rule it protects: the event loop reads only what is in memory. Linux has three ways to ask, none of which is enough
alone (measured on Linux 6.18, for a megabyte):

- `cachestat` (Linux 6.5): 0.6 µs. It counts pages that a read which is under way has only just asked for, too, and on a
  disk that doesn't answer those never come. So it isn't asked about what may be on its way (`Coming`).
- `mincore`, on a mapping made for the question: 23 µs. It counts only pages whose content is there. It tells the truth
  only to those who may write the file, as a broker may its logs.
- `preadv2` with RWF_NOWAIT: costs as much as reading does. It is for what is going to be read anyway.

What `cachestat` costs grows with the number of the page cache's pieces: 1 µs for a megabyte written at once, 18 µs for
one written by 1000 bytes, which is a tenth of what it takes to send that. So nobody asks twice about the same within a
moment (`Lately`), and not about what this process has just written.

Where none of the three is there (on another operating system, on a file system without RWF_NOWAIT, such as tmpfs),
everything counts as being in memory, and a read waits for the disk.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
import time

from ottla.net.pending import KNOWN_SECONDS

NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of RWF_NOWAIT, by a kernel or a file system
_CACHESTAT = 451  # the system call's number on every architecture but Alpha
_PAGE = mmap.PAGESIZE
READ_AHEAD_BYTES = 8 << 20  # more than kernels read ahead, as they are set up nearly everywhere
_MAP_FAILED = ctypes.c_void_p(-1).value


class Lately:
    """What of a file was in memory a moment ago, as one stretch: written by this process, or found there.

    A moment is so short that pages don't go within it unless memory is very short, and long enough that a consumer
    behind a producer, and each one of many, costs hardly a question. Any thread may call this.
    """

    __slots__ = ("_stretch",)

    def __init__(self) -> None:
        self._stretch = 0, 0, 0.0  # start, end, until when; one object, so that no thread sees the half of a change

    def holds(self, size: int, position: int) -> bool:
        """Whether all of these bytes were in memory."""
        start, end, until = self._stretch
        return start <= position and position + size <= end and time.monotonic() < until

    def found(self, size: int, position: int) -> None:
        """These bytes are in memory now. With those beside them they count until the older ones lapse."""
        if not size:
            return
        start, end, until = self._stretch
        now = time.monotonic()
        if now < until and start <= position + size and position <= end:
            self._stretch = min(start, position), max(end, position + size), until
        else:
            self._stretch = position, position + size, now + KNOWN_SECONDS

    def cut(self) -> None:
        """The file has become shorter."""
        self._stretch = 0, 0, 0.0


class Coming:
    """What of a file may be on its way from the disk: what was asked for lately, as one stretch, and what the kernel
    reads ahead of that. Threads ask for it, and the event loop finds that it has come.

    Other processes' reads aren't known: that of compaction, of a tool.
    """

    __slots__ = ("_end", "_lock", "_start")

    def __init__(self) -> None:
        self._start = self._end = 0
        self._lock = threading.Lock()

    def asked(self, size: int, position: int) -> None:
        """These bytes, and some behind them, may come."""
        end = position + size + READ_AHEAD_BYTES
        with self._lock:
            if self._start < self._end:
                position, end = min(self._start, position), max(self._end, end)
            self._start, self._end = position, end

    def came(self, size: int, position: int) -> None:
        """These bytes are in memory."""
        with self._lock:
            if position <= self._start < position + size:
                self._start = position + size

    def holds(self, size: int, position: int) -> bool:
        """Whether some of these bytes may be on their way."""
        with self._lock:
            return position < self._end and self._start < min(position + size, self._end)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Statistics(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "lately"))


class PageCache:
    """The operating system's. `counts` and `tells`: whether `cachestat` and `mincore` are there to be asked."""

    def __init__(self) -> None:
        self.counts = self.tells = sys.platform == "linux"
        if self.tells:
            # Without letting go of Python's lock: these calls are shorter than that takes, and wait for nothing.
            system = ctypes.PyDLL(None, use_errno=True)
            self._system_call = system.syscall
            self._mincore = system.mincore
            self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
            self._mmap = system.mmap
            self._mmap.restype = ctypes.c_void_p
            self._mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + 3 * (ctypes.c_int,) + (ctypes.c_long,)
            self._munmap = system.munmap
            self._munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def has_all(self, descriptor: int, size: int, position: int) -> bool:
        """Whether each page of these bytes is in the page cache, or asked for by a read that is under way. False also
        where the kernel can't say."""
        if not self.counts:
            return False
        statistics = _Statistics()
        asked = ctypes.byref(_Range(position, size))
        if self._system_call(_CACHESTAT, descriptor, asked, ctypes.byref(statistics), 0):
            if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):  # too old; forbidden to containers
                self.counts = False
            return False
        return bool(statistics.cached == (position + size - 1) // _PAGE - position // _PAGE + 1)

    def prefix(self, descriptor: int, size: int, position: int) -> int:
        """How many of these bytes are in memory before the first one that isn't."""
        if not self.tells:
            return size
        skipped = position % _PAGE
        length = skipped + size
        address = self._mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, position - skipped)
        if address == _MAP_FAILED:  # a file system without mappings, or no memory: as if there were nothing to ask
            return size
        pages = ctypes.create_string_buffer((length + _PAGE - 1) // _PAGE)
        failed = self._mincore(address, length, pages)
        self._munmap(address, length)
        if failed:
            return size
        # The lowest bit is the page's; the others are reserved, and 0.
        missing = pages.raw.find(b"\0", 0, len(pages))
        return size if missing < 0 else max(missing * _PAGE - skipped, 0)


PAGE_CACHE = PageCache()
