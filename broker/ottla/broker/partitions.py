"""The replicas that this broker holds, found by topic name or id and partition index.

The hot path looks a partition up with two dictionary accesses; the reason for a miss is worked out only after a miss.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.broker.partition import Partition
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.metadata.image import Image


class PartitionTable:
    """This broker's replicas by topic and partition index. `Replicas` keeps `image` current, so that the error for a
    missing replica follows from the metadata."""

    def __init__(self) -> None:
        self.image: Image | None = None
        self.lost: Container[tuple[UUID, int]] = ()  # replicas whose logs can't be read
        self.any_takes_turns = False  # whether some topic has a `compression.type` of its own
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_id.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._by_id.values())

    def add(self, partition: Partition) -> None:
        """Adds a replica."""
        partitions = self._by_id.setdefault(partition.topic_id.bytes, {})
        partitions[partition.index] = partition
        self._by_name[partition.topic] = partitions

    def remove(self, partition: Partition) -> None:
        """Removes a replica; a newer topic of the same name isn't touched."""
        partitions = self._by_id.get(partition.topic_id.bytes)
        if partitions is None or partitions.get(partition.index) is not partition:
            return
        del partitions[partition.index]
        if not partitions:
            del self._by_id[partition.topic_id.bytes]
            if self._by_name.get(partition.topic) is partitions:
                del self._by_name[partition.topic]

    def get(self, topic: str, index: int) -> Partition | None:
        """The replica of the partition `index` of the topic with that name; None where this broker holds none."""
        partitions = self._by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def get_by_id(self, topic_id: UUID, index: int) -> Partition | None:
        """The replica of the partition `index` of the topic with that id; None where this broker holds none."""
        partitions = self._by_id.get(topic_id.bytes)
        return None if partitions is None else partitions.get(index)

    def find_or_none(self, topic: str | bytes, index: int) -> Partition | None:
        """As `find`, but None where the replica is missing."""
        partitions = self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)
        return None if partitions is None else partitions.get(index)

    def of_id(self, topic_id: UUID) -> list[Partition]:
        """This broker's replicas of the topic with that id."""
        return list(self._by_id.get(topic_id.bytes, {}).values())

    def of_topic(self, topic: str) -> list[Partition]:
        """This broker's replicas of the topic with that name."""
        return list(self._by_name.get(topic, {}).values())

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The replica of the partition `index` of a topic, which is given by its name or by the 16 bytes of its id.
        Raises KafkaError: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR where the replica's log
        can't be read, or NOT_LEADER_OR_FOLLOWER where other brokers have the replicas."""
        try:
            if type(topic) is str:
                return self._by_name[topic][index]
            return self._by_id[topic][index]  # type: ignore[index]
        except KeyError:
            raise self._why_missing(topic, index) from None

    def _why_missing(self, topic: str | bytes, index: int) -> KafkaError:
        image = self.image
        if isinstance(topic, str):
            known = None if image is None else image.topics.get(topic)
            unknown = ErrorCode.unknown_topic_or_partition
        else:
            known = None if image is None else image.topics_by_id.get(UUID(bytes=topic))
            unknown = ErrorCode.unknown_topic_id
        if known is None:
            return KafkaError(unknown)
        if not 0 <= index < len(known.partitions):
            return KafkaError(ErrorCode.unknown_topic_or_partition)
        if (known.id, index) in self.lost:
            return KafkaError(ErrorCode.kafka_storage_error)
        return KafkaError(ErrorCode.not_leader_or_follower)
