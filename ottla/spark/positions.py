"""The position of a stream: the next offset of each partition, and the ids of the topics. Pure.

Spark writes a position to its checkpoint as JSON. The offsets have the form of Spark's Kafka source: {"topic": {"0":
5}} for partition 0 at offset 5. A topic's id is in another key, "topic:id", whose value is an empty object; a topic's
name can't contain a colon. Spark's Kafka source and earlier releases of Ottla take that key for a topic without
partitions, so they accept a position with ids. A position that they wrote has no ids. Its offsets then apply to the
topics that have these names now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.net.names import TopicPartition
from ottla.uuids import uuid_from_text, uuid_text


class Position(NamedTuple):
    """The next offset to read by partition, and the ids of the topics by name, as far as they are known."""

    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, UUID]

    def json(self) -> dict[str, dict[str, int]]:
        """The position as a dictionary for Spark's JSON. Topics and partitions are sorted: equal positions give equal
        texts.
        """
        shaped: dict[str, dict[str, int]] = {}
        for each in sorted(self.offsets):
            shaped.setdefault(each.topic, {})[str(each.partition)] = self.offsets[each]
        return shaped | {f"{name}:{uuid_text(self.topic_ids[name])}": {} for name in shaped if name in self.topic_ids}

    def recreated(self, later: Position) -> set[str]:
        """The names of the topics that have another id in `later`, because they were deleted and created anew."""
        both = self.topic_ids.keys() & later.topic_ids.keys()
        return {name for name in both if self.topic_ids[name] != later.topic_ids[name]}


def from_json(shaped: Mapping[str, Mapping[str, int]]) -> Position:
    """The inverse of `Position.json`. Raises ValueError for a partition that isn't a number, and for an invalid id."""
    offsets, topic_ids = {}, {}
    for topic, indexes in shaped.items():
        name, colon, text = topic.partition(":")
        if colon:
            topic_ids[name] = uuid_from_text(text)
        offsets.update({TopicPartition(topic, int(index)): offset for index, offset in indexes.items()})
    return Position(offsets, topic_ids)
