"""How the C library's allocator keeps the memory that a broker frees.

When memory is freed, glibc gives it back to the kernel in two cases: the freed block is larger than one threshold, or
the free end of the heap is larger than another threshold. The next allocation then gets fresh pages, each of which
costs a page fault and is filled with zeros: with the default thresholds, a broker took 2.7 times as much CPU for
produced batches of 330 kB in Zstandard. By default, both thresholds start low and grow with the blocks that are freed,
so the cost of a request would depend on the requests before it.
"""

from __future__ import annotations

import ctypes

# Source: malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

MAPPED_FROM_BYTES = 4 << 20  # larger blocks are mapped; free() gives them back to the kernel
KEPT_BYTES_MAX = 8 << 20  # bytes of free memory at the end of the heap that aren't given back


def keep_freed_memory() -> bool:
    """Sets the two thresholds above which glibc's allocator gives freed memory back to the kernel. Returns False if the
    C library has no such thresholds, as musl."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
