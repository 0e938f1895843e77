"""How long does it take from producing a record to receiving it, at a fixed rate?

1 KiB, linger 0, acks=all, one partition. The producer and the consumer (librdkafka) are processes of their own; each
record contains the time at which it was sent. The percentiles are of all records after the first second; the table
shows the median of the rounds.
"""

from __future__ import annotations

import array
import multiprocessing
import struct
import time
from itertools import count
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.pair import Pair, Peer, Plan, create_topic, measured, pair
from bench.table import Row, at_most

SIZE_BYTES = 1024
CASES = ((1_000, 1_000_000), (20_000, 5), (20_000, 1_000_000))  # (records/s, max.in.flight)
PERCENTILES = ((0.5, "p50", at_most(0.7)), (0.99, "p99", at_most(0.5)), (0.999, "p99.9", at_most(0.5)))
_stamp = struct.Struct("d")


def run(plan: Plan) -> list[Row]:
    """Rows for each rate: three percentiles of the latency, and the broker's CPU."""
    with pair() as brokers:
        return [row for rate, in_flight in CASES for row in _case(brokers, plan, rate, in_flight)]


def _case(brokers: Pair, plan: Plan, rate: int, in_flight: int) -> list[Row]:
    name = f"end to end at {rate:,}/s, " + ("librdkafka's in-flight" if in_flight > 5 else f"in-flight {in_flight}")
    rows = [Row(f"{name}, {label}", "ms", goal) for _, label, goal in PERCENTILES]
    cpu = Row(name, "broker CPU, % of a core", at_most(1))
    seconds = 5 if plan.fast else 20
    warm: set[str] = set()
    number = count()

    def work(which: str, broker: Peer) -> None:
        topic = f"latency-{rate}-{in_flight}-{next(number)}"
        create_topic(broker.bootstrap, topic)
        with measured(broker) as spent:
            latencies = _once(broker.bootstrap, topic, rate, in_flight, seconds)
        if which not in warm:
            warm.add(which)
            return
        latencies = sorted(latencies[rate:])
        for (part, _, _), row in zip(PERCENTILES, rows, strict=True):
            row.add(which, latencies[int(len(latencies) * part)] * 1000)
        cpu.add(which, spent.broker_cpu / spent.wall * 100)

    brokers.alternate(plan, work, plan.rounds + 1)
    return [*rows, cpu]


def _once(bootstrap: str, topic: str, rate: int, in_flight: int, seconds: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    consumer = context.Process(target=_consume, args=(bootstrap, topic, rate * seconds, there))
    consumer.start()
    here.recv()  # waits until the consumer has its position
    producer = context.Process(target=_produce, args=(bootstrap, topic, rate, in_flight, seconds))
    producer.start()
    if not here.poll(seconds + 60):
        raise RuntimeError(f"not all of {rate * seconds} records arrived")
    latencies = array.array("d", here.recv_bytes())
    producer.join()
    consumer.join()
    return latencies.tolist()


def _produce(bootstrap: str, topic: str, rate: int, in_flight: int, seconds: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 4,
            "acks": "all",
            "linger.ms": 0,
            "max.in.flight.requests.per.connection": in_flight,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.list_topics(topic, 30)
    padding = bytes(SIZE_BYTES - _stamp.size)
    began = time.perf_counter()
    sent = 0
    total = rate * seconds
    while sent < total:
        due = min(int((time.perf_counter() - began) * rate), total)
        while sent < due:
            producer.produce(topic, _stamp.pack(time.monotonic()) + padding, partition=0)
            sent += 1
        producer.poll(0)
        time.sleep(0.0005)
    producer.flush(60)


def _consume(bootstrap: str, topic: str, count: int, told: Connection) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "log_level": 4, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.consume(1, 1.0)
    told.send("ready")
    latencies = array.array("d")
    while len(latencies) < count:
        message = consumer.poll(1.0)  # consume(n) would wait for n records
        if message is not None:
            latencies.append(time.monotonic() - _stamp.unpack_from(message.value() or b"")[0])
    told.send_bytes(latencies.tobytes())
    consumer.close()
