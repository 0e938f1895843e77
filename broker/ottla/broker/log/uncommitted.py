"""Finds the transactions in a stopped broker's log that are still open. Reads a partition's directory, and changes
nothing.

The open transactions are in the newest producer snapshot (Kafka writes one at a clean stop). Changes after the snapshot
are read from the batches. Source: Kafka's ProducerStateManager and EndTransactionMarker.
"""

from __future__ import annotations

from ottla.protocol.markers import read_marker
from ottla.storage import names
from ottla.storage.producer_snapshot import read_snapshot

from .disk import Disk
from .segment import OpenFiles, Segment


def open_from(disk: Disk, directory: str) -> int | None:
    """The first offset of the earliest open transaction in a partition's directory; None where there is none. Raises
    OSError."""
    files = {}
    for entry in disk.list(directory):
        if (parsed := names.parse_offset_name(entry.name)) is not None:
            files[parsed] = entry.size
    start, still_open = _snapshot(
        disk, directory, [offset for offset, kind in files if kind == names.PRODUCER_SNAPSHOT]
    )
    bases = sorted(offset for offset, kind in files if kind == names.LOG)
    open_files = OpenFiles()
    for base, end in zip(bases, [*bases[1:], None], strict=True):
        if end is None or end > start:
            segment = Segment(disk, directory, base, open_files=open_files, size=files[base, names.LOG])
            _replay(segment, start, still_open)
            segment.let_go()
    return min(still_open.values(), default=None)


def _snapshot(disk: Disk, directory: str, offsets: list[int]) -> tuple[int, dict[int, int]]:
    """The offset of the newest readable snapshot, and the open transactions in it: producer id → first offset."""
    for offset in sorted(offsets, reverse=True):
        content = disk.read(f"{directory}/{names.offset_name(offset, names.PRODUCER_SNAPSHOT)}")
        try:
            producers = list(read_snapshot(content))
        except ValueError:
            continue
        return offset, {
            entry.producer_id: entry.transaction_start for entry in producers if entry.transaction_start >= 0
        }
    return 0, {}


def _replay(segment: Segment, start: int, still_open: dict[int, int]) -> None:
    """Reads a segment's batches from `start` on: adds the transactions that begin to `still_open`, and removes those
    that end."""
    for position, header in segment.headers():
        if header.base_offset < start or not header.is_transactional:
            continue
        if not header.is_control:
            still_open.setdefault(header.producer_id, header.base_offset)
        elif read_marker(segment.batch_at(position, header)) is not None:
            still_open.pop(header.producer_id, None)
