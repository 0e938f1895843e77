"""Whether topics exist: asked of several brokers, several times, before anybody is told that one doesn't.

One broker's "unknown topic" proves nothing. It may not have applied a creation that another broker has answered, or may
have started a moment ago. Metadata of a topic that was deleted and created anew may likewise come from a broker that
hasn't heard of it. So a topic counts as absent only when none of BROKERS_MAX brokers described it as wanted in any of
the rounds that the client allows. A topic that the first broker describes costs one request.

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

BROKERS_MAX = 3  # asked in a round


class Wanted(NamedTuple):
    """What a description of a topic has to have: this id (None: any), and at least so many partitions."""

    topic_id: UUID | None = None
    partitions: int = 0


class TopicGone(KafkaError):
    """No broker knows the topic, or it has another id by now: it was deleted and created anew."""


def look_up(client: Client, wanted: Mapping[str, Wanted]) -> ClusterMetadata:
    """Metadata of the topics.

    A topic that nobody described as wanted is there as somebody described it, if anybody did, or else among the errors.
    Raises Unreachable.
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
    """What to raise after a broker said that it doesn't know `partition`: a Retry, because the partition exists.

    Raises TopicGone where the brokers agree that it doesn't.
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
    """What several brokers say about topics; at least one of them answers."""
    first = client.metadata(names)
    yield first
    others = [first.brokers[node] for node in sorted(first.brokers) if first.brokers[node] != first.answered_by]
    for address in others[: BROKERS_MAX - 1]:
        try:
            yield client.metadata_at(address, names)
        except (ConnectionLost, Retry):
            continue
