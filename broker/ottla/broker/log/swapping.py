"""Replaces segments by the segment into which compaction merged them, and finishes a replacement that a stop
interrupted.

Wherever a stop interrupts the swap, the next start can finish or undo the swap (`finish_interrupted`), because of the
order of the swap's steps. First the new files get `.swap` names. The log file is renamed last: its new name says that
the new segment is complete. Then the old segments are taken away. Then the new files get their final names, the log
file last again.

Source: Kafka's LocalLog.replaceSegments, and LogLoader for interrupted replacements.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.protocol.batches import HEADER_SIZE, read_header
from ottla.storage import names

from .disk import Disk, Entry, all_or_unusable

logger = logging.getLogger(__name__)


def put_in_place(disk: Disk, stem: str, take_old_away: Callable[[], None]) -> None:
    """Takes the old segments away by `take_old_away`, and gives the `.cleaned` files of `stem`, which are synced, their
    final names. Blocks.

    Raises OSError: EIO after a part of the changes, because only recovery helps then; the original error where nothing
    has changed yet.
    """
    suffixes = [suffix for suffix in names.SEGMENT_SUFFIXES if disk.exists(f"{stem}{suffix}{names.CLEANED}")]
    for suffix in suffixes[:1]:
        disk.rename(f"{stem}{suffix}{names.CLEANED}", f"{stem}{suffix}{names.SWAP}")
    with all_or_unusable():
        for suffix in suffixes[1:]:
            disk.rename(f"{stem}{suffix}{names.CLEANED}", f"{stem}{suffix}{names.SWAP}")
        take_old_away()
        for suffix in suffixes:
            disk.rename(f"{stem}{suffix}{names.SWAP}", f"{stem}{suffix}")


def finish_interrupted(disk: Disk, directory: str) -> dict[str, Entry]:
    """Completes or undoes the work that a stop interrupted in a partition's directory. Returns the remaining files by
    name. Raises OSError. Blocks."""
    files = {entry.name: entry for entry in disk.list(directory) if not entry.is_directory}
    if not any(name.endswith((names.DELETED, names.CLEANED, names.SWAP, ".tmp")) for name in files):
        return files
    for name in list(files):
        if name.endswith((names.DELETED, names.CLEANED, ".tmp")):
            disk.remove(f"{directory}/{name}")
            del files[name]
    swaps = [name for name in files if name.endswith(names.SWAP)]
    if swaps:
        _finish_swap(disk, directory, files, swaps)
        files = {entry.name: entry for entry in disk.list(directory) if not entry.is_directory}
    return files


def _finish_swap(disk: Disk, directory: str, files: dict[str, Entry], swaps: list[str]) -> None:
    """Removes the segments that were compacted into a `.swap` segment, and gives that segment's files their final
    names. The log file is renamed last: until then, another start would repeat the whole procedure."""
    lowest, highest = 1 << 63, -1
    for name in swaps:
        parsed = names.parse_offset_name(name.removesuffix(names.SWAP))
        if parsed and parsed[1] == names.LOG:
            lowest = min(lowest, parsed[0])
            highest = max(highest, _end_of(disk, f"{directory}/{name}", parsed[0], files[name].size))
    for name in files:
        parsed = names.parse_offset_name(name)
        covered = parsed is not None and lowest <= parsed[0] < highest and parsed[1] in names.SEGMENT_SUFFIXES
        if covered and name + names.SWAP not in files:
            disk.remove(f"{directory}/{name}")
    for name in sorted(swaps, key=lambda name: name.endswith(names.LOG + names.SWAP)):
        if f"{name[:20]}{names.LOG}{names.SWAP}" in files:
            logger.info("%s: %s completes an interrupted compaction", directory, name)
            disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(names.SWAP)}")
        else:  # the new segment never became complete
            disk.remove(f"{directory}/{name}")


def _end_of(disk: Disk, path: str, base_offset: int, size: int) -> int:
    """The offset after the last batch of a log file."""
    file = disk.open(path)
    position, end = 0, base_offset
    while position + HEADER_SIZE <= size:
        header = read_header(file.pread(HEADER_SIZE, position))
        if header.size < HEADER_SIZE:
            break
        end = header.last_offset + 1
        position += header.size
    return end
