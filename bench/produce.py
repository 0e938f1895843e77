"""How many records does a broker accept, per second and per CPU second?

librdkafka, one topic of 6 partitions. Estimate: with 16 KiB batches of 100 B records, a Produce request brings about
150 records. If it costs 25 µs, and its bytes cost 6 µs more, the broker accepts 5 million records per CPU second.
"""

from __future__ import annotations

import itertools

from bench.librdkafka import end_offsets, payloads, produce
from bench.pair import Pair, Peer, Plan, create_topic, delete_topic, measured, pair
from bench.table import Row, at_least

PARTITIONS = 6
PER_CPU_SECOND = {100: at_least(3), 1024: at_least(2), 10240: at_least(1.5)}
BYTES = 400_000_000


def run(plan: Plan) -> list[Row]:
    """Rows for each record size, codec and acks: records per CPU second of the broker, and records per second."""
    cases = list(itertools.product(PER_CPU_SECOND, ("none", "lz4"), ("1", "all")))
    if plan.fast:
        cases = [case for case in cases if case[2] == "all" and (case[1] == "none" or case[0] == 1024)]
    with pair() as brokers:
        return [row for size, codec, acks in cases for row in _case(brokers, plan, size, codec, acks)]


def _case(brokers: Pair, plan: Plan, size: int, codec: str, acks: str) -> list[Row]:
    name = f"produce {size} B, {codec}, acks={acks}"
    per_cpu = Row(name, "records/broker CPU s", PER_CPU_SECOND[size])
    wall = Row(name, "records/s", at_least(1.2), goal_client_bound=at_least(1))
    values = payloads(size)
    count = min(plan.scaled(BYTES) // size, 3_000_000)
    warm: set[str] = set()
    number = itertools.count()

    def work(which: str, broker: Peer) -> None:
        topic = f"produce-{size}-{codec}-{acks}-{next(number)}"
        create_topic(broker.bootstrap, topic, PARTITIONS)
        with measured(broker) as spent:
            produce(broker.bootstrap, topic, count, values, acks, codec)
        written = end_offsets(broker.bootstrap, topic, PARTITIONS)
        delete_topic(broker.bootstrap, topic)
        if written != count:
            raise AssertionError(f"{which}: the topic has {written} of {count} acknowledged records")
        if which not in warm:
            warm.add(which)
            return
        per_cpu.add(which, count / spent.broker_cpu)
        wall.add(which, count / spent.wall, client_bound=spent.client_bound)

    brokers.alternate(plan, work, plan.rounds + 1)
    return [per_cpu, wall]
