"""Asks the cluster what a read is to cover: which partitions, and the offsets that its bounds stand for.

Talks to brokers, decides nothing about tasks (`offsets` does). What can be known to be wrong before the first task
starts (a topic or partition that doesn't exist, bounds that don't fit the partitions, data that is gone) is raised
here.

Source: Spark's ConsumerStrategy and KafkaOffsetReaderAdmin.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

from ottla.net.client import Client, ClusterMetadata
from ottla.net.names import EARLIEST, LATEST, TopicPartition

from .offsets import OffsetRange
from .options import Bound, Offsets, OptionError, ReadOptions, Subscription
from .properties import ClientProperties
from .pushdown import Bounds

log = logging.getLogger("ottla.spark")


class DataLoss(Exception):
    """Offsets that were asked for are not in the log any more."""


def open_client(properties: ClientProperties) -> Client:
    """A client with these properties."""
    return Client(
        properties.bootstrap,
        client_id=properties.client_id,
        request_timeout_ms=properties.request_timeout_ms,
        api_timeout_ms=properties.api_timeout_ms,
        connect_timeout_ms=properties.connect_timeout_ms,
        retry_backoff_ms=properties.retry_backoff_ms,
    )


def assigned(client: Client, subscription: Subscription) -> list[TopicPartition]:
    """The partitions to read now. Raises OptionError for a named topic or partition that doesn't exist."""
    if subscription.pattern is not None:
        cluster = client.metadata()
        pattern = re.compile(subscription.pattern)
        names = [each.name for each in cluster.topics.values() if not each.internal and pattern.fullmatch(each.name)]
        return _partitions(cluster, sorted(names))
    names = list(subscription.topics or dict.fromkeys(each.topic for each in subscription.partitions))
    cluster = client.metadata(names)
    for name, code in cluster.errors.items():
        problem = "does not exist" if code.name == "unknown_topic_or_partition" else f"can't be read: {code.name}"
        raise OptionError(f"topic '{name}' {problem} at {', '.join(map(str, client.bootstrap))}")
    if subscription.topics:
        return _partitions(cluster, names)
    for each in subscription.partitions:
        count = len(cluster.topics[each.topic].leaders)
        if each.partition not in cluster.topics[each.topic].leaders:
            raise OptionError(f"topic '{each.topic}' has partitions 0 to {count - 1}, no partition {each.partition}")
    return list(subscription.partitions)


def resolve(
    client: Client, partitions: Iterable[TopicPartition], bound: Bound, options: ReadOptions, *, starting: bool
) -> dict[TopicPartition, int]:
    """The offset that `bound` stands for in each partition. Raises OptionError where a bound doesn't fit them."""
    wanted = list(partitions)
    side = "starting" if starting else "ending"
    isolation = options.properties.isolation
    if bound.each is not None and set(bound.each) != set(wanted):
        raise OptionError(
            f"{side} offsets or timestamps must be given for every partition: given for {_names(bound.each)}, "
            f"to be read {_names(wanted)} (-1 stands for latest and -2 for earliest)"
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


def batch_ranges(client: Client, options: ReadOptions, bounds: Bounds) -> list[OffsetRange]:
    """What a batch read covers within `bounds`. Raises OptionError, or DataLoss under failOnDataLoss."""
    partitions = assigned(client, options.subscription)
    start = resolve(client, partitions, options.starting, options, starting=True)
    end = resolve(client, partitions, options.ending, options, starting=False)
    given = [bound for bound in (options.starting, options.ending) if isinstance(bound, Offsets) and bound.each]
    if given:
        start, end = _within_log(client, start, end, options)
    ranges = bounds.apply(OffsetRange(each, start[each], end[each]) for each in partitions)
    if bounds.since_ms is None:
        return ranges
    since = client.list_offsets(
        {each.partition: bounds.since_ms for each in ranges}, isolation=options.properties.isolation
    )
    matched = [each for each in ranges if since[each.partition].offset >= 0]
    return [each._replace(start=max(each.start, since[each.partition].offset)) for each in matched]


def report_data_loss(options: ReadOptions, what: str) -> None:
    """Raises DataLoss under failOnDataLoss, logs a warning otherwise."""
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
    latest = client.list_offsets(dict.fromkeys(start, LATEST), isolation=options.properties.isolation)
    starts, ends = {}, {}
    for each, first in start.items():
        low, high = earliest[each].offset, latest[each].offset
        if first < end[each] and (first < low or end[each] > high):
            asked = f"offsets {first} to {end[each]} were asked for"
            report_data_loss(options, f"{each} holds offsets {low} to {high}, and {asked}")
        starts[each], ends[each] = max(first, low), min(end[each], high)
    return starts, ends


def _partitions(cluster: ClusterMetadata, names: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(name, index) for name in names for index in sorted(cluster.topics[name].leaders)]


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
