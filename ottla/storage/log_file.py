"""A segment's log file as bytes: batches, one after the other. Pure.

The bytes behind the last whole batch are ignored: a write, or a copy of the file, was interrupted there. A batch is
whole if all the bytes of its stated length are there; its magic, its CRC and its records aren't checked. Source:
Kafka's FileRecords and FileLogInputStream.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.protocol.batches import HEADER_SIZE, BatchHeader, read_header
from ottla.protocol.received import Buffer


def whole_batches(content: Buffer) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch in a log file's content that comes before the first incomplete batch."""
    view = memoryview(content)
    position, size = 0, len(view)
    while position + HEADER_SIZE <= size:
        header = read_header(view, position)
        if not HEADER_SIZE <= header.size <= size - position:
            return
        yield position, header, view[position : position + header.size]
        position += header.size
