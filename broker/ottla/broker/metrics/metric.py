"""One exported metric: its name, its meaning, the MBean of Kafka that it corresponds to, and how its value is
collected.

Nothing here runs on the hot path: `collect` reads counters and state at each scrape.

Names are those that Kafka's metrics get from the rules usually given to Prometheus' JMX exporter (Strimzi's examples:
all in lower case, `…PerSec` as `…_total`), so that existing dashboards and alerts find them. A metric that Kafka
doesn't have begins with `ottla_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ottla.broker.exposition import Labels, Sample
from ottla.broker.ports import WithPartitions

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"
SUMMARY = "summary"
NO_LABELS: Labels = ()


Source = TypeVar("Source", contravariant=True)
"""The object that a metric's value is read from: a protocol of the ports that its module reads. A broker has them."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """One metric, a row in the tables of docs/metrics.md. `mbean` is Kafka's name, empty where Kafka has no such
    metric; `labels` are the names of the labels."""

    name: str
    kind: str
    doc: str
    collect: Callable[[Source], Iterable[Sample]]
    mbean: str = ""
    labels: tuple[str, ...] = ()


def single(value: Callable[[Source], int | float]) -> Callable[[Source], Iterable[Sample]]:
    """The function `collect` of a metric that has a single value."""
    return lambda source: [(NO_LABELS, value(source))]


def by_partition(value: Callable[[Partition], int | float]) -> Callable[[WithPartitions], Iterator[Sample]]:
    """The function `collect` of a metric that has a value for each replica of this broker."""

    def collect(source: WithPartitions) -> Iterator[Sample]:
        for partition in list(source.partitions):
            yield (("topic", partition.topic), ("partition", str(partition.index))), value(partition)

    return collect


def count_of(holds: Callable[[Partition], bool]) -> Callable[[WithPartitions], Iterable[Sample]]:
    """The function `collect` of a metric that counts the replicas of this broker for which a condition holds."""
    return lambda source: [(NO_LABELS, sum(1 for partition in source.partitions if holds(partition)))]
