"""What does a request with one record of 100 B cost, if each connection has one request in flight?

Estimate: receive, CRC, write and send take 1 to 3 µs each. To reach 25 µs in all, everything else, which is Python, has
to take at most 15 µs. Apache Kafka takes 87 µs with one connection and 30 µs with 50.
"""

from __future__ import annotations

from bench.librdkafka import end_offsets, payloads
from bench.pair import Pair, Peer, Plan, create_topic, measured, pair
from bench.raw import exchange, fetch_request, produce_request
from bench.table import Goal, Row, at_least, at_most

PER_CPU_SECOND = {1: at_least(2.5), 50: at_least(1.4)}
WALL = {1: at_least(2), 50: at_least(1)}
REQUESTS = 100_000


def run(plan: Plan) -> list[Row]:
    """Rows for Produce over 1 and over 50 connections, and for Fetch of a topic's only record over 1 connection."""
    with pair() as brokers:
        value = payloads(100)[0]
        for broker in brokers.brokers.values():
            create_topic(broker.bootstrap, "small")
            create_topic(broker.bootstrap, "one")
            exchange(broker.bootstrap, produce_request("one", value), 1, 1)
        rows = []
        for connections in (1, 50):
            request = produce_request("small", value)
            rows += _case(
                brokers, plan, "produce", request, connections, PER_CPU_SECOND[connections], WALL[connections]
            )
        for broker in brokers.brokers.values():
            if not end_offsets(broker.bootstrap, "small", 1):
                raise AssertionError("the topic `small` has no records, although Produce requests were answered")
        rows += _case(brokers, plan, "fetch", fetch_request("one", 0, 1_000_000), 1, None, None)
    return rows


def _case(
    brokers: Pair,
    plan: Plan,
    what: str,
    request: bytes,
    connections: int,
    cpu_goal: Goal | None,
    wall_goal: Goal | None,
) -> list[Row]:
    name = f"small {what}, {connections} connection{'s' if connections > 1 else ''}"
    per_cpu = Row(name, "requests/broker CPU s", cpu_goal)
    cost = Row(name, "µs broker CPU/request", None)
    wall = Row(name, "requests/s", wall_goal)
    median_latency = Row(f"{name}, p50", "ms", at_most(1) if wall_goal else None)
    warm: set[str] = set()

    def work(which: str, broker: Peer) -> None:
        with measured(broker) as spent:
            done = exchange(broker.bootstrap, request, connections, plan.scaled(REQUESTS))
        if which not in warm:
            # Java's virtual machine compiles hot code: a second series of requests gives it the time for that.
            exchange(broker.bootstrap, request, connections, plan.scaled(REQUESTS))
            warm.add(which)
            return
        per_cpu.add(which, done.count / spent.broker_cpu)
        cost.add(which, spent.broker_cpu / done.count * 1e6)
        wall.add(which, done.count / spent.wall, client_bound=spent.client_bound)
        median_latency.add(which, sorted(done.latencies)[done.count // 2] * 1000)

    brokers.alternate(plan, work, plan.rounds + 1)
    return [per_cpu, cost, wall, median_latency]
