"""A snapshot of the producers' state that is taken on the event loop and written in a thread.

A roll of the active segment needs the state as of that moment, but not yet the file with it: recovery can read the log
from an older snapshot. So the roll keeps the state, which costs little (`Producers.freeze`), and the sync that follows
the roll writes it. If the roll wrote the file, a hundred thousand producers would block the event loop for a third of a
second.

A truncation, a deletion or a move may come before the file is written. Then the snapshot is given up: from that moment
on no file of its name appears, because the next recovery would believe a stale one. To give up a snapshot takes as long
as one rename at most.

Source: Kafka's ProducerStateManager.takeSnapshot, whose sync is asynchronous, too (KAFKA-9393).
"""

from __future__ import annotations

import threading
from itertools import count

from ottla.storage import names
from ottla.storage.producer_snapshot import sealed_snapshot, snapshot_pieces

from .disk import Disk
from .pauses import with_pauses
from .producers import FrozenProducers

_serial = count()


class PendingSnapshot:
    """The snapshot for `offset`, at which the log ended when the snapshot was taken. Owned by the event loop, except
    `write`."""

    __slots__ = (
        "_disk",
        "_given_up",
        "_producers",
        "_renaming",
        "_temporary",
        "_writing",
        "_written",
        "offset",
        "path",
    )

    def __init__(self, disk: Disk, directory: str, offset: int, producers: FrozenProducers) -> None:
        self.offset = offset
        self.path = f"{directory}/{names.offset_name(offset, names.PRODUCER_SNAPSHOT)}"
        self._disk = disk
        self._producers = producers
        self._temporary = f"{self.path}.{next(_serial)}.tmp"  # a unique name; recovery removes such files
        self._writing = threading.Lock()
        self._renaming = threading.Lock()
        self._given_up = False
        self._written = False

    @property
    def written(self) -> bool:
        """Whether the file was written."""
        return self._written

    def write(self, *, pauses: bool = True) -> None:
        """Writes the file, unless it was written or given up. Raises OSError. Blocks; several threads may try at once.
        A broker that no longer serves clients needs no `pauses`."""
        with self._writing:
            if self._written or self._given_up:
                return
            pieces = snapshot_pieces(self._producers.items())
            data = sealed_snapshot(with_pauses(pieces) if pauses else pieces, self._producers.marked_to)
            self._disk.write_atomically(self._temporary, data, fsync=False)
            with self._renaming:
                if not self._given_up:
                    self._disk.rename(self._temporary, self.path)
                    self._written = True
                    return
            self._disk.remove(self._temporary)

    def give_up(self) -> bool:
        """Ensures that no file appears from now on. Returns whether the file was written already; then the caller is
        responsible for it."""
        with self._renaming:
            self._given_up = True
            return self._written
