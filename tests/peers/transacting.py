"""A transactional producer that speaks either protocol of transactions, and changes from one to the other as told.

Client libraries choose the protocol themselves, by the level of `transaction.version`: librdkafka always V1, Java's
clients V2 where the level is 2. This producer sends Kafka's requests over `Wire`, and repeats them as a client does:
at errors that pass, and when a broker goes away. Beside it: what readers of committed records see afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import TopicPartition

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode
from tests.peers.wire import Closed, Wire

PRODUCE, METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, OFFSET_COMMIT = (
    0, 3, 10, 22, 24, 25, 26, 28,
)  # fmt: skip
GROUP, TRANSACTION = 0, 1  # FindCoordinator's types of keys
V1, V2 = 1, 2
PASSING = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.concurrent_transactions,
    }
)


class Refused(Exception):
    """A request was answered with an error that doesn't pass."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class _Again(Exception):
    """The request is to be sent again."""


class TransactingProducer:
    """A producer with a transactional id, which knows the brokers at `addresses`. Its methods raise Refused, and
    TimeoutError if an error doesn't pass within `patience_s`."""

    def __init__(
        self, addresses: Sequence[str], transactional_id: str, protocol: int = V2, patience_s: float = 60.0
    ) -> None:
        self.protocol = protocol
        self.producer_id = self.epoch = -1
        self._addresses = addresses
        self.transactional_id = transactional_id
        self._patience_s = patience_s
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self) -> None:
        """Begins anew: the last transaction of the id is aborted if it is open."""
        asked = {"transactional_id": self.transactional_id, "transaction_timeout": 60_000}
        answer = self._ask_coordinator(INIT_PRODUCER_ID, 5, asked | {"producer_id": -1, "producer_epoch": -1})
        self._is(answer.producer_id, answer.producer_epoch)

    def write(self, topic: str, value: str, *indexes: int) -> None:
        """Writes a record with this value to each of these partitions, which have one leader. The transaction begins
        with the first record."""
        if self.protocol == V1:
            named = [{"name": topic, "partitions": list(indexes)}]
            asked = {
                "v3_and_below_transactional_id": self.transactional_id,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.epoch,
                "v3_and_below_topics": named,
            }
            self._ask_coordinator(ADD_PARTITIONS, 3, asked)
        written = [{"index": index, "records": self.batch(topic, index, value)} for index in indexes]
        self._repeat(lambda: _checked(self.produce(topic, written)))
        for index in indexes:
            self._sequences[topic, index] = self._sequences.get((topic, index), 0) + 1

    def batch(self, topic: str, index: int, value: str) -> bytes:
        """The batch that this producer would write to the partition next."""
        return build_batch(
            [Record(0, time.time_ns() // 1_000_000, None, value.encode())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get((topic, index), 0),
            transactional=True,
        )

    def produce(self, topic: str, written: Sequence[Mapping[str, Any]]) -> Any:
        """Sends a Produce request to the leader of the first of these partitions, and returns the answer."""
        topics = [{"name": topic, "partition_data": written}]
        message = {"transactional_id": self.transactional_id, "acks": -1, "timeout": 10_000, "topic_data": topics}
        return self._at_leader(topic, written[0]["index"], PRODUCE, 12 if self.protocol == V2 else 11, message)

    def commit_offset(self, group: str, topic: str, index: int, offset: int) -> None:
        """Commits an offset of a group in the transaction."""
        named = {"transactional_id": self.transactional_id, "group_id": group}
        producer = {"producer_id": self.producer_id, "producer_epoch": self.epoch}
        if self.protocol == V1:
            self._ask_coordinator(ADD_OFFSETS, 3, named | producer)
        partition = {"partition_index": index, "committed_offset": offset}
        message = named | producer | {"topics": [{"name": topic, "partitions": [partition]}]}
        version = 5 if self.protocol == V2 else 4
        self._repeat(lambda: _checked(self._at_coordinator(GROUP, group, OFFSET_COMMIT, version, message)))

    def end(self, commit: bool) -> None:
        """Commits or aborts the transaction."""
        asked = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }
        answer = self._ask_coordinator(END_TXN, 5 if self.protocol == V2 else 4, asked | {"committed": commit})
        if self.protocol == V2:
            self._is(answer.producer_id, answer.producer_epoch)

    def _is(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def _ask_coordinator(self, api_key: int, version: int, message: dict[str, Any]) -> Any:
        return self._repeat(
            lambda: _checked(self._at_coordinator(TRANSACTION, self.transactional_id, api_key, version, message))
        )

    def _at_coordinator(self, kind: int, key: str, api_key: int, version: int, message: dict[str, Any]) -> Any:
        with self._any_broker() as wire:
            found = wire.call(FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]}).coordinators[0]
        if found.error_code:
            raise _Again
        with Wire(f"{found.host}:{found.port}", 10.0) as wire:
            return wire.call(api_key, version, message)

    def _at_leader(self, topic: str, index: int, api_key: int, version: int, message: dict[str, Any]) -> Any:
        with self._any_broker() as wire:
            answer = wire.call(METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
        leaders = {each.partition_index: each.leader_id for each in answer.topics[0].partitions}
        leader = next((each for each in answer.brokers if each.node_id == leaders.get(index)), None)
        if leader is None:
            raise _Again
        with Wire(f"{leader.host}:{leader.port}", 20.0) as wire:
            return wire.call(api_key, version, message)

    def _any_broker(self) -> Wire:
        for address in self._addresses:
            try:
                return Wire(address, 5.0)
            except OSError:
                continue
        raise _Again

    def _repeat(self, work: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except (_Again, Closed, OSError):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"no answer to {self.transactional_id} within {self._patience_s:.0f} s"
                    ) from None
            time.sleep(0.05)


def _checked(answer: Any) -> Any:
    """The answer. Raises _Again or Refused if it has an error, of its own or of a partition."""
    for code in _codes(answer):
        if code in PASSING:
            raise _Again
        if code:
            raise Refused(code)
    return answer


def _codes(answer: Any) -> list[int]:
    """The error codes of an answer and of its partitions. kio's answers have the fields of all versions."""
    found = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic_v3_and_below", ()):
        found += [each.partition_error_code for each in topic.results_by_partition]
    for topic in getattr(answer, "responses", ()):
        found += [each.error_code for each in topic.partition_responses]
    for topic in getattr(answer, "topics", ()):
        found += [each.error_code for each in topic.partitions]
    return found


def committed_values(bootstrap: str, topic: str, partitions: int) -> list[str]:
    """All committed values of a topic, sorted. Raises AssertionError if a log can't be read up to its end, because a
    transaction is open."""
    properties = {"bootstrap.servers": bootstrap, "group.id": "any", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(
        properties | {"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[str] = []
    ends: dict[int | None, int | None] = {}
    while len(ends) < partitions:
        message = consumer.poll(60)
        assert message is not None, f"the end doesn't come after {len(values)} records"
        if message.error():
            ends[message.partition()] = message.offset()
        else:
            values.append((message.value() or b"").decode())
    consumer.close()
    uncommitted = confluent_kafka.Consumer(properties | {"isolation.level": "read_uncommitted"})
    for index in range(partitions):
        assert uncommitted.get_watermark_offsets(TopicPartition(topic, index), 30)[1] == ends[index]
    uncommitted.close()
    return sorted(values)


def committed_offset(bootstrap: str, group: str, topic: str, index: int) -> int:
    """The offset that a group has committed, for readers that ask for stable offsets."""
    properties = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer(properties)
    (found,) = consumer.committed([TopicPartition(topic, index)], 30)
    consumer.close()
    return int(found.offset)
