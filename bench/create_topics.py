"""Does an administrator's request succeed while the machine is starved?

A cluster of one broker, and one of three brokers, run on the embedded store. Their processes share two or more cores
with sixteen busy loops and three saturating lz4 producers (acks=all; retention deletes their records after some
megabytes). This keeps the machine's load at 20 and above. Meanwhile 200 topics of three partitions are created one
after the other. Each request has at most a minute. Before every twentieth topic there is a pause of six seconds: after
the first change that follows such a pause, the controller also writes a random string by which brokers recognise the
store (`lineage.py`).

The goals: no request fails, and the slowest takes at most half a minute. The other durations, and the load in `note`,
show how starved the machine was. Apache Kafka keeps its metadata in another way, and isn't measured.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.librdkafka import payloads
from bench.pair import Plan, create_topic, folder
from bench.table import Row, within
from tests.peers.ottla_cluster import ottla_cluster

TOPICS = 200
BUSY_LOOPS = 16
PRODUCERS = 3
PATIENCE_S = 60.0
_SECONDS_MAX = 900.0  # for one cluster; topics that aren't created by then count as failed
_QUIET_S = 6.0
_QUIET_EACH = 20
_TROUBLE = re.compile(r"controller \S+: (deposed|waiting for the metadata store)|unknown outcome")


def run(plan: Plan) -> list[Row]:
    """Rows for the durations of the creations, and for the number of failed creations."""
    rows = []
    for size in (1, 3):
        with folder() as root, ottla_cluster(root, size) as cluster:
            create_topic(cluster.bootstrap, "load", 6, size, segment_bytes="16777216", retention_bytes="16777216")
            with _load(cluster.bootstrap):
                time.sleep(5)
                seconds, failures, load = _create(cluster.bootstrap, max(plan.scaled(TOPICS), 40), size)
            trouble = sum(len(_TROUBLE.findall(_log(root, number))) for number in range(size))
        rows += _rows(size, seconds, failures, f"load {load:.0f}; the store failed {trouble} times")
    return rows


def _rows(size: int, seconds: list[float], failures: list[str], note: str) -> list[Row]:
    seconds.sort()
    name = f"a topic is created on {size} starved broker{'s' if size > 1 else ''}"
    p99 = seconds[max(len(seconds) * 99 // 100 - 1, 0)]
    return [
        Row(f"{name}, median", "s", None, [seconds[len(seconds) // 2]], note=note),
        Row(f"{name}, p99", "s", None, [p99]),
        Row(f"{name}, the slowest", "s", within(PATIENCE_S / 2), [seconds[-1]]),
        Row(f"{name}: failed of {len(seconds)}", "", within(0), [len(failures)], note="; ".join(sorted(set(failures)))),
    ]


def _create(bootstrap: str, topics: int, replicas: int) -> tuple[list[float], list[str], float]:
    """Creates topics one after the other. Returns (the duration of each request in seconds, the errors of the failed
    creations, the machine's greatest load)."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 90_000})
    seconds: list[float] = []
    failures: list[str] = []
    load, deadline = 0.0, time.monotonic() + _SECONDS_MAX
    for number in range(topics):
        if number % _QUIET_EACH == 0:
            time.sleep(_QUIET_S)
        name = f"created-{number}"
        began = time.monotonic()
        if began > deadline:
            failures.append("not begun in time")
            continue
        try:
            wanted = NewTopic(name, 3, replicas)
            answers = admin.create_topics([wanted], operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S + 5)
            answers[name].result(PATIENCE_S + 10)
        except (KafkaException, TimeoutError) as error:
            failures.append(f"{error} after {time.monotonic() - began:.0f} s")
        seconds.append(time.monotonic() - began)
        load = max(load, os.getloadavg()[0])
    return seconds, failures, load


def _log(root: Path, number: int) -> str:
    return "\n".join(path.read_text(errors="replace") for path in (root / f"broker-{number}").glob("*.log"))


# ---- the parts of the load, each in a process


@contextmanager
def _load(bootstrap: str) -> Iterator[None]:
    """A context in which the load's processes run, for `_SECONDS_MAX` at most."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [context.Process(target=_spin, daemon=True) for _ in range(BUSY_LOOPS)]
    processes += [context.Process(target=_produce, args=(bootstrap,), daemon=True) for _ in range(PRODUCERS)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < deadline:
        pass


def _produce(bootstrap: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all", "compression.type": "lz4", "linger.ms": 5}
    )
    values, deadline = payloads(1024), time.monotonic() + _SECONDS_MAX
    for number in count():
        if number % 100 == 0 and time.monotonic() > deadline:
            return
        try:
            producer.produce("load", values[number % len(values)])
        except BufferError:
            producer.poll(0.1)
