"""Counts the elections that the metadata shows, while the controller of this broker's process holds the lease.

If a partition's leader epoch changes, and the partition has a leader afterwards, an election has taken place. If the
partition is marked as recovering from then on, the election was unclean.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata.image import Changed, Image


class ElectionCounts:
    """How many elections were clean, and how many unclean. A listener of the image. `controls` returns whether this
    process is the active controller."""

    def __init__(self, controls: Callable[[], bool]) -> None:
        self.clean = 0
        self.unclean = 0
        self._controls = controls
        self._image = Image()

    def changed(self, image: Image, changed: Changed) -> None:
        """Counts the elections between the last image and this one."""
        before, self._image = self._image, image
        if not self._controls():
            return
        for topic_id, index in changed.partitions:
            old, new = before.partition(topic_id, index), image.partition(topic_id, index)
            if old is None or new is None or new.leader_epoch == old.leader_epoch or new.leader < 0:
                continue
            if new.recovering and not old.recovering:
                self.unclean += 1
            else:
                self.clean += 1
