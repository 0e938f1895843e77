"""How long does it take from the death of a leader to the next acknowledged record?

Three brokers, one partition with a replica on each, acks=all with min.insync.replicas 2, and each system's defaults for
everything else: a session of 9 s; three combined nodes for Kafka; for Ottla an etcd with three members beside its
brokers, or the embedded store. An idempotent librdkafka producer with its defaults sends a record every 5 ms. The
measured time is from the signal to the first acknowledgement of a record that was sent after the signal. Each round has
a topic of its own, and the signal goes to the topic's leader. For SIGKILL the leader is, in one case, a broker that
isn't the controller, and in another the controller. For SIGSTOP it isn't the controller; the suspended broker's sockets
stay open, so the others notice nothing before its session ends. Before the next round the broker is back, and all
replicas are in sync.

librdkafka waits 30 s or longer for the answer of a suspended broker. With SIGSTOP the figure would be this time-out
instead of the failover. So in that case single requests ask the other brokers for the leader and send the leader a
record, until it acknowledges one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.pair import Peer, Plan, folder
from bench.raw import PRODUCE, PRODUCE_VERSION, produce_request
from bench.table import Goal, Row, at_most, within
from ottla.protocol.messages import read_response
from tests.peers.apache_kafka import AS_SHIPPED, apache_kafka_cluster
from tests.peers.ottla_cluster import ottla_cluster
from tests.peers.wire import Wire

REPLICATED = {
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_replication_factor": "3",
    "min_insync_replicas": "2",
}
SESSION_S = 9.0
METADATA, METADATA_VERSION = 3, 8
DESCRIBE_QUORUM = 55
_EACH_S = 0.005
_PATIENCE_S = 60.0


class _Case(NamedTuple):
    """A case of the benchmark. With `controls`, the leader is the controller, too. The leader gets SIGSTOP with
    `silent`, else SIGKILL."""

    name: str
    controls: bool
    silent: bool
    goal: Goal


CASES = (
    _Case("kill -9 of a leader", False, False, at_most(0.15)),
    _Case("kill -9 of a leader that is the controller", True, False, at_most(0.15)),
    _Case("SIGSTOP of a leader", False, True, at_most(1)),
)


@dataclass(slots=True)
class _Three:
    """A cluster: its brokers in the order of their ids, and a function that returns the active controller's id."""

    brokers: Sequence[Peer]
    controller: Callable[[], int]


def run(plan: Plan) -> list[Row]:
    """Rows for each case on each of Ottla's stores. Kafka is measured once, for both stores."""
    with folder() as root:
        with apache_kafka_cluster(root / "kafka", 3, options=AS_SHIPPED, **REPLICATED) as nodes:
            kafka = _measure(_Three(nodes, lambda: _quorum_leader(nodes)), plan.rounds)
        rows = []
        for store, members in (("etcd", 3), ("the embedded store", 0)):
            with ottla_cluster(root / f"ottla-{members}", 3, members, (), **REPLICATED) as cluster:
                ottla = _measure(_Three(cluster.brokers, cluster.controller), plan.rounds)
            for case in CASES:
                rows += _rows(case, store, ottla[case], kafka[case])
    return rows


def _rows(case: _Case, store: str, ottla: list[float], kafka: list[float]) -> list[Row]:
    note = f"{min(ottla):.2f} to {max(ottla):.2f}; Kafka {min(kafka):.1f} to {max(kafka):.1f}"
    row = Row(f"{case.name} to the next ack, metadata on {store}", "s", case.goal, ottla, list(kafka), note)
    if not case.silent:
        return [row]
    after = Row(
        f"{case.name}: beyond a session's {SESSION_S:g} s, {store}",
        "s",
        within(1),
        [each - SESSION_S for each in ottla],
    )
    return [row, after]


def _measure(three: _Three, rounds: int) -> dict[_Case, list[float]]:
    bootstrap = ",".join(broker.bootstrap for broker in three.brokers)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found: dict[_Case, list[float]] = {case: [] for case in CASES}
    number = count()
    for case in CASES:
        for _ in range(rounds + 1):  # the first round warms up
            controller = three.controller()
            victim = controller if case.controls else (controller + 1) % len(three.brokers)
            topic = f"failed-over-{next(number)}"
            _create(admin, topic, victim, len(three.brokers))
            found[case].append(_once(bootstrap, topic, three.brokers, victim, case))
            _await_in_sync(admin, topic)
    return {case: seconds[1:] for case, seconds in found.items()}


def _once(bootstrap: str, topic: str, brokers: Sequence[Peer], number: int, case: _Case) -> float:
    victim = brokers[number]
    others = [broker for broker in brokers if broker is not victim]
    if case.silent:
        began = time.monotonic()
        victim.pause()
        try:
            return _asked_until_acknowledged(topic, others) - began
        finally:
            victim.go_on()
    with _sending(bootstrap, topic) as acknowledged:
        acknowledged.wait_for(time.monotonic())
        began = time.monotonic()
        victim.kill()
        try:
            return acknowledged.wait_for(began) - began
        finally:
            victim.start_again()


def _asked_until_acknowledged(topic: str, brokers: Sequence[Peer]) -> float:
    """Sends records with acks=all to the leader that these brokers name, until a record is acknowledged. Returns the
    time of the acknowledgement."""
    request = produce_request(topic, b"x" * 100, acks=-1)
    leaders = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for broker in brokers:
            with Wire(broker.bootstrap, _PATIENCE_S) as wire:
                answer = wire.call(METADATA, METADATA_VERSION, leaders)
                address = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
                if address.get(answer.topics[0].partitions[0].leader_id) != broker.bootstrap:
                    continue
                wire.send(request)
                produced = read_response(PRODUCE, PRODUCE_VERSION, wire.receive(), 5)
                if not produced.responses[0].partition_responses[0].error_code:
                    return time.monotonic()
        time.sleep(_EACH_S)
    raise TimeoutError(f"nothing acknowledged for {_PATIENCE_S:g} s")


def _create(admin: AdminClient, topic: str, leader: int, brokers: int) -> None:
    replicas = [(leader + place) % brokers for place in range(brokers)]
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])])[topic].result(60)
    _await_in_sync(admin, topic)


def _await_in_sync(admin: AdminClient, topic: str) -> None:
    """Waits until the partition has a leader and all its replicas are in sync."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        state = admin.list_topics(topic, timeout=10).topics[topic].partitions.get(0)
        if state is not None and state.leader >= 0 and len(state.isrs) == 3:
            time.sleep(1)  # so that a broker that has just started completes its start
            return
        time.sleep(0.1)
    raise TimeoutError(f"{topic} hasn't three replicas in sync after {_PATIENCE_S:g} s")


def _quorum_leader(nodes: Sequence[Peer]) -> int:
    """The id of Kafka's active controller, by DescribeQuorum: Metadata names an arbitrary broker (KIP-590)."""
    asked = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    with Wire(nodes[0].bootstrap) as wire:
        return int(wire.call(DESCRIBE_QUORUM, 0, asked).topics[0].partitions[0].leader_id)


class _Acknowledged:
    """The times at which records were sent and acknowledged."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []

    def note(self, sent: float) -> None:
        """Notes the acknowledgement of a record that was sent at `sent`."""
        self._pairs.append((sent, time.monotonic()))

    def wait_for(self, sent_after: float) -> float:
        """The time of the first acknowledgement of a record that was sent after `sent_after`."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            times = [answered for sent, answered in self._pairs[-20_000:] if sent > sent_after]
            if times:
                return min(times)
            time.sleep(0.005)
        raise TimeoutError(f"nothing acknowledged for {_PATIENCE_S:g} s")


@contextmanager
def _sending(bootstrap: str, topic: str) -> Iterator[_Acknowledged]:
    """A context in which a producer sends records in a thread. Raises RuntimeError at its end if a record failed."""
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

            producer.produce(topic, b"x" * 100, partition=0, on_delivery=answered)
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
