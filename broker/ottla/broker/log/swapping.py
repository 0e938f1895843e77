"""Replaces segments by the one that compaction made of them.

The order is such that recovery (`recovery.finish_interrupted`) can finish or undo a swap that a stop interrupts at any
point. First the new files get `.swap` names, the log file last, which says that the new segment is complete. Then the
old segments are taken away. Then the new files get their final names, the log file last again. Source: Kafka's
LocalLog.replaceSegments.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.storage import names

from .disk import Disk, all_or_unusable


def put_in_place(disk: Disk, stem: str, take_old_away: Callable[[], None]) -> None:
    """Gives the `.cleaned` files of `stem`, which are synced, their final names. Blocks.

    Raises OSError: EIO where a part was done, because only recovery helps then; the original error where nothing has
    changed yet.
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
