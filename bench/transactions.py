"""What do transactions cost?

*Writing*: librdkafka producers, one transaction each 100 ms or each second, with 20 records of 100 B on 6 partitions.
The figures are transactions per CPU second of the broker, and the time of a commit after the flush of its records.

*Reading*: a consumer reads a topic of committed transactions of 1,000 records, by both isolation levels in turn. The
records were all committed, so both levels read the same records.

Estimate: a transaction on 6 partitions is about 12 requests (two to add partitions, six Produce requests, one EndTxn)
and 10 appends, at 60 µs each a little more than a millisecond of CPU.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from bench.librdkafka import consume, payloads
from bench.pair import Pair, Peer, Plan, create_topic, delete_topic, measured, pair
from bench.table import Goal, Row, at_least, at_most

PARTITIONS = 6
RECORDS = 20  # of each transaction
SECONDS = 20.0
RECORDS_READ = 2_000_000
RECORDS_READ_MIN = 1_000_000  # with FAST=1: fewer records would cost the broker too little CPU time
RECORDS_PER_TRANSACTION_READ = 1000
_PATIENCE_S = 60
SETTINGS = {"transaction_state_log_replication_factor": "1", "transaction_state_log_min_isr": "1"}


def run(plan: Plan) -> list[Row]:
    """Rows for each number of producers and interval, and for reading by each isolation level."""
    cases = [(1, 0.1), (50, 0.1)] if plan.fast else [(1, 0.1), (50, 0.1), (1, 1.0), (50, 1.0)]
    with pair(**SETTINGS) as brokers:
        rows = [row for producers, every_s in cases for row in _written(brokers, plan, producers, every_s)]
        return [*rows, *_read(brokers, plan)]


def _written(brokers: Pair, plan: Plan, producers: int, every_s: float) -> list[Row]:
    name = f"{producers} transactional producers, a commit each {every_s * 1000:.0f} ms"
    per_cpu = Row(name, "transactions/broker CPU s", at_least(2))
    median = Row(f"{name}: commit, p50", "ms", at_most(0.7))
    slow = Row(f"{name}: commit, p99", "ms", at_most(0.5))
    count = max(int(plan.scaled(int(SECONDS * 10)) / 10 / every_s), 20)  # transactions of each producer
    warm: set[str] = set()
    number = itertools.count()

    def work(which: str, broker: Peer) -> None:
        topic = f"written-{producers}-{every_s}-{next(number)}"
        create_topic(broker.bootstrap, topic, PARTITIONS)
        with ThreadPoolExecutor(producers) as threads:
            barrier = threading.Barrier(producers + 1)
            names = [f"{topic}-{index}" for index in range(producers)]
            running = [
                threads.submit(
                    _commits, broker.bootstrap, topic, each, count, every_s, every_s * index / producers, barrier
                )
                for index, each in enumerate(names)
            ]
            barrier.wait(_PATIENCE_S)  # all producers have their ids
            with measured(broker) as spent:
                taken = sorted(seconds for each in running for seconds in each.result())
        delete_topic(broker.bootstrap, topic)
        if which not in warm:
            warm.add(which)
            return
        per_cpu.add(which, len(taken) / spent.broker_cpu)
        median.add(which, taken[len(taken) // 2] * 1000)
        slow.add(which, taken[int(len(taken) * 0.99)] * 1000)

    brokers.alternate(plan, work, plan.rounds + 1)
    return [per_cpu, median, slow]


def _commits(
    bootstrap: str, topic: str, name: str, count: int, every_s: float, delay_s: float, barrier: threading.Barrier
) -> list[float]:
    """Commits `count` transactions, one each `every_s`, the first one `delay_s` after all producers have their ids:
    independent producers don't commit at the same moments. Returns the seconds of each commit."""
    producer = _producer(bootstrap, name)
    value = payloads(100)[0]
    barrier.wait(_PATIENCE_S)
    time.sleep(delay_s)
    due, taken = time.perf_counter(), []
    for _ in range(count):
        producer.begin_transaction()
        for index in range(RECORDS):
            producer.produce(topic, value, partition=index % PARTITIONS)
        producer.flush(_PATIENCE_S)
        began = time.perf_counter()
        producer.commit_transaction(_PATIENCE_S)
        taken.append(time.perf_counter() - began)
        due += every_s
        time.sleep(max(due - time.perf_counter(), 0))
    return taken


def _read(brokers: Pair, plan: Plan) -> list[Row]:
    count = max(plan.scaled(RECORDS_READ), RECORDS_READ_MIN)
    goals: dict[str, Goal | None] = {"read_uncommitted": None, "read_committed": at_least(1.5)}
    rows = {level: Row(f"consume 100 B, {level}", "records/broker CPU s", goal) for level, goal in goals.items()}
    warm: set[str] = set()

    def work(which: str, broker: Peer) -> None:
        if which not in warm:
            create_topic(broker.bootstrap, "read", PARTITIONS)
            _write(broker.bootstrap, "read", count)
        for level, row in rows.items():
            with measured(broker) as spent:
                consume(broker.bootstrap, "read", PARTITIONS, count, level)
            if which in warm:
                row.add(which, count / spent.broker_cpu)
        warm.add(which)

    brokers.alternate(plan, work, plan.rounds + 1)
    return list(rows.values())


def _write(bootstrap: str, topic: str, count: int) -> None:
    """Writes `count` records in committed transactions."""
    producer, values = _producer(bootstrap, topic), payloads(100)
    for _ in range(count // RECORDS_PER_TRANSACTION_READ):
        producer.begin_transaction()
        for index in range(RECORDS_PER_TRANSACTION_READ):
            producer.produce(topic, values[index % len(values)], partition=index % PARTITIONS)
        producer.commit_transaction(_PATIENCE_S)


def _producer(bootstrap: str, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 4,
            "transactional.id": name,
            "linger.ms": 5,
            "delivery.report.only.error": True,
        }
    )
    producer.init_transactions(_PATIENCE_S)
    return producer
