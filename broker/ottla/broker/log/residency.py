"""Finds out which bytes of a file are in the page cache, without waiting for the disk.

The rule that this protects: the event loop reads only bytes that are in memory. Linux has three ways to ask whether
bytes are in memory, none of which is enough alone (measured on Linux 6.18, for a megabyte):

- `cachestat` (Linux 6.5): 0.6 µs. It also counts pages that a read in progress has only just requested, and on a disk
  that doesn't answer, these pages never arrive. So `cachestat` isn't used for bytes that may be on their way
  (`Coming`).
- `mincore`, on a memory mapping that is created for this one call: 23 µs. It counts only pages whose content is in
  memory. The kernel gives the true answer only to a process that may write the file, as a broker may write its logs.
- `preadv2` with RWF_NOWAIT: costs as much as a read. It is used for bytes that are going to be read anyway.

The cost of `cachestat` grows with the number of the page cache's pieces: 1 µs for a megabyte that was written in one
call, 18 µs for a megabyte that was written 1000 bytes at a time. The latter is a tenth of the time that it takes to
send a megabyte. So the kernel isn't asked twice about the same bytes within a moment (`Lately`), nor about bytes that
this process has just written.

Where none of the three is available (on another operating system, on a file system without RWF_NOWAIT, such as tmpfs),
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
READ_AHEAD_BYTES = 8 << 20  # more than kernels read ahead in nearly every configuration
_MAP_FAILED = ctypes.c_void_p(-1).value


class Lately:
    """The stretch of a file that was in memory a moment ago, because this process wrote that stretch or found it in
    memory.

    A moment is so short that pages aren't evicted within it unless memory is very scarce. It is so long that consumers
    which follow a producer hardly ever make the broker ask the kernel. The methods may be called in any thread.
    """

    __slots__ = ("_stretch",)

    def __init__(self) -> None:
        self._stretch = 0, 0, 0.0  # start, end, until when; one object, so that no thread sees half of a change

    def holds(self, size: int, position: int) -> bool:
        """Whether all of the `size` bytes at `position` were in memory a moment ago."""
        start, end, until = self._stretch
        return start <= position and position + size <= end and time.monotonic() < until

    def found(self, size: int, position: int) -> None:
        """Notes that the `size` bytes at `position` are in memory now. If they touch the known stretch, the two are
        joined, and the whole expires when the known stretch would have expired."""
        if not size:
            return
        start, end, until = self._stretch
        now = time.monotonic()
        if now < until and start <= position + size and position <= end:
            self._stretch = min(start, position), max(end, position + size), until
        else:
            self._stretch = position, position + size, now + KNOWN_SECONDS

    def cut(self) -> None:
        """Forgets the stretch, because the file became shorter."""
        self._stretch = 0, 0, 0.0


class Coming:
    """The stretch of a file that may be on its way from the disk: the bytes requested lately, and those that the kernel
    reads ahead. Threads request bytes, and the event loop finds out when they have arrived.

    Reads by other processes, such as compaction or a tool, aren't noticed.
    """

    __slots__ = ("_end", "_lock", "_start")

    def __init__(self) -> None:
        self._start = self._end = 0
        self._lock = threading.Lock()

    def asked(self, size: int, position: int) -> None:
        """Notes that the `size` bytes at `position`, and some behind them, may be on their way."""
        end = position + size + READ_AHEAD_BYTES
        with self._lock:
            if self._start < self._end:
                position, end = min(self._start, position), max(self._end, end)
            self._start, self._end = position, end

    def came(self, size: int, position: int) -> None:
        """Notes that the `size` bytes at `position` are in memory."""
        with self._lock:
            if position <= self._start < position + size:
                self._start = position + size

    def holds(self, size: int, position: int) -> bool:
        """Whether some of the `size` bytes at `position` may be on their way."""
        with self._lock:
            return position < self._end and self._start < min(position + size, self._end)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Statistics(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "lately"))


class PageCache:
    """The operating system's page cache. `counts` says whether `cachestat` is available, and `tells` whether `mincore`
    is."""

    def __init__(self) -> None:
        self.counts = self.tells = sys.platform == "linux"
        if self.tells:
            # PyDLL keeps Python's lock: these calls take less time than releasing it would, and wait for nothing.
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
        """Whether each page of the `size` bytes at `position` is in the page cache, or requested by a read in progress.
        False also where the kernel can't say."""
        if not self.counts:
            return False
        statistics = _Statistics()
        asked = ctypes.byref(_Range(position, size))
        if self._system_call(_CACHESTAT, descriptor, asked, ctypes.byref(statistics), 0):
            if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container that forbids the call
                self.counts = False
            return False
        return bool(statistics.cached == (position + size - 1) // _PAGE - position // _PAGE + 1)

    def prefix(self, descriptor: int, size: int, position: int) -> int:
        """How many of the `size` bytes at `position` are in memory, counted up to the first byte that isn't."""
        if not self.tells:
            return size
        skipped = position % _PAGE
        length = skipped + size
        address = self._mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, position - skipped)
        if address == _MAP_FAILED:  # a file system without mappings, or no memory: as without `mincore`
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
