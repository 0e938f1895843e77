"""Counts how often partitions changed their leader, by the brokers' logs. Pure.

A log line such as `2026-01-31 12:00:00.123 INFO  broker.partition: left-0: leads in epoch 3 from offset 17` says that a
broker leads a partition from then on. A leader change is an epoch with another leader than the epoch before. A failover
is a moment in which one broker lost one or more partitions to other brokers: changes that follow each other within
`TOGETHER_S` and take partitions from the same broker are one failover.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

TOGETHER_S = 1.0
_LEADS = re.compile(r"^(\S+ \S+) INFO .*: (\S+)-(\d+): leads in epoch (\d+) ", re.MULTILINE)


class Change(NamedTuple):
    """A partition that got another leader. `at` is in seconds since 1970."""

    at: float
    topic: str
    index: int
    before: int
    after: int


def leader_changes(logs: Mapping[int, str]) -> list[Change]:
    """The leader changes of all partitions in the order of time, from the log of each broker."""
    led: dict[tuple[str, int], dict[int, tuple[int, float]]] = defaultdict(dict)
    for broker, text in logs.items():
        for when, topic, index, epoch in _LEADS.findall(text):
            led[topic, int(index)].setdefault(int(epoch), (broker, datetime.fromisoformat(when).timestamp()))
    found = []
    for (topic, index), epochs in led.items():
        in_order = [epochs[epoch] for epoch in sorted(epochs)]
        for (before, _), (after, at) in pairwise(in_order):
            if before != after:
                found.append(Change(at, topic, index, before, after))
    return sorted(found)


def failovers(changes: Sequence[Change]) -> int:
    """The number of moments in which a broker lost partitions to other brokers."""
    last: dict[int, float] = {}
    count = 0
    for change in changes:
        count += change.at - last.get(change.before, 0.0) > TOGETHER_S
        last[change.before] = change.at
    return count


def by_topic(changes: Iterable[Change]) -> dict[str, int]:
    """The number of leader changes of each topic's partitions."""
    return dict(Counter(change.topic for change in changes))
