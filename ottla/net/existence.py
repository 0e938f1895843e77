"""Finds out whether topics exist, by asking several brokers, several times, before a topic counts as absent.

One broker's "unknown topic" proves nothing. That broker may not have applied a creation that another broker has
confirmed, or may have started a moment ago. If a topic was deleted and created anew, a broker may likewise still
describe the old topic. So a topic counts as absent only when, in all rounds that the client allows, none of BROKERS_MAX
brokers described it as the caller wants it. If the first broker does so, one request is enough.

Source: KafkaOffsetReaderAdmin's retries (fetchOffset.numRetries and fetchOffset.retryIntervalMs).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla.protocol.errors import ErrorCode, KafkaError

from .blocking import ConnectionLost
from .error_codes import ABSENT, Retry
from .names import TopicPartition

if TYPE_CHECKING:
    from .client import Client, ClusterMetadata, TopicMetadata

BROKERS_MAX = 3  # the number of brokers that are asked in a round


class Wanted(NamedTuple):
    """What a client requires of a topic: the id `topic_id` (None: any id), and at least `partitions` partitions."""

    topic_id: UUID | None = None
    partitions: int = 0


class TopicGone(KafkaError):
    """No broker knows the topic, or it lacks the partition, or it was deleted and created anew, with another id."""


def look_up(client: Client, wanted: Mapping[str, Wanted]) -> ClusterMetadata:
    """Metadata of the topics in `wanted`. Asks one broker after the other until all topics are described as wanted.

    If no broker described a topic as wanted, but some broker described it otherwise, that description is returned. If
    no broker described it at all, the topic is among the errors. Raises Unreachable.
    """
    fitting: dict[str, TopicMetadata] = {}
    others: dict[str, TopicMetadata] = {}
    errors: dict[str, ErrorCode] = {}
    open_questions = set(wanted)
    for attempt in range(client.unknown_retries + 1):
        if attempt:
            time.sleep(client.unknown_interval_ms / 1000)
        for answer in _answers(client, sorted(open_questions)):
            for name, topic in answer.topics.items():
                fits = wanted[name].topic_id in (None, topic.topic_id) and len(topic.leaders) >= wanted[name].partitions
                (fitting if fits else others)[name] = topic
            errors |= answer.errors
            refused = {name for name, code in answer.errors.items() if code not in ABSENT}
            open_questions -= fitting.keys() | refused
            if not open_questions:
                break
        if not open_questions:
            break
    described = others | fitting
    left = {name: code for name, code in errors.items() if name not in described}
    return replace(answer, topics=described, errors=left)


def doubt(client: Client, partition: TopicPartition, topic_id: UUID | None, said: str) -> Retry:
    """Asks several brokers about `partition`, because one broker answered that it doesn't know the partition.

    `said` describes this broker's answer, for the error message. If the partition exists, returns a Retry for the
    caller to raise. If the brokers agree that it doesn't exist, raises TopicGone.
    """
    client.forget_leader(partition)
    found = look_up(client, {partition.topic: Wanted(topic_id, partition.partition + 1)}).topics.get(partition.topic)
    if found is None:
        raise TopicGone(ErrorCode.unknown_topic_or_partition, f"topic '{partition.topic}' is gone ({said})")
    if topic_id is not None and found.topic_id != topic_id:
        raise TopicGone(ErrorCode.unknown_topic_id, f"topic '{partition.topic}' was deleted and created anew ({said})")
    if partition.partition not in found.leaders:
        count = len(found.leaders)
        raise TopicGone(
            ErrorCode.unknown_topic_or_partition,
            f"topic '{partition.topic}' has {count} partitions, no partition {partition.partition}",
        )
    return Retry(f"{partition} exists, and {said}")


def _answers(client: Client, names: list[str]) -> Iterator[ClusterMetadata]:
    """The Metadata answers of several brokers about the topics; at least one of them answers."""
    first = client.metadata(names)
    yield first
    others = [first.brokers[node] for node in sorted(first.brokers) if first.brokers[node] != first.answered_by]
    for address in others[: BROKERS_MAX - 1]:
        try:
            yield client.metadata_at(address, names)
        except (ConnectionLost, Retry):
            continue
