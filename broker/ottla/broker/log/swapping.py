"""How the files of a compacted segment take the place of those that it was made of.

The order is such that a stop at any point is either finished or undone by recovery, which has the other half: the log's
`.swap` name, the last to be given, says that the new segment is complete; then the old segments go; then the new one
takes its name, the log last again. Source: Kafka's LocalLog.replaceSegments.
"""

from __future__ import annotations

from collections.abc import Callable

from . import names
from .disk import Disk, all_or_unusable


def put_in_place(disk: Disk, stem: str, take_old_away: Callable[[], None]) -> None:
    """Gives the `.cleaned` files of `stem`, which are synced, their names. Blocks.

    Raises OSError: EIO where a part was done, for only recovery helps then; as it is where nothing has changed yet.
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
