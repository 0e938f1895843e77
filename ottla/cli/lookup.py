"""Looks up topics and partitions as a user writes them: `flights`, `flights:0,2-4`.

An unknown name is an error that suggests the nearest known name. None of the requests lets a broker create a topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli import availability
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, NotFound, UsageError, explain_code, nearest

if TYPE_CHECKING:
    from kafka import TopicPartition

    from ottla.cli.connection import Cluster

READ_UNCOMMITTED, READ_COMMITTED = ISOLATIONS = ("read_uncommitted", "read_committed")


def parse_partitions(text: str) -> list[int]:
    """`0,2-4` as [0, 2, 3, 4]."""
    partitions: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"'{text}' is not a list of partitions", "Write numbers and ranges: 0,2-4.")
        if dash and int(last) - int(first) > 100_000:
            raise UsageError(f"'{part}' is too long a range of partitions")
        partitions.update(range(int(first), int(last or first) + 1))
    return sorted(partitions)


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """`name` or `name:partitions` as (name, partitions); None stands for all partitions."""
    name, colon, partitions = text.partition(":")
    if not name:
        raise UsageError(f"'{text}' has no topic", "Write TOPIC or TOPIC:PARTITIONS, for instance flights:0,2-4.")
    return name, parse_partitions(partitions) if colon else None


def topic_names(cluster: Cluster) -> list[str]:
    """All topics' names, sorted."""
    with explained("the list of topics"):
        return sorted(cluster.patiently(cluster.admin.list_topics))


def parse_pattern(text: str) -> re.Pattern[str]:
    """The text as a regular expression. Raises UsageError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"'{text}' is not a regular expression: {error}") from None


def matching_topics(cluster: Cluster, pattern: str) -> list[str]:
    """The topics whose whole name matches a regular expression, sorted. Raises NotFound if there are none.

    `.*` must not match hidden topics. So an internal topic is found only by its exact name. Another topic whose
    name begins with two underscores is found only by an expression that begins with two underscores.
    """
    compiled = parse_pattern(pattern)
    with explained("the list of topics"):
        topics = cluster.patiently(cluster.admin.describe_topics)
    hidden_too = pattern.removeprefix("^").startswith("__")
    found = sorted(
        topic["name"]
        for topic in topics
        if topic["name"] == pattern
        or (
            compiled.fullmatch(topic["name"])
            and not topic["is_internal"]
            and (hidden_too or not topic["name"].startswith("__"))
        )
    )
    if not found:
        raise NotFound(f"no topic matches '{pattern}'", "`ottla topics list` shows all topics.")
    return found


def describe_topics(cluster: Cluster, names: Iterable[str]) -> list[dict[str, Any]]:
    """The metadata of these topics, in the order of `names`. Raises an error for the first unknown topic."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    with explained("the description of topics"):
        answer = cluster.patiently(lambda: cluster.admin.describe_topics(wanted))
        described = {topic["name"]: topic for topic in answer}
    for name in wanted:
        code = described[name]["error_code"] if name in described else 3
        if code == 3:
            raise no_topic(cluster, name)
        if code:
            raise explain_code(code, f"topic '{name}'")
    return [described[name] for name in wanted]


def no_topic(cluster: Cluster, name: str) -> NotFound:
    """The error for an unknown topic."""
    guess = nearest(name, topic_names(cluster))
    return NotFound(
        f"topic '{name}' doesn't exist",
        (guess.strip() + " " if guess else "")
        + f"`ottla topics list` shows all topics, `ottla topics create {name}` creates this one.",
        kafka_code=3,
    )


def no_partition(name: str, partition: int, count: int) -> NotFound:
    """The error for a partition that a topic with `count` partitions doesn't have."""
    has = f"The topic has {count}: 0 to {count - 1}." if count else ""
    return NotFound(f"topic '{name}' has no partition {partition}", has, kafka_code=3)


def topic_partitions(cluster: Cluster, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions that `topics` (each TOPIC or TOPIC:PARTITIONS) name. Raises an error if one is missing."""
    from kafka import TopicPartition

    wanted = [parse_topic(topic) for topic in topics]
    described = {topic["name"]: topic for topic in describe_topics(cluster, (name for name, _ in wanted))}
    found: dict[TopicPartition, None] = {}
    for name, partitions in wanted:
        there = sorted(partition["partition_index"] for partition in described[name]["partitions"])
        for partition in there if partitions is None else partitions:
            if partition not in there:
                raise no_partition(name, partition, len(there))
            found[TopicPartition(name, partition)] = None
    return list(found)


def end_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, earliest: bool = False, isolation: str = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """The end (or with `earliest` the start) offset of each partition. For readers of committed records the end is the
    last stable offset."""
    from kafka.admin import OffsetSpec

    return offsets_at(cluster, partitions, OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST, isolation)


def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], moment: Any, isolation: str = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """The offset of each partition at an OffsetSpec or a timestamp in ms; -1 if all records that readers of this
    `isolation` get are older."""
    asked = dict.fromkeys(partitions, moment)
    if not asked:
        return {}
    with explained("the offsets of " + _few(asked)):
        found = cluster.patiently(
            lambda: cluster.admin.list_partition_offsets(asked, isolation),
            check=lambda: availability.check_leaders(cluster, asked),
        )
    missing = [partition for partition in asked if partition not in found]
    if missing:
        raise CommandError(f"no offset was returned for {_few(missing)}")
    return {partition: found[partition].offset for partition in asked}


def _few(partitions: Iterable[TopicPartition]) -> str:
    names = sorted({partition.topic for partition in partitions})
    return ("topic " if len(names) == 1 else "topics ") + ", ".join(f"'{name}'" for name in names[:5])
