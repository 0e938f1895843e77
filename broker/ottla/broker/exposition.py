"""Writes metrics as the text that Prometheus reads (exposition format 0.0.4), line by line. Pure.

The broker doesn't use prometheus-client, which takes 7 MB of memory, and 40 ms at the start, and would save only a page
of code. It also renders all metrics in one go, which would block the event loop where there are thousands of
partitions. The tests check this module's text with prometheus-client's parser.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


class Histogram(NamedTuple):
    """Counts of buckets (not cumulated) whose upper bounds are `bounds`. `counts` is one longer than `bounds`: its last
    count is that of the values above the last bound. `total` is the sum of the values, in the bounds' unit."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class Sum(NamedTuple):
    """The number of the values and their sum: a summary without quantiles."""

    number: int
    total: float


Sample = tuple[Labels, int | float | Histogram | Sum]


def powers_of_two(buckets: Sequence[int], lowest: int, highest: int, unit: float, total: float) -> Histogram:
    """The histogram of `buckets`, of which bucket i counts the whole numbers from 2**(i−1) to below 2**i. The histogram
    has the bounds 2**`lowest` to 2**`highest`. `total` is the sum of all numbers. `unit` converts a number into the
    metric's unit: it is multiplied with the bounds and `total`."""
    middle = buckets[lowest + 1 : highest + 1]
    bounds = [2**i * unit for i in range(lowest, highest + 1)]
    return Histogram(bounds, [sum(buckets[: lowest + 1]), *middle, sum(buckets[highest + 1 :])], total * unit)


def lines(name: str, kind: str, doc: str, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of one metric; `kind` is counter, gauge, histogram or summary."""
    yield f"# HELP {name} {_escaped_help(doc)}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        if type(value) is int or type(value) is float:
            yield f"{name}{_braces(labels)} {_number(value)}\n"
        elif isinstance(value, Histogram):
            yield from _histogram(name, labels, value)
        elif isinstance(value, Sum):
            yield f"{name}_sum{_braces(labels)} {_number(value.total)}\n{name}_count{_braces(labels)} {value.number}\n"
        else:
            yield f"{name}{_braces(labels)} {_number(float(value))}\n"


def _histogram(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    seen = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        seen += count
        yield f"{name}_bucket{_braces((*labels, ('le', _number(bound))))} {seen}\n"
    seen += histogram.counts[-1]
    yield f"{name}_bucket{_braces((*labels, ('le', '+Inf')))} {seen}\n"
    yield f"{name}_sum{_braces(labels)} {_number(histogram.total)}\n{name}_count{_braces(labels)} {seen}\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def _escaped_help(doc: str) -> str:
    return doc.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: int | float) -> str:
    """The number as text that Go's ParseFloat reads, as the format demands. This is Python's notation, except that the
    format writes the infinities +Inf and -Inf."""
    if value == float("inf"):
        return "+Inf"
    if value == float("-inf"):
        return "-Inf"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
