"""A log's leader epochs, each with its start offset: they show where two logs diverge (KIP-101, KIP-279).

Both the epochs and the start offsets of the entries ascend. The file beside the segments is replaced when the log's end
is truncated, and before each sync if an epoch has begun since the last sync. Recovery reads the epochs of unsynced
batches from the batches themselves, so a broker that becomes the leader of thousands of partitions at the same time
needn't write thousands of files. Where the disk is full, the next sync writes the file. A change that only drops
entries before the log's start is written at a clean stop, or together with the next change of another kind.

Source: Kafka's LeaderEpochFileCache; the file is `leader-epoch-checkpoint` (`ottla.storage.checkpoints`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from ottla.storage import names
from ottla.storage.checkpoints import EpochEntry, parse_epochs, render_epochs

from .disk import Disk, unless_full

UNDEFINED = -1


class EpochEnd(NamedTuple):
    """The last epoch at or below the requested one, and the offset where it ends; both −1 where that isn't known."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """A log's leader epochs. `latest` is the last epoch, −1 where there is none."""

    __slots__ = ("_disk", "_path", "_start_moved", "_starts", "_unwritten", "epochs", "latest")

    def __init__(self, disk: Disk, directory: str, entries: list[EpochEntry] | None = None) -> None:
        self._disk = disk
        self._path = f"{directory}/{names.LEADER_EPOCHS}"
        self.epochs = [entry.epoch for entry in entries or ()]
        self._starts = [entry.start_offset for entry in entries or ()]
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED
        self._unwritten = False
        self._start_moved = False  # whether the log's start rose after the file was written

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def entries(self) -> list[EpochEntry]:
        """The leader epochs with their start offsets, in ascending order."""
        return [EpochEntry(*entry) for entry in zip(self.epochs, self._starts, strict=True)]

    def assign(self, epoch: int, start_offset: int) -> None:
        """Notes that `epoch` begins at `start_offset`, and drops entries that contradict this. Changes nothing if
        `epoch` is the latest epoch, and its entry has this start offset or a lower one. The next sync writes the
        file."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} can't begin at offset {start_offset}")
        if self.epochs and epoch == self.latest and start_offset >= self._starts[-1]:
            return
        keep = min(bisect_left(self.epochs, epoch), bisect_left(self._starts, start_offset))
        del self.epochs[keep:], self._starts[keep:]
        self.epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self._unwritten = True

    def forget_from(self, offset: int) -> dict[int, int]:
        """Drops the epochs that began at or after `offset`, without writing the file: recovery reads them anew from the
        batches. Returns their start offsets by epoch."""
        keep = bisect_left(self._starts, offset)
        forgotten = dict(zip(self.epochs[keep:], self._starts[keep:], strict=True))
        self._keep(keep)
        return forgotten

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at `offset`; −1 where that isn't known."""
        at = bisect_right(self._starts, offset) - 1
        return self.epochs[at] if at >= 0 else UNDEFINED

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end of `epoch` in this log, as OffsetForLeaderEpoch answers it."""
        if epoch < 0 or not self.epochs or epoch > self.latest:
            return EpochEnd(UNDEFINED, UNDEFINED)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        higher = bisect_right(self.epochs, epoch)
        if higher == 0:
            return EpochEnd(epoch, self._starts[0])
        return EpochEnd(self.epochs[higher - 1], self._starts[higher])

    def truncate_from_end(self, end_offset: int) -> None:
        """Drops the epochs that began at or after `end_offset`, at which the log ends now."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            self._keep(keep)
            self.write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drops the epochs before the epoch of `start_offset`, at which the log starts now; that epoch then begins
        there. The file isn't written, so that the event loop needn't wait for it: recovery drops these epochs again,
        and `close` writes the file."""
        first = bisect_right(self._starts, start_offset) - 1
        if first < 0 or (first == 0 and self._starts[0] == start_offset):
            return
        del self.epochs[:first], self._starts[:first]
        self._starts[0] = start_offset
        self._start_moved = True

    def clear(self) -> None:
        """Drops all entries."""
        self._keep(0)
        self.write()

    def _keep(self, count: int) -> None:
        del self.epochs[count:], self._starts[count:]
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED

    def write(self) -> None:
        """Replaces the file, or leaves that to `write_out` where the disk is full."""
        self._unwritten = True
        with unless_full():
            self.write_out()

    def moved(self, directory: str) -> None:
        """Notes that the log is in `directory` now, and writes the file there."""
        self._path = f"{directory}/{names.LEADER_EPOCHS}"
        self.write()

    def write_out(self) -> None:
        """Replaces the file if it lacks changes. Raises OSError."""
        if self._unwritten:
            self._disk.write_atomically(self._path, render_epochs(self.entries), fsync=False)
            self._unwritten = self._start_moved = False

    def close(self) -> None:
        """Writes the file if the log's start has risen since the last write: a Kafka broker that opens the log later
        relies on the file."""
        if self._start_moved:
            self.write()


def load(disk: Disk, directory: str) -> LeaderEpochs:
    """The epochs of the log in `directory`; none where the file is missing. Raises ValueError where it is damaged."""
    path = f"{directory}/{names.LEADER_EPOCHS}"
    return LeaderEpochs(disk, directory, parse_epochs(disk.read(path)) if disk.exists(path) else None)
