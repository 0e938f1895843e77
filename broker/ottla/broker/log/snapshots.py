"""The snapshots of a log's producers: snapshots on the disk, and pending snapshots, which the next sync writes.

Owned by the event loop. A pending snapshot is given up first of all when it is no longer wanted, or when its directory
gets another name, so that no thread writes its file afterwards.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable

from .disk import Disk
from .pending_snapshot import PendingSnapshot
from .producers import Producers

_PENDING_MAX = 4  # each may hold the state of a hundred thousand producers


class Snapshots:
    """Snapshots by their offsets; `on_disk` in ascending order."""

    __slots__ = ("_pending", "on_disk")

    def __init__(self, on_disk: list[int]) -> None:
        self.on_disk = on_disk
        self._pending: dict[int, PendingSnapshot] = {}

    @property
    def last(self) -> int:
        """The greatest offset of all snapshots, on the disk or pending; −1 where there is none."""
        return max(self.on_disk[-1] if self.on_disk else -1, *self._pending, -1)

    def write_later(self, disk: Disk, directory: str, offset: int, producers: Producers) -> None:
        """Freezes the producers' present state, while the log ends at `offset`, as a pending snapshot, which the next
        sync writes."""
        if self.last >= offset:
            return
        if len(self._pending) == _PENDING_MAX:  # rolls happen faster than the disk syncs
            self._settle(next(iter(self._pending)))
        self._pending[offset] = PendingSnapshot(disk, directory, offset, producers.freeze())

    def pending(self, end_offset: int) -> list[PendingSnapshot]:
        """The snapshots that a sync up to `end_offset` writes."""
        return [snapshot for snapshot in self._pending.values() if snapshot.offset <= end_offset]

    def synced(self, snapshots: Iterable[PendingSnapshot]) -> None:
        """Notes the end of a sync that was to write these snapshots."""
        for snapshot in snapshots:
            if snapshot.written and self._pending.get(snapshot.offset) is snapshot:
                self._settle(snapshot.offset)

    def write_out(self) -> None:
        """Writes the pending snapshots. Raises OSError. Blocks."""
        for snapshot in self._pending.values():
            snapshot.write(pauses=False)
        self.give_up()

    def give_up(self, unwanted: Callable[[int], bool] = lambda _: True) -> None:
        """Gives up the unwanted pending snapshots. A snapshot whose file has been written already counts as on the disk
        from now on."""
        for offset in [offset for offset in self._pending if unwanted(offset)]:
            self._settle(offset)

    def forget(self, unwanted: Callable[[int], bool]) -> list[int]:
        """Forgets the unwanted snapshots. Returns the offsets of those on the disk, whose files the caller removes."""
        self.give_up(unwanted)
        gone = [offset for offset in self.on_disk if unwanted(offset)]
        self.on_disk = [offset for offset in self.on_disk if not unwanted(offset)]
        return gone

    def moved(self) -> None:
        """Notes that the log was moved to another directory. The copy lacks pending snapshots, even one that a sync has
        just written to the former directory."""
        copied = list(self.on_disk)
        self.give_up()
        self.on_disk = copied

    def _settle(self, offset: int) -> None:
        if self._pending.pop(offset).give_up():
            insort(self.on_disk, offset)
