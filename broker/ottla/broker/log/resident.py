"""What is sent of a stretch of a log file without waiting for the disk.

Asks the file, and reads a little of it; holds no state. The rule it protects: whoever was told that something can be
read isn't stopped in its middle by a disk that doesn't answer, and with it what stands behind in the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.net.pending import READ_AHEAD_BYTES, Part
from ottla.protocol.batches import HEADER_SIZE, read_header

from .disk import File
from .segment import DamagedSegment, FileRange

WAIT = -1


def resident(found: list[FileRange], small_bytes: int) -> tuple[Sequence[Part], int]:
    """As much of what a log's read `found`, one range or none, as is in memory, and its size: the batch that it begins
    with is there whole. What is at most `small_bytes` is read: that costs as much as to ask whether it is there. With
    WAIT, whoever reads it waits for the disk.

    Raises BlockingIOError where something of the first READ_AHEAD_BYTES isn't in memory. A thread reads so much at
    once: what the kernel brings in bit by bit would be fetched bit by bit. Raises DamagedSegment where the file ends.
    """
    if not found:
        return found, 0
    file, start, size = found[0]
    if size <= small_bytes:
        data = file.pread_cached(size, start)
        if len(data) < size:
            raise DamagedSegment(f"a log file ends at {start + len(data)}, before its segment's end at {start + size}")
        return (data,), size
    if small_bytes == WAIT:
        return found, size
    if size > READ_AHEAD_BYTES:
        size = _stretch(file, start, size)
        return (FileRange(file, start, size),), size
    if file.cached(size, start) < size:
        raise BlockingIOError
    return found, size


def _stretch(file: File, start: int, size: int) -> int:
    found = 0
    while found < size:
        asked = min(size - found, READ_AHEAD_BYTES)
        step = file.cached(asked, start + found)
        found += step
        if step < asked:
            first = read_header(file.pread_cached(HEADER_SIZE, start))
            if found < READ_AHEAD_BYTES or found < first.size:
                raise BlockingIOError
            break
    return found
