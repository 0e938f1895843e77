"""A small blocking client: metadata, offsets, topics and producer ids, each with retries under one deadline.

Owns the connections to a cluster's brokers and what Metadata last said. It serves Spark's executors and tools, where a
thread may block; raw record sets go through `ottla.net.fetching` and `ottla.net.producing`, which borrow connections
from here. Retriable trouble (lost connections, moving leaders) is handled here until `api_timeout_ms` has passed and
then raised as `Unreachable`, which names the addresses; what a broker refuses for good is raised as KafkaError.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from ottla.protocol.errors import ErrorCode, KafkaError

from .blocking import Connection, ConnectionLost
from .names import READ_UNCOMMITTED, Address, OffsetAndTimestamp, TopicPartition, parse_bootstrap

LIST_OFFSETS, METADATA, CREATE_TOPICS, INIT_PRODUCER_ID = 2, 3, 19, 22

RETRIABLE = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.broker_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_controller,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.listener_not_found,
        ErrorCode.preferred_leader_not_available,
    }
)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's partitions and who leads them (−1: nobody for now)."""

    name: str
    topic_id: UUID | None
    internal: bool
    leaders: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """What one Metadata answer said."""

    brokers: Mapping[int, Address]
    controller_id: int
    topics: Mapping[str, TopicMetadata]
    errors: Mapping[str, ErrorCode]  # topics asked for that can't be described


class Unreachable(ConnectionError):
    """No broker could answer within the time allowed."""


class Retry(Exception):
    """A retriable answer; `reason` tells a person what was answered, and by whom."""


class Client:
    """A client of one cluster. Not safe to share between threads or across fork.

    `api_timeout_ms` bounds each call with all its retries, `request_timeout_ms` each answer of a broker.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        *,
        client_id: str = "ottla",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        connect_timeout_ms: int = 10_000,
        retry_backoff_ms: int = 100,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.api_timeout_ms = api_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._deadline = math.inf  # of the call that `retrying` is in
        self._connections: dict[Address, Connection] = {}
        self._spares: dict[Address, Connection] = {}  # beside one that has answers under way
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        for connection in (*self._connections.values(), *self._spares.values()):
            connection.close()
        self._connections.clear()
        self._spares.clear()

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """The cluster and `topics` (None: every topic). Topics are never created by asking."""
        names: list[dict[str, object]] | None = (
            None if topics is None else [{"name": name, "topic_id": None} for name in topics]
        )
        return self.retrying(lambda: self._metadata(names), "Metadata")

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first offset whose record is at or after a timestamp in ms, or LATEST, or EARLIEST.

        Raises KafkaError(unknown_topic_or_partition) naming a partition that doesn't exist.
        """
        found: dict[TopicPartition, OffsetAndTimestamp] = {}

        def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
            missing = {partition: when for partition, when in timestamps.items() if partition not in found}
            for leader, partitions in self._by_leader(missing).items():
                found.update(self._list_offsets_at(leader, {each: timestamps[each] for each in partitions}, isolation))
            return found

        return self.retrying(attempt, "ListOffsets")

    def create_topic(
        self, name: str, partitions: int, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Creates a topic and returns whether it is new; False if one of that name exists."""
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }

        def attempt() -> bool:
            connection = self.broker(self.metadata([]).controller_id)
            version = connection.version(CREATE_TOPICS, 2, 7)
            message = {"topics": [wanted], "timeout": self.request_timeout_ms, "validate_only": False}
            result = connection.request(CREATE_TOPICS, version, message, extra_s=self.request_timeout_ms / 1000).topics[
                0
            ]
            if result.error_code == ErrorCode.topic_already_exists:
                return False
            check(result.error_code, f"topic '{name}'", connection.address, result.error_message)
            return True

        return self.retrying(attempt, "CreateTopics")

    def init_producer_id(self) -> tuple[int, int]:
        """A fresh (producer id, epoch) for idempotent producing."""

        def attempt() -> tuple[int, int]:
            connection = self.any_broker()
            version = connection.version(INIT_PRODUCER_ID, 0, 4)
            answer = connection.request(
                INIT_PRODUCER_ID, version, {"transactional_id": None, "transaction_timeout": 0x7FFFFFFF}
            )
            check(answer.error_code, "a producer id", connection.address)
            return answer.producer_id, answer.producer_epoch

        return self.retrying(attempt, "InitProducerId")

    def leader(self, partition: TopicPartition) -> Connection:
        """A connection to the partition's leader. Raises Retry while there is none."""
        node = self._leaders.get(partition, -1)
        if node < 0:
            self._refresh([partition.topic])
            node = self._leaders.get(partition, -1)
        if node < 0:
            raise Retry(f"{partition} has no leader")
        return self.broker(node)

    def forget_leader(self, partition: TopicPartition) -> None:
        """Makes the next `leader` ask for Metadata again."""
        self._leaders.pop(partition, None)

    def broker(self, node: int) -> Connection:
        """A connection to a broker by its id."""
        if node not in self._brokers:
            self._refresh([])
        if node not in self._brokers:
            raise Retry(f"broker {node} is not registered")
        return self._connect(self._brokers[node])

    def any_broker(self) -> Connection:
        """A connection to whichever known broker answers, on which no other answer is under way.

        Raises ConnectionLost naming the addresses tried.
        """
        candidates = dict.fromkeys([*self._connections, *self.bootstrap, *self._brokers.values()])
        failures = []
        for address in sorted(candidates, key=self._is_busy):
            try:
                return self._connect_beside(address) if self._is_busy(address) else self._connect(address)
            except ConnectionLost as error:
                failures.append(str(error))
        raise ConnectionLost("; ".join(failures))

    def drop(self, connection: Connection) -> None:
        """Closes a connection that failed and forgets it."""
        connection.close()
        for connections in (self._connections, self._spares):
            if connections.get(connection.address) is connection:
                del connections[connection.address]

    def retrying(self, attempt: Callable[[], _Answer], what: str, timeout_ms: int | None = None) -> _Answer:
        """Calls `attempt` until it returns, with a pause after each ConnectionLost or Retry, for `api_timeout_ms`."""
        allowed_ms = self.api_timeout_ms if timeout_ms is None else timeout_ms
        outer = self._deadline
        deadline = self._deadline = min(time.monotonic() + allowed_ms / 1000, outer)
        try:
            while True:
                try:
                    return attempt()
                except (ConnectionLost, Retry) as error:
                    if isinstance(error, ConnectionLost):
                        self._drop_dead()
                    if time.monotonic() + self.retry_backoff_ms / 1000 >= deadline:
                        known = ", ".join(map(str, self.bootstrap))
                        raise Unreachable(f"{what} failed for {allowed_ms} ms (bootstrap {known}): {error}") from error
                    time.sleep(self.retry_backoff_ms / 1000)
        finally:
            self._deadline = outer

    def _connect(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._opened(address)
        return connection

    def _connect_beside(self, address: Address) -> Connection:
        connection = self._spares.get(address)
        if connection is None:
            connection = self._spares[address] = self._opened(address)
        return connection

    def _is_busy(self, address: Address) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.unanswered > 0

    def _opened(self, address: Address) -> Connection:
        return Connection(
            address,
            self.client_id,
            timeout_s=min(self.request_timeout_ms, self.api_timeout_ms) / 1000,
            connect_timeout_s=min(self._connect_timeout_ms, self.api_timeout_ms) / 1000,
            open_by=self._deadline,
        )

    def _drop_dead(self) -> None:
        # Which of the connections failed is not known here, and opening one costs less than asking a dead one again.
        self.close()
        self._leaders.clear()

    def _refresh(self, topics: Iterable[str]) -> None:
        self._metadata([{"name": name, "topic_id": None} for name in topics])

    def _metadata(self, topics: list[dict[str, object]] | None) -> ClusterMetadata:
        connection = self.any_broker()
        version = connection.version(METADATA, 1, 12)
        try:
            answer = connection.request(METADATA, version, {"topics": topics, "allow_auto_topic_creation": False})
        except ConnectionLost:
            self.drop(connection)  # the next one to be asked is another broker
            raise
        self._brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        described: dict[str, TopicMetadata] = {}
        errors: dict[str, ErrorCode] = {}
        for topic in answer.topics:
            if topic.error_code in RETRIABLE:
                raise Retry(f"{connection.address} answered {topic.error_code.name} for topic '{topic.name}'")
            if topic.error_code != ErrorCode.none:
                errors[topic.name] = topic.error_code
                continue
            leaders = {each.partition_index: each.leader_id for each in topic.partitions}
            described[topic.name] = TopicMetadata(topic.name, topic.topic_id, topic.is_internal, leaders)
            self._leaders.update({TopicPartition(topic.name, index): leader for index, leader in leaders.items()})
        return ClusterMetadata(self._brokers, answer.controller_id, described, errors)

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        unknown = [each for each in partitions if self._leaders.get(each, -1) < 0]
        if unknown:
            cluster = self._metadata(
                [{"name": name, "topic_id": None} for name in dict.fromkeys(each.topic for each in unknown)]
            )
            for each in unknown:
                if each.topic in cluster.errors:
                    raise KafkaError(cluster.errors[each.topic], f"topic '{each.topic}' at {self._bootstrap_text()}")
                count = len(cluster.topics[each.topic].leaders)
                if each.partition not in cluster.topics[each.topic].leaders:
                    raise KafkaError(
                        ErrorCode.unknown_topic_or_partition,
                        f"topic '{each.topic}' has {count} partitions, no partition {each.partition}",
                    )
        grouped: dict[int, list[TopicPartition]] = {}
        for each in partitions:
            leader = self._leaders[each]
            if leader < 0:
                raise Retry(f"{each} has no leader")
            grouped.setdefault(leader, []).append(each)
        return grouped

    def _bootstrap_text(self) -> str:
        return ", ".join(map(str, self.bootstrap))

    def _list_offsets_at(
        self, leader: int, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        topics: dict[str, list[dict[str, int]]] = {}
        for each, timestamp in timestamps.items():
            topics.setdefault(each.topic, []).append({"partition_index": each.partition, "timestamp": timestamp})
        connection = self.broker(leader)
        version = connection.version(LIST_OFFSETS, 1, 7)
        message = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        answer = connection.request(LIST_OFFSETS, version, message)
        found = {}
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                if result.error_code != ErrorCode.none:
                    self.forget_leader(partition)
                check(result.error_code, str(partition), connection.address)
                found[partition] = OffsetAndTimestamp(result.offset, result.timestamp)
        return found


def check(code: ErrorCode, what: str, address: Address, message: str | None = None) -> None:
    """Raises Retry or KafkaError for an error answered about `what`."""
    if code == ErrorCode.none:
        return
    text = f"{what}: {message}" if message else what
    if code in RETRIABLE:
        raise Retry(f"{address} answered {code.name} for {text}")
    raise KafkaError(code, f"{text} (answered by {address})")
