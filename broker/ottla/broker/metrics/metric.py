"""One exported metric: its name, what it means, which of Kafka's MBeans it stands for, and where its value is found.

Nothing here is touched on the hot path: `collect` reads counters and state when somebody scrapes.

Names are those that Kafka's metrics get from the rules that Prometheus' JMX exporter is most often given (Strimzi's
examples: all in lower case, `…PerSec` as `…_total`), so that existing dashboards and alerts find them. What Kafka
hasn't begins with `ottla_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ottla.broker.exposition import Labels, Sample

if TYPE_CHECKING:
    from ottla.broker.partition import Partition
    from ottla.broker.partitions import PartitionTable

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"
SUMMARY = "summary"
NO_LABELS: Labels = ()


Source = TypeVar("Source", contravariant=True)
"""What a metric's value is found in: a protocol of what its module reads, which the broker fulfils."""


class HoldsPartitions(Protocol):
    """Where replicas are counted."""

    @property
    def partitions(self) -> PartitionTable:
        """The replicas that this broker holds."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A row of the tables. `mbean` is Kafka's name, empty where it has none; `labels` are the names of the labels."""

    name: str
    kind: str
    doc: str
    collect: Callable[[Source], Iterable[Sample]]
    mbean: str = ""
    labels: tuple[str, ...] = ()


def single(value: Callable[[Source], int | float]) -> Callable[[Source], Iterable[Sample]]:
    """A metric with one value."""
    return lambda source: [(NO_LABELS, value(source))]


def by_partition(value: Callable[[Partition], int | float]) -> Callable[[HoldsPartitions], Iterator[Sample]]:
    """A metric with a value for each replica that this broker holds."""

    def collect(source: HoldsPartitions) -> Iterator[Sample]:
        for partition in list(source.partitions):
            yield (("topic", partition.topic), ("partition", str(partition.index))), value(partition)

    return collect


def count_of(holds: Callable[[Partition], bool]) -> Callable[[HoldsPartitions], Iterable[Sample]]:
    """How many of this broker's replicas a condition holds for."""
    return lambda source: [(NO_LABELS, sum(1 for partition in source.partitions if holds(partition)))]
