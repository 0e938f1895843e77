"""Where a stream stands: the next offset of each partition, and which topics these are offsets of. Pure.

Spark keeps a position in its checkpoint as JSON. The shape is that of Spark's own source, {"topic": {"0": 5}}. A
topic's id stands beside it as the key "topic:id" of an empty object; a topic's name can't have a colon. A reader that
doesn't know about ids (Spark's Kafka source, an earlier release of Ottla) takes that key for a topic without
partitions. So such a reader accepts a position that was written here. A position that such a source wrote has no ids,
and is read as a position in the topics that have these names now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.net.names import TopicPartition
from ottla.uuids import uuid_from_text, uuid_text


class Position(NamedTuple):
    """Next offsets by partition, and the ids of their topics as far as they are known."""

    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, UUID]

    def json(self) -> dict[str, dict[str, int]]:
        """The shape for Spark, topics and partitions in order: equal positions give equal texts."""
        shaped: dict[str, dict[str, int]] = {}
        for each in sorted(self.offsets):
            shaped.setdefault(each.topic, {})[str(each.partition)] = self.offsets[each]
        return shaped | {f"{name}:{uuid_text(self.topic_ids[name])}": {} for name in shaped if name in self.topic_ids}

    def recreated(self, later: Position) -> set[str]:
        """Topics that have another id in `later`: they were deleted, and created anew."""
        both = self.topic_ids.keys() & later.topic_ids.keys()
        return {name for name in both if self.topic_ids[name] != later.topic_ids[name]}


def from_json(shaped: Mapping[str, Mapping[str, int]]) -> Position:
    """The inverse of `Position.json`. Raises ValueError for anything else."""
    offsets, topic_ids = {}, {}
    for topic, indexes in shaped.items():
        name, colon, text = topic.partition(":")
        if colon:
            topic_ids[name] = uuid_from_text(text)
        offsets.update({TopicPartition(topic, int(index)): offset for index, offset in indexes.items()})
    return Position(offsets, topic_ids)
