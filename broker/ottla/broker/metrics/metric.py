"""One exported metric: its name, what it means, which of Kafka's MBeans it stands for, and where its value is found.

Nothing here is touched on the hot path: `collect` reads counters and state when somebody scrapes.

Names are those that Kafka's metrics get from the rules that Prometheus' JMX exporter is most often given (Strimzi's
examples: all in lower case, `…PerSec` as `…_total`), so that existing dashboards and alerts find them. What Kafka
hasn't begins with `ottla_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.broker.exposition import Labels, Sample

if TYPE_CHECKING:
    from ottla.broker.node import Broker
    from ottla.broker.partition import Partition

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"
SUMMARY = "summary"
NO_LABELS: Labels = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the tables. `mbean` is Kafka's name, empty where it has none; `labels` are the names of the labels."""

    name: str
    kind: str
    doc: str
    collect: Callable[[Broker], Iterable[Sample]]
    mbean: str = ""
    labels: tuple[str, ...] = ()


def single(value: Callable[[Broker], int | float]) -> Callable[[Broker], Iterable[Sample]]:
    """A metric with one value."""
    return lambda broker: [(NO_LABELS, value(broker))]


def by_partition(value: Callable[[Partition], int | float]) -> Callable[[Broker], Iterator[Sample]]:
    """A metric with a value for each replica that this broker holds."""

    def collect(broker: Broker) -> Iterator[Sample]:
        for partition in list(broker.partitions):
            yield (("topic", partition.topic), ("partition", str(partition.index))), value(partition)

    return collect


def count_of(holds: Callable[[Partition], bool]) -> Callable[[Broker], Iterable[Sample]]:
    """How many of this broker's replicas a condition holds for."""
    return lambda broker: [(NO_LABELS, sum(1 for partition in broker.partitions if holds(partition)))]
