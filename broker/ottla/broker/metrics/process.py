"""Metrics of the process: its event loop, build, CPU time, memory, open files and garbage collection."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from ottla.broker.exposition import Sample, powers_of_two
from ottla.broker.metrics.metric import COUNTER, GAUGE, HISTOGRAM, NO_LABELS, Metric, single
from ottla.broker.ports import WithId, WithLoopLag
from ottla.protocol import record_walk

MICROSECOND = 1e-6
LOWEST_LAG_BUCKET = 7  # 128 µs
HIGHEST_LAG_BUCKET = 23  # 8.4 s
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Source(WithId, WithLoopLag, Protocol):
    """The parts of a broker that the metrics of the process read."""


def _lag(broker: Source) -> Iterator[Sample]:
    lag = broker.loop_lag
    yield (
        NO_LABELS,
        powers_of_two(lag.buckets, LOWEST_LAG_BUCKET, HIGHEST_LAG_BUCKET, MICROSECOND, lag.lag_microseconds),
    )


def _cpu_seconds(_: Source) -> float:
    """The CPU time in seconds that this process and its ended child processes have used."""
    return sum(os.times()[:4])


@cache
def _start_seconds() -> float:
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.time() - float(uptime.read().split()[0]) + ticks / _TICKS


def _resident_bytes(_: Source) -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


def _collections(_: Source) -> Iterator[Sample]:
    for generation, stats in enumerate(gc.get_stats()):
        yield (("generation", str(generation)),), stats["collections"]


def _build(broker: Source) -> Iterator[Sample]:
    try:
        release = version("ottla")
    except PackageNotFoundError:
        release = "unknown"
    yield (("version", release), ("broker", str(broker.id))), 1


METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "ottla_event_loop_lag_seconds", HISTOGRAM,
        "How late the event loop fires a timer that is due ten times a second.", _lag,
    ),
    Metric(
        "ottla_event_loop_lag_longest_seconds", GAUGE, "The longest lag of the event loop since the start.",
        single(lambda broker: broker.loop_lag.longest_seconds),
    ),
    Metric(
        "ottla_broker_info", GAUGE, "Always 1; the labels are the version of Ottla and the broker's id.",
        _build, "", ("version", "broker"),
    ),
    Metric(
        "ottla_native_record_walk", GAUGE,
        "1 if native code checks producers' records, 0 if slower code in Python does.",
        single(lambda _: int(record_walk.NATIVE)),
    ),
    Metric("process_cpu_seconds_total", COUNTER, "CPU time of the process and ended children.", single(_cpu_seconds)),
    Metric("process_resident_memory_bytes", GAUGE, "Memory in RAM.", single(_resident_bytes)),
    Metric(
        "process_open_fds", GAUGE, "Open file descriptors.", single(lambda broker: len(os.listdir("/proc/self/fd"))),
    ),
    Metric("process_start_time_seconds", GAUGE, "When the process started.", single(lambda broker: _start_seconds())),
    Metric(
        "python_gc_collections_total", COUNTER, "Runs of the garbage collector.", _collections, "", ("generation",),
    ),
)  # fmt: skip
"""The metrics of the process."""
