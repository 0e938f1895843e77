"""Decides how much of a stretch of a log file can be sent without waiting for the disk.

Asks the file which bytes are in memory, and reads a little of it; has no state. The rule that this protects: a disk
that doesn't answer never stops a response in the middle of a stretch, because all later responses of the connection
would wait, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.net.pending import READ_AHEAD_BYTES, Part
from ottla.protocol.batches import HEADER_SIZE, read_header

from .disk import File
from .segment import DamagedSegment, FileRange

WAIT = -1


def resident(found: list[FileRange], small_bytes: int) -> tuple[Sequence[Part], int]:
    """`found` is the result of a log's read: one range or none. Returns the part of the range that is in memory, with
    its first batch whole, and the part's size in bytes. A range of at most `small_bytes` is returned as bytes, because
    to read them costs as much as to ask whether they are in memory. With WAIT for `small_bytes`, the range is returned
    as it is, and sending it may wait for the disk.

    Raises BlockingIOError where some of the first READ_AHEAD_BYTES aren't in memory. The caller then has a thread read
    that many bytes: otherwise clients would get only the small pieces that the kernel has read so far. Raises
    DamagedSegment where the file ends before the range does.
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
