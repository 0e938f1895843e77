"""For how long does a step on Ottla's event loop delay all clients, while a broker does all kinds of work at once?

One loop does all of a broker's work: a step that blocks the loop delays every answer. The broker's own histogram
(`ottla_event_loop_lag_seconds`) has the delays of a timer that fires ten times a second. These delays include the time
in which the process waits for a core. The load lasts two minutes: 10,000 records of 1 KiB a second to six partitions,
read by a consumer; single records over 20 connections; records with recurring keys to a topic that is compacted every
second; a topic whose retention deletes a segment every second; and, every second, a topic of 20 partitions that is
created and deleted, and a Metadata request for all 1,000 partitions.

The goal is absolute: Apache Kafka doesn't run on a single loop.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Callable, Mapping
from itertools import count
from multiprocessing.synchronize import Event
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.librdkafka import payloads
from bench.pair import Plan, create_topic, delete_topic, folder
from bench.raw import exchange, produce_request
from bench.table import Row, within
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import free_port

GOAL_MS = 10
TOPICS, PARTITIONS = 10, 100
RATE = 10_000
SECONDS = 120
_SEGMENT = "1048576"
_BUCKET = re.compile(r'^ottla_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\d+)', re.MULTILINE)


def run(plan: Plan) -> list[Row]:
    """Rows for the delay that one sample in a thousand exceeds, and for the longest delay."""
    p999 = Row("event loop held under mixed load, p99.9", "ms", within(GOAL_MS))
    longest = Row("event loop held, the longest since the broker's start", "ms", None)
    http = f"127.0.0.1:{free_port()}"
    settings = {
        "ottla_http_listener": http,
        "log_cleaner_backoff_ms": "1000",
        "log_retention_check_interval_ms": "1000",
        "log_segment_delete_delay_ms": "1000",
    }
    with folder() as root:
        broker = OttlaBroker(root / "ottla", **settings)
        try:
            _topics(broker)
            seconds = max(plan.scaled(SECONDS), 30)
            before = _buckets(http)
            _load(broker.bootstrap, seconds)
            p999.ottla.append(_percentile(before, _buckets(http), 0.999) * 1000)
            longest.ottla.append(_metric(http, "ottla_event_loop_lag_longest_seconds") * 1000)
        finally:
            broker.stop()
    p999.note = f"{seconds * 10} samples"
    return [p999, longest]


def _topics(broker: OttlaBroker) -> None:
    for number in range(TOPICS):
        create_topic(broker.bootstrap, f"quiet-{number}", PARTITIONS)
    create_topic(broker.bootstrap, "read", 6)
    create_topic(broker.bootstrap, "single")
    create_topic(
        broker.bootstrap,
        "compacted",
        cleanup_policy="compact",
        segment_bytes=_SEGMENT,
        min_cleanable_dirty_ratio="0.01",
    )
    create_topic(broker.bootstrap, "retained", segment_bytes=_SEGMENT, retention_bytes="8388608")


def _load(bootstrap: str, seconds: float) -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    parts: tuple[Callable[[str, Event], None], ...] = (_produce, _consume, _singles, _keys, _administrate)
    processes = [context.Process(target=part, args=(bootstrap, stop), name=part.__name__) for part in parts]
    for process in processes:
        process.start()
    try:
        time.sleep(seconds)
        ended_early = [process.name for process in processes if process.exitcode is not None]
    finally:
        stop.set()
        for process in processes:
            process.join(60)
            process.kill()  # a process that hangs would keep this one from ending
            process.join()
    if failed := ended_early or [process.name for process in processes if process.exitcode]:
        raise RuntimeError(f"a part of the load failed: {failed}")


# ---- the parts of the load, each in a process


def _produce(bootstrap: str, stop: Event) -> None:
    _write(bootstrap, stop, ("read",), RATE, lambda _: None)


def _keys(bootstrap: str, stop: Event) -> None:
    _write(bootstrap, stop, ("compacted", "retained"), RATE // 5, lambda number: b"%d" % (number % 1000))


def _write(bootstrap: str, stop: Event, topics: tuple[str, ...], rate: int, key: Callable[[int], bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 4, "acks": "all", "linger.ms": 5})
    values = payloads(1024)
    began = time.monotonic()
    for number in count():
        producer.produce(topics[number % len(topics)], values[number % len(values)], key(number))
        if number % 100 == 0:
            producer.poll(0)
            if stop.wait(max(began + number / rate - time.monotonic(), 0)):
                break
    if producer.flush(30):
        raise RuntimeError("records stay unacknowledged")


def _consume(bootstrap: str, stop: Event) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 4, "group.id": "held"})
    consumer.assign([TopicPartition("read", index, 0) for index in range(6)])
    while not stop.is_set():
        consumer.consume(10_000, 0.1)
    consumer.close()


def _singles(bootstrap: str, stop: Event) -> None:
    request = produce_request("single", payloads(100)[0])
    while not stop.wait(0.1):
        exchange(bootstrap, request, 20, 200)


def _administrate(bootstrap: str, stop: Event) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    for number in count():
        if stop.wait(1):
            return
        create_topic(bootstrap, f"passing-{number}", 20)
        admin.list_topics(timeout=10)
        delete_topic(bootstrap, f"passing-{number}")


# ---- the broker's metrics


def _scrape(http: str) -> str:
    with urlopen(f"http://{http}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _buckets(http: str) -> Mapping[float, int]:
    """The histogram's cumulative buckets: an upper bound in seconds → the number of delays up to this bound."""
    return {float(bound): int(samples) for bound, samples in _BUCKET.findall(_scrape(http))}


def _metric(http: str, name: str) -> float:
    return float(next(line for line in _scrape(http).splitlines() if line.startswith(name)).rpartition(" ")[2])


def _percentile(before: Mapping[float, int], after: Mapping[float, int], part: float) -> float:
    """The delay in seconds that the share `part` (0 to 1) of the samples don't exceed. It is interpolated within its
    bucket, as by Prometheus's histogram_quantile."""
    bounds = sorted(after)
    counts = [after[bound] - before.get(bound, 0) for bound in bounds]
    rank = part * counts[-1]
    at = next(index for index, reached in enumerate(counts) if reached >= rank)
    low, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0)
    if bounds[at] == float("inf"):
        return low
    return low + (bounds[at] - low) * (rank - below) / max(counts[at] - below, 1)
