"""How the C library's allocator keeps the memory that a broker frees.

glibc gives a block above a threshold back to the kernel when it is freed, and cuts the free end of its heap. The next
allocation then gets fresh pages, each of which costs a page fault and is filled with zeros: producing batches of 330 kB
of Zstandard took 2.7 times as much CPU. By default both thresholds start low and grow with the blocks that are freed,
so the cost of a request would depend on the requests before it.
"""

from __future__ import annotations

import ctypes

# Source: malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

MAPPED_FROM_BYTES = 4 << 20  # larger blocks are mapped, and given back when they are freed
KEPT_BYTES_MAX = 8 << 20  # of free memory at the end of the heap


def keep_freed_memory() -> bool:
    """Sets both thresholds of this process. Returns false if the C library, such as musl, doesn't have them."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
