"""How much memory does a broker occupy while it is idle, and after a load?

Measured are the RSS and its anonymous part (without mapped files) of the broker's process and its children. For the
load, clients produce and consume records of 1 KiB, and send many small requests.
"""

from __future__ import annotations

import time

from bench.librdkafka import consume, payloads, produce
from bench.pair import Peer, Plan, create_topic, pair
from bench.process import anonymous_bytes, cpu_seconds, resident_bytes
from bench.raw import exchange, produce_request
from bench.table import Row, at_most

BYTES = 2_000_000_000
SETTLE_SECONDS = 10.0


def run(plan: Plan) -> list[Row]:
    """Rows for the memory while idle and after the load, and for the CPU while idle."""
    idle = Row("memory idle", "MB RSS", at_most(0.15))
    idle_own = Row("memory idle, anonymous part", "MB", None)
    idle_cpu = Row("CPU idle", "% of a core", at_most(1))
    loaded = Row("memory after load", "MB RSS", at_most(0.12))
    loaded_own = Row("memory after load, anonymous part", "MB", None)
    with pair() as brokers:
        for broker in brokers.brokers.values():
            create_topic(broker.bootstrap, "load", 6)
            create_topic(broker.bootstrap, "small")
        time.sleep(SETTLE_SECONDS)
        for which, broker in brokers.brokers.items():
            before = cpu_seconds(broker.process.pid)
            time.sleep(SETTLE_SECONDS)
            idle_cpu.add(which, (cpu_seconds(broker.process.pid) - before) / SETTLE_SECONDS * 100)
            idle.add(which, resident_bytes(broker.process.pid) / 1e6)
            idle_own.add(which, anonymous_bytes(broker.process.pid) / 1e6)
        for which, broker in brokers.brokers.items():
            _load(broker, plan)
            time.sleep(SETTLE_SECONDS)
            loaded.add(which, resident_bytes(broker.process.pid) / 1e6)
            loaded_own.add(which, anonymous_bytes(broker.process.pid) / 1e6)
    return [idle, idle_own, idle_cpu, loaded, loaded_own]


def _load(broker: Peer, plan: Plan) -> None:
    count = plan.scaled(BYTES) // 1024
    produce(broker.bootstrap, "load", count, payloads(1024), "all", "none")
    consume(broker.bootstrap, "load", 6, count)
    exchange(broker.bootstrap, produce_request("small", payloads(100)[0]), 50, plan.scaled(200_000))
