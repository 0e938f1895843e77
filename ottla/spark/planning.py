"""Asks brokers for the partitions that a read covers, and for the offsets at its bounds.

Problems that can be found before the first task starts are raised here: a topic or partition that doesn't exist, bounds
that don't fit the partitions, deleted data. `offsets` distributes the ranges among tasks.

Source: Spark's ConsumerStrategy and KafkaOffsetReaderAdmin.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.net.client import Client, TopicMetadata
from ottla.net.error_codes import ABSENT
from ottla.net.existence import Wanted
from ottla.net.names import EARLIEST, LATEST, TopicPartition
from ottla.security.preparation import prepared

from .java_pattern import compiled
from .offsets import OffsetRange
from .options import Bound, Offsets, OptionError, ReadOptions, Subscription
from .positions import Position
from .properties import ClientProperties
from .pushdown import Bounds

log = logging.getLogger("ottla.spark")


class DataLoss(Exception):
    """Offsets that a read should cover aren't in the log any more."""


def open_client(properties: ClientProperties) -> Client:
    """A client with these properties. The caller closes it. Raises InvalidTls if a key or trust store can't be used.

    The stores are read anew for each client, so renewed files count in a long stream; their paths must be right on each
    machine.
    """
    return Client(
        properties.bootstrap,
        client_id=properties.client_id,
        request_timeout_ms=properties.request_timeout_ms,
        api_timeout_ms=properties.api_timeout_ms,
        connect_timeout_ms=properties.connect_timeout_ms,
        retry_backoff_ms=properties.retry_backoff_ms,
        unknown_retries=properties.unknown_retries,
        unknown_interval_ms=properties.unknown_interval_ms,
        security=prepared(properties.security),
    )


class Assignment(NamedTuple):
    """The partitions to read, and the ids of their topics by name, as far as brokers return ids."""

    partitions: list[TopicPartition]
    topic_ids: dict[str, UUID]


NOWHERE = Position({}, {})


def assigned(client: Client, subscription: Subscription, known: Position = NOWHERE) -> Assignment:
    """The partitions that the subscription covers now.

    `known` is the position of a stream. A partition of `known` counts as deleted, or its topic as created anew, only if
    several brokers agree: a single broker's metadata may be old. Raises OptionError if a topic or partition that the
    subscription names doesn't exist.
    """
    wanted: dict[str, Wanted] = {}
    for each in (*known.offsets, *subscription.partitions):
        least = max(each.partition + 1, wanted[each.topic].partitions if each.topic in wanted else 0)
        wanted[each.topic] = Wanted(known.topic_ids.get(each.topic), least)
    if subscription.pattern is not None:
        return _matching(client, compiled(subscription.pattern), wanted)
    names = list(subscription.topics or dict.fromkeys(each.topic for each in subscription.partitions))
    cluster = client.look_up({name: wanted.get(name, Wanted()) for name in names})
    for name, code in cluster.errors.items():
        problem = "does not exist" if code in ABSENT else f"can't be read: {code.name}"
        raise OptionError(f"topic '{name}' {problem} at {', '.join(map(str, client.bootstrap))}")
    for each in subscription.partitions:
        count = len(cluster.topics[each.topic].leaders)
        if each.partition not in cluster.topics[each.topic].leaders:
            raise OptionError(
                f"topic '{each.topic}' has partitions 0 to {count - 1}, but no partition {each.partition}"
            )
    return _assignment([cluster.topics[name] for name in names], list(subscription.partitions))


def resolve(
    client: Client, partitions: Iterable[TopicPartition], bound: Bound, options: ReadOptions, *, starting: bool
) -> dict[TopicPartition, int]:
    """The offset at `bound` in each partition.

    For a timestamp, it is the offset of the first record at or after that timestamp. If a partition has no such record,
    the result is the end of its log, but under the strategy `error` a `starting` bound raises OptionError. A bound that
    is given by partition raises OptionError if it doesn't have exactly the given `partitions`.
    """
    wanted = list(partitions)
    side = "starting" if starting else "ending"
    isolation = options.properties.isolation
    if bound.each is not None and set(bound.each) != set(wanted):
        raise OptionError(
            f"{side} offsets or timestamps must be given for every partition: they are given for {_names(bound.each)}, "
            f"but {_names(wanted)} are to be read (-1 stands for latest and -2 for earliest)"
        )
    asked = {each: bound.everywhere if bound.each is None else bound.each[each] for each in wanted}
    numbers = {each: number for each, number in asked.items() if number is not None}
    if isinstance(bound, Offsets):
        symbolic = {each: number for each, number in numbers.items() if number in (EARLIEST, LATEST)}
        found = client.list_offsets(symbolic, isolation=isolation)
        return {each: found[each].offset if each in found else number for each, number in numbers.items()}
    found = client.list_offsets(numbers, isolation=isolation)
    unmatched = [each for each in wanted if found[each].offset < 0]
    if unmatched and starting and options.no_match == "error":
        raise OptionError(
            f"no record of {unmatched[0]} is at or after the timestamp {numbers[unmatched[0]]}; set "
            "startingOffsetsByTimestampStrategy to latest to start such partitions at their end"
        )
    latest = client.list_offsets(dict.fromkeys(unmatched, LATEST), isolation=isolation)
    return {each: latest[each].offset if each in latest else found[each].offset for each in wanted}


def batch_ranges(client: Client, options: ReadOptions, bounds: Bounds) -> tuple[list[OffsetRange], Mapping[str, UUID]]:
    """The ranges that a batch read covers, cut to the filters' `bounds`, and the ids of the topics by name.

    Raises OptionError, and DataLoss under failOnDataLoss.
    """
    partitions, topic_ids = assigned(client, options.subscription)
    start = resolve(client, partitions, options.starting, options, starting=True)
    end = resolve(client, partitions, options.ending, options, starting=False)
    given = [bound for bound in (options.starting, options.ending) if isinstance(bound, Offsets) and bound.each]
    if given:
        start, end = _within_log(client, start, end, options)
    ranges = bounds.apply(OffsetRange(each, start[each], end[each]) for each in partitions)
    if bounds.since_ms is None:
        return ranges, topic_ids
    since = client.list_offsets(
        {each.partition: bounds.since_ms for each in ranges}, isolation=options.properties.isolation
    )
    matched = [each for each in ranges if since[each.partition].offset >= 0]
    return [each._replace(start=max(each.start, since[each.partition].offset)) for each in matched], topic_ids


def ends(
    client: Client, partitions: Iterable[TopicPartition], known: Mapping[TopicPartition, int], options: ReadOptions
) -> dict[TopicPartition, int]:
    """The end of each partition's log: the high watermark, or under read_committed the last stable offset.

    `known` has offsets that the logs should have reached. But right after an election, a leader may return a high
    watermark that is still behind. So if an end is lower than the known offset, all ends are requested again, after a
    pause and at most fetchOffset.numRetries times. The last answer is returned even if it is still lower.
    """
    asked = dict.fromkeys(partitions, LATEST)
    for attempt in range(options.offset_attempts + 1):
        if attempt:
            time.sleep(options.offset_retry_interval_ms / 1000)
        found = client.list_offsets(asked, isolation=options.properties.isolation)
        behind = [each for each in asked if found[each].offset < known.get(each, 0)]
        if not behind:
            break
        log.warning(
            "%s: the leader reports an end of the log that is before an offset which the log had already;"
            " a new leader may do so for a moment",
            ", ".join(map(str, behind)),
        )
    return {each: found[each].offset for each in asked}


def report_data_loss(options: ReadOptions, what: str) -> None:
    """Under failOnDataLoss, raises DataLoss with `what` in its message. Otherwise logs `what` as a warning."""
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{what}. Some data may have been lost because it was deleted by retention or the topic was deleted before "
            "all of it was read; set the option failOnDataLoss to false to go on without it"
        )
    log.warning("%s; going on without it, because failOnDataLoss is false", what)


def _within_log(
    client: Client, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], options: ReadOptions
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    earliest = client.list_offsets(dict.fromkeys(start, EARLIEST))
    latest = ends(client, start, end, options)
    starts, stops = {}, {}
    for each, first in start.items():
        low, high = earliest[each].offset, latest[each]
        if first < end[each] and (first < low or end[each] > high):
            asked = f"offsets {first} to {end[each]} were asked for"
            report_data_loss(options, f"{each} has offsets {low} to {high}, but {asked}")
        starts[each], stops[each] = max(first, low), min(end[each], high)
    return starts, stops


def _matching(client: Client, pattern: re.Pattern[str], known: Mapping[str, Wanted]) -> Assignment:
    cluster = client.metadata()
    topics = dict(cluster.topics)
    doubted = {
        name: wanted
        for name, wanted in known.items()
        if name not in topics
        or wanted.topic_id not in (None, topics[name].topic_id)
        or len(topics[name].leaders) < wanted.partitions
    }
    if doubted:
        topics |= client.look_up(doubted).topics
    chosen = [topics[name] for name in sorted(topics) if not topics[name].internal and pattern.fullmatch(name)]
    return _assignment(chosen, [])


def _assignment(topics: Iterable[TopicMetadata], partitions: list[TopicPartition]) -> Assignment:
    described = list(topics)
    every = [TopicPartition(each.name, index) for each in described for index in sorted(each.leaders)]
    return Assignment(
        partitions or every, {each.name: each.topic_id for each in described if each.topic_id is not None}
    )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
