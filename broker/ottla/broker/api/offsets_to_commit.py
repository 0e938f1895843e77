"""Separates the offsets of a commit: offsets of existing partitions that the client may read are committed, and all
others are refused."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from ottla.broker.group.shard import OffsetToCommit
from ottla.metadata.image import Image
from ottla.protocol.errors import ErrorCode


class SortedOffsets(NamedTuple):
    """`offsets` are the offsets of partitions that exist. `topics` is the answer to the whole request, and `slots` are
    the parts of it that wait for an error code, one for each of `offsets`."""

    offsets: list[OffsetToCommit]
    slots: list[dict[str, Any]]
    topics: list[dict[str, Any]]

    def answered(self, codes: Iterable[ErrorCode]) -> dict[str, Any]:
        """The answer, with an error code for each of `offsets`."""
        for slot, code in zip(self.slots, codes, strict=True):
            slot["error_code"] = code
        return {"topics": self.topics}


def names(image: Image, requested: Iterable[Any], *, by_id: bool) -> list[str]:
    """The names of the topics in a request, which gives the topics by their ids (`by_id`) or by their names. Ids that
    no topic has are left out."""
    if not by_id:
        return [asked.name for asked in requested]
    found = [None if asked.topic_id is None else image.topics_by_id.get(asked.topic_id) for asked in requested]
    return [topic.name for topic in found if topic is not None]


def refuse_all(requested: Iterable[Any], code: ErrorCode, *, by_id: bool) -> dict[str, Any]:
    """The answer to a request of which no offset is committed, with the error code for each partition."""
    return {
        "topics": [
            {
                **({"topic_id": asked.topic_id} if by_id else {"name": asked.name}),
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": code} for part in asked.partitions
                ],
            }
            for asked in requested
        ]
    }


def sort(image: Image, requested: Iterable[Any], readable: Set[str], *, by_id: bool) -> SortedOffsets:
    """Separates the offsets in a request whose topics are given by their ids (`by_id`) or by their names. `readable`
    are the names of the topics that the client may read."""
    found = SortedOffsets([], [], [])
    for asked in requested:
        if by_id:
            topic = None if asked.topic_id is None else image.topics_by_id.get(asked.topic_id)
            answer: dict[str, Any] = {"topic_id": asked.topic_id, "partitions": []}
            unknown = ErrorCode.unknown_topic_id
        else:
            topic = image.topics.get(asked.name)
            answer = {"name": asked.name, "partitions": []}
            unknown = ErrorCode.unknown_topic_or_partition
        name = topic.name if topic is not None else None if by_id else asked.name
        if name is not None and name not in readable:
            topic, unknown = None, ErrorCode.topic_authorization_failed
        found.topics.append(answer)
        for part in asked.partitions:
            slot = {"partition_index": part.partition_index, "error_code": unknown}
            answer["partitions"].append(slot)
            if topic is None:
                continue
            if part.partition_index not in topic.partitions:
                slot["error_code"] = ErrorCode.unknown_topic_or_partition
                continue
            found.slots.append(slot)
            found.offsets.append(
                OffsetToCommit(
                    topic.name,
                    topic.id,
                    part.partition_index,
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.committed_metadata,
                )
            )
    return found
