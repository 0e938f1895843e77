"""How long does it take from the start of a broker's process to its first answer, and how much CPU does the start cost?

The answer is a Metadata response that names a broker. A fresh start has an empty folder. (Kafka's folder is formatted
before the clock starts.) The other start is after a SIGKILL, with 1,000 partitions that have a few records.
"""

from __future__ import annotations

from pathlib import Path

from bench.librdkafka import payloads, produce
from bench.pair import Peer, Plan, create_topic, folder
from bench.process import cpu_seconds
from bench.table import Row, at_most
from tests.peers.apache_kafka import AS_SHIPPED, ApacheKafka
from tests.peers.ottla_broker import OttlaBroker

PARTITIONS = 1000


def run(plan: Plan) -> list[Row]:
    """Rows for a fresh start and for a start after a kill."""
    rows = [Row(f"start {when}{what}", "s", goal) for when in ("fresh", "after kill -9") for what, goal in _FIGURES]
    with folder() as root:
        for number in range(plan.rounds):
            for which in ("ottla", "kafka"):
                _round(which, root / f"{which}-{number}", rows)
    return rows


_FIGURES = ((": wall", at_most(0.2)), (": CPU", at_most(0.15)))


def _round(which: str, path: Path, rows: list[Row]) -> None:
    fresh_wall, fresh_cpu, killed_wall, killed_cpu = rows
    broker: Peer = OttlaBroker(path) if which == "ottla" else ApacheKafka(path, options=AS_SHIPPED)
    try:
        fresh_wall.add(which, broker.start_seconds)
        fresh_cpu.add(which, cpu_seconds(broker.process.pid))
        create_topic(broker.bootstrap, "many", PARTITIONS)
        produce(broker.bootstrap, "many", 20_000, payloads(100), "1", "none")
        broker.kill()
        broker.start_again()
        killed_wall.add(which, broker.start_seconds)
        killed_cpu.add(which, cpu_seconds(broker.process.pid))
    finally:
        broker.stop()
