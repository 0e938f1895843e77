"""How many records does a broker deliver, per second and per CPU second?

librdkafka reads a topic of 6 partitions from its beginning, out of the page cache. Estimate: `sendfile` costs about
0.25 CPU seconds a GB, and each Fetch of 1 MiB costs about 30 µs more. So the broker can deliver at most 30 million
records of 100 B per CPU second.
"""

from __future__ import annotations

from itertools import product

from bench.librdkafka import consume, payloads, produce
from bench.pair import Pair, Peer, Plan, create_topic, delete_topic, measured, pair
from bench.table import Row, at_least

PARTITIONS = 6
PER_CPU_SECOND = {100: at_least(1.5), 1024: at_least(1.2), 10240: at_least(1.2)}
BYTES = 400_000_000
BYTES_MIN = 200_000_000  # with FAST=1: fewer bytes would cost the broker too little CPU time to be measured well


def run(plan: Plan) -> list[Row]:
    """Rows for each record size and codec: records per CPU second of the broker, and records per second."""
    cases = list(product(PER_CPU_SECOND, ("none", "lz4")))
    if plan.fast:
        cases = [case for case in cases if case[1] == "none"]
    with pair() as brokers:
        return [row for size, codec in cases for row in _case(brokers, plan, size, codec)]


def _case(brokers: Pair, plan: Plan, size: int, codec: str) -> list[Row]:
    name = f"consume {size} B, {codec}"
    per_cpu = Row(name, "records/broker CPU s", PER_CPU_SECOND[size])
    wall = Row(name, "records/s", at_least(1.2), goal_client_bound=at_least(1))
    values = payloads(size)
    count = min(max(plan.scaled(BYTES), BYTES_MIN) // size, 3_000_000)
    topic = f"consume-{size}-{codec}"
    warm: set[str] = set()

    def work(which: str, broker: Peer) -> None:
        if which not in warm:
            create_topic(broker.bootstrap, topic, PARTITIONS)
            produce(broker.bootstrap, topic, count, values, "1", codec)
        with measured(broker) as spent:
            consume(broker.bootstrap, topic, PARTITIONS, count)
        if which not in warm:
            warm.add(which)
            return
        per_cpu.add(which, count / spent.broker_cpu)
        wall.add(which, count / spent.wall, client_bound=spent.client_bound)

    brokers.alternate(plan, work, plan.rounds + 1)
    for broker in brokers.brokers.values():
        delete_topic(broker.bootstrap, topic)
    return [per_cpu, wall]
