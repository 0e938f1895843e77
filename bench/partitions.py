"""What do 10,000 partitions on one broker cost?

Ten topics of 1,000 partitions, with a few records in them. Creation is measured from the first CreateTopics until every
partition answers ListOffsets. Restarts are measured from the start of the process until every partition answers again,
after a clean stop and after a SIGKILL.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub forgets OffsetSpec
from confluent_kafka.cimpl import NewTopic

from bench.librdkafka import payloads, produce
from bench.pair import Peer, Plan, folder
from bench.process import resident_bytes
from bench.table import Row, at_most
from tests.peers.apache_kafka import AS_SHIPPED, ApacheKafka
from tests.peers.ottla_broker import OttlaBroker

TOPICS = 10
PARTITIONS = 10_000
_PATIENCE_S = 300.0


def run(plan: Plan) -> list[Row]:
    """Rows for the creation, the memory, and the restarts after a clean stop and after a SIGKILL. A fast run has 2,000
    partitions."""
    partitions = PARTITIONS // 5 if plan.fast else PARTITIONS
    rows = [Row(f"{partitions:,} partitions: {what}", unit, at_most(goal)) for what, unit, goal in _FIGURES]
    with folder() as root:
        for number in range(plan.rounds):
            for which in ("ottla", "kafka"):
                for row, value in zip(rows, _round(which, root / f"{which}-{number}", partitions), strict=True):
                    row.add(which, value)
    return rows


_FIGURES = (
    ("created", "s", 0.5),
    ("memory", "MB RSS", 0.3),
    ("clean restart", "s", 0.3),
    ("restart after kill -9", "s", 0.2),
)


def _round(which: str, path: Path, partitions: int) -> tuple[float, float, float, float]:
    broker: Peer = OttlaBroker(path) if which == "ottla" else ApacheKafka(path, options=AS_SHIPPED)
    names = [f"many-{number}" for number in range(TOPICS)]
    every = [TopicPartition(name, index) for name in names for index in range(partitions // TOPICS)]
    try:
        began = time.monotonic()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for name in names:
            admin.create_topics([NewTopic(name, partitions // TOPICS, 1)], operation_timeout=120)[name].result(120)
        _wait_until_served(broker, every)
        created = time.monotonic() - began
        for name in names:
            produce(broker.bootstrap, name, 10_000, payloads(100), "1", "none")
        memory = resident_bytes(broker.process.pid) / 1e6
        broker.stop()
        clean = _start(broker, every)
        broker.kill()
        return created, memory, clean, _start(broker, every)
    finally:
        broker.kill()


def _start(broker: Peer, partitions: list[TopicPartition]) -> float:
    began = time.monotonic()
    broker.start_again()
    _wait_until_served(broker, partitions)
    return time.monotonic() - began


def _wait_until_served(broker: Peer, partitions: list[TopicPartition]) -> None:
    """Waits until each partition's leader answers with the end offset."""
    left = partitions
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        # A new client for each attempt: a client that got "unknown topic" keeps the topic as unknown.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's types are incomplete
        asked = admin.list_offsets(dict.fromkeys(left, end), request_timeout=60)
        refused = []
        for each, answer in asked.items():
            try:
                answer.result(60)
            except KafkaException:
                refused.append(each)
        left = refused
        if not left:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{len(left)} of {len(partitions)} partitions aren't served after {_PATIENCE_S:g} s")
