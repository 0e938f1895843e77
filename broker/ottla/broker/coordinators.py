"""The coordinators of a broker, by the internal topics whose partitions they lead.

Tells each coordinator which partitions of its topic this broker begins to lead or no longer leads, and which topics
were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ottla.broker.partition import Partition
from ottla.metadata.image import Changed, Image


class Coordinator(Protocol):
    """A coordinator whose state is stored in an internal topic."""

    def became_leader(self, partition: Partition) -> None:
        """Called when this broker begins to lead the partition, in the leader epoch `leader_epoch`."""

    def lost_leadership(self, index: int) -> None:
        """Called when this broker no longer leads partition `index`."""

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Called when the topics with these names were deleted."""


class Coordinators:
    """Coordinators by the name of their internal topic."""

    def __init__(self, by_topic: Mapping[str, Coordinator]) -> None:
        self._by_topic = by_topic

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Called with `leads` True when this broker begins to lead the partition, and with False when it stops. A
        listener of the replicas."""
        coordinator = self._by_topic.get(partition.topic)
        if coordinator is None:
            return
        if leads:
            coordinator.became_leader(partition)
        else:
            coordinator.lost_leadership(partition.index)

    def changed(self, image: Image, changed: Changed) -> None:
        """Tells each coordinator which topics were deleted. A listener of the image."""
        deleted = [image.tombstones[topic_id].name for topic_id in changed.tombstones if topic_id in image.tombstones]
        if deleted:
            for coordinator in self._by_topic.values():
                coordinator.topics_deleted(deleted)
