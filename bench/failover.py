"""How long from kill -9 of a leader to the next acknowledged record?

Three brokers, one partition on all of them, acks=all with min.insync.replicas 2, everything else as both ship it (a
session of 9 s, three combined nodes for Kafka; for Ottla an etcd with three members beside its brokers, or the embedded
store). An idempotent librdkafka producer with its defaults sends a record each 5 ms; measured is the time from the
signal to the first acknowledgement of a record that was sent after it. The killed broker is started again before the
next one is killed; some of them are the controller, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.pair import Peer, Plan, folder
from bench.table import Row, at_most
from tests.peers.apache_kafka import AS_SHIPPED, apache_kafka_cluster
from tests.peers.ottla_cluster import ottla_cluster

TOPIC = "failed-over"
REPLICATED = {"offsets_topic_replication_factor": "3", "min_insync_replicas": "2"}
_EACH_S = 0.005
_PATIENCE_S = 60.0


def run(plan: Plan) -> list[Row]:
    """One row for each of Ottla's stores; Kafka is the same in both."""
    on_etcd = Row("kill -9 of a leader to the next ack, metadata on etcd", "s", at_most(0.25))
    embedded = Row("kill -9 of a leader to the next ack, embedded store", "s", at_most(0.25))
    with folder() as root:
        with apache_kafka_cluster(root / "kafka", 3, options=AS_SHIPPED, **REPLICATED) as nodes:
            seconds = _measure(nodes, plan.rounds)
        on_etcd.kafka, embedded.kafka = seconds, list(seconds)
        for row, members in ((on_etcd, 3), (embedded, 0)):
            with ottla_cluster(root / f"ottla-{members}", 3, members, **REPLICATED) as cluster:
                row.ottla = _measure(cluster.brokers, plan.rounds)
            row.note = (
                f"{min(row.ottla):.2f} to {max(row.ottla):.2f}; Kafka {min(row.kafka):.1f} to {max(row.kafka):.1f}"
            )
    return [on_etcd, embedded]


def _measure(brokers: Sequence[Peer], rounds: int) -> list[float]:
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(60)
    found: list[float] = []
    with _sending(bootstrap) as acknowledged:
        for _ in range(rounds + 1):  # the first one warms up
            victim = brokers[_leader_with_all_in_sync(admin)]
            acknowledged.wait_for(time.monotonic())
            killed = time.monotonic()
            victim.kill()
            found.append(acknowledged.wait_for(killed) - killed)
            victim.start_again()
    return found[1:]


def _leader_with_all_in_sync(admin: AdminClient) -> int:
    """The number of the broker that leads, once the others have everything."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        state = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.get(0)
        if state is not None and state.leader >= 0 and len(state.isrs) == 3:
            time.sleep(1)  # whoever has just started is through with it
            return int(state.leader)
        time.sleep(0.1)
    raise TimeoutError(f"{TOPIC} hasn't three replicas in sync after {_PATIENCE_S:g} s")


class _Acknowledged:
    """When records were sent and acknowledged."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []

    def note(self, sent: float) -> None:
        """An acknowledgement of a record that was sent then."""
        self._pairs.append((sent, time.monotonic()))

    def wait_for(self, sent_after: float) -> float:
        """When the first record that was sent after that was acknowledged."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            times = [answered for sent, answered in self._pairs[-20_000:] if sent > sent_after]
            if times:
                return min(times)
            time.sleep(0.005)
        raise TimeoutError(f"nothing acknowledged for {_PATIENCE_S:g} s")


@contextmanager
def _sending(bootstrap: str) -> Iterator[_Acknowledged]:
    """A producer at work in a thread. Raises RuntimeError at the end where a record failed."""
    acknowledged = _Acknowledged()
    failed: list[str] = []
    stopping = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})

    def send() -> None:
        while not stopping.wait(_EACH_S):
            sent = time.monotonic()

            def answered(error: KafkaError | None, _: Message, sent: float = sent) -> None:
                if error is None:
                    acknowledged.note(sent)
                else:
                    failed.append(str(error))

            producer.produce(TOPIC, b"x" * 100, partition=0, on_delivery=answered)
            producer.poll(0)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield acknowledged
    finally:
        stopping.set()
        thread.join()
        producer.flush(30)
    if failed:
        raise RuntimeError(f"{len(failed)} records failed: {failed[0]}")
