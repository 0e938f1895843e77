"""A small blocking client: metadata, offsets, topics and producer ids, each with retries under one deadline.

The client owns the connections to a cluster's brokers, and the brokers and leaders of the last Metadata answer. It is
for Spark's executors and tools, where a thread may block. Raw record sets go through `ottla.net.fetching` and
`ottla.net.producing`, which use this client's connections. After retriable failures (lost connections, changes of
leaders) the client tries again until `api_timeout_ms` has passed, and then raises `Unreachable`, which names the
addresses. An error that isn't retriable is raised as KafkaError. `error_codes` says which error codes are retriable,
and `existence` how the client finds out that a topic doesn't exist.
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
from .error_codes import ABSENT, PASSING, Retry, check
from .existence import TopicGone, Wanted, doubt, look_up
from .names import READ_UNCOMMITTED, Address, OffsetAndTimestamp, TopicPartition, parse_bootstrap
from .secured import Secured

LIST_OFFSETS, METADATA, CREATE_TOPICS, INIT_PRODUCER_ID = 2, 3, 19, 22

PATIENCE_S = 3.0  # a live broker answers ApiVersions and Metadata within milliseconds, so this wait suffices
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and the leader of each of its partitions (broker ids; −1: no leader for now)."""

    name: str
    topic_id: UUID | None
    internal: bool
    leaders: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The content of one Metadata answer."""

    brokers: Mapping[int, Address]
    controller_id: int
    topics: Mapping[str, TopicMetadata]
    errors: Mapping[str, ErrorCode]  # for the topics of the request that the broker couldn't describe
    answered_by: Address


class Unreachable(ConnectionError):
    """No broker could answer within the allowed time."""


class Client:
    """A client of one cluster. Not safe to share between threads or across fork.

    `api_timeout_ms` bounds each call with all its retries, `request_timeout_ms` the wait for each answer of a broker.
    If the brokers don't know a topic, they are asked `unknown_retries` times more, with pauses of
    `unknown_interval_ms`. `security` encrypts the connections and logs in at brokers; LoginRefused is raised at once,
    without a retry.
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
        unknown_retries: int = 3,
        unknown_interval_ms: int = 1000,
        security: Secured | None = None,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.api_timeout_ms = api_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.unknown_retries = unknown_retries
        self.unknown_interval_ms = unknown_interval_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._security = security
        self._deadline = math.inf  # the deadline of the call that `retrying` is carrying out
        self._connections: dict[Address, Connection] = {}
        self._spares: dict[Address, Connection] = {}  # second connections to brokers whose first connection is busy
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._failures: dict[Address, int] = {}  # the number of failures since the address's last Metadata answer
        self._last_failure: ConnectionLost | None = None

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
        """The cluster and `topics` (None: all), as one broker knows them. The request never creates topics."""
        return self.retrying(lambda: self._metadata(_named(topics)), "Metadata")

    def metadata_at(self, address: Address, topics: Iterable[str]) -> ClusterMetadata:
        """The cluster and `topics`, as the broker at `address` knows them.

        The request is made only once. Raises ConnectionLost, Retry.
        """
        return self._ask_metadata(self._free(address), _named(topics))

    def look_up(self, topics: Mapping[str, Wanted]) -> ClusterMetadata:
        """The cluster and `topics`. A topic is reported as absent, among the errors, only if several brokers agree."""
        return self.retrying(lambda: look_up(self, topics), "Metadata")

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition, the offset and timestamp of the first record at or after a timestamp.

        Timestamps are in ms; LATEST and EARLIEST ask for the ends of the log. Raises TopicGone for a partition that
        doesn't exist.
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
        """Creates a topic. Returns True if it is new, False if a topic of that name exists already."""
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
        """A new (producer id, producer epoch) for idempotent producing."""

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
        """A connection to the partition's leader.

        Raises Retry while the partition has no leader, TopicGone if the partition doesn't exist.
        """
        node = self._leaders.get(partition, -1)
        if node < 0:
            self._refresh([partition.topic])
            if partition not in self._leaders:
                raise doubt(self, partition, None, "the Metadata answer doesn't have the partition")
            node = self._leaders[partition]
        if node < 0:
            raise Retry(f"{partition} has no leader")
        return self.broker(node)

    def forget_leader(self, partition: TopicPartition) -> None:
        """Makes the next call of `leader` ask for Metadata again."""
        self._leaders.pop(partition, None)

    def broker(self, node: int) -> Connection:
        """A connection to a broker by its id."""
        if node not in self._brokers:
            self._refresh([])
        if node not in self._brokers:
            raise Retry(f"broker {node} is not registered")
        return self._connect(self._brokers[node])

    def any_broker(self, *, besides: Address | None = None) -> Connection:
        """A connection to any known broker that can be reached, other than `besides`. It has no request under way.

        Brokers that failed are tried last. Raises ConnectionLost, which names the addresses that were tried. If no
        broker besides `besides` is known, it names `besides`.
        """
        candidates = dict.fromkeys([*self._connections, *self.bootstrap, *self._brokers.values()])
        failures = []
        address = besides or self.bootstrap[0]
        for address in sorted(candidates, key=lambda each: (self._failures.get(each, 0), self._is_busy(each))):
            if address == besides:
                continue
            try:
                return self._free(address)
            except ConnectionLost as error:
                failures.append(str(error))
        raise ConnectionLost("; ".join(failures) or f"there is no broker besides {besides}", address)

    def await_answer(self, connection: Connection, partitions: Iterable[TopicPartition], seconds: float) -> None:
        """Returns when an answer begins to arrive from the partitions' leader, at the latest after `seconds`.

        A dead machine can't be distinguished from a slow one, because it closes no connection. So while nothing
        arrives, another broker is asked for the partitions' leaders. Raises ConnectionLost if all of the partitions
        have other leaders by now.
        """
        deadline = time.monotonic() + seconds
        while not connection.answers_within(min(PATIENCE_S, max(deadline - time.monotonic(), 0))):
            if time.monotonic() >= deadline:
                return
            asked = list(partitions)
            try:
                beside = self.any_broker(besides=connection.address)
                self._ask_metadata(beside, _named({each.topic for each in asked}))
            except (ConnectionLost, Retry):
                continue
            leaders = {self._brokers.get(self._leaders.get(each, -1)) for each in asked}
            if not leaders & {connection.address, None}:
                self.drop(connection)
                raise ConnectionLost(
                    f"{connection.address} doesn't answer, and other brokers now lead the partitions of the request",
                    connection.address,
                )

    def drop(self, connection: Connection) -> None:
        """Closes a connection after a failure and forgets it."""
        connection.close()
        for connections in (self._connections, self._spares):
            if connections.get(connection.address) is connection:
                del connections[connection.address]

    def retrying(self, attempt: Callable[[], _Answer], what: str, timeout_ms: int | None = None) -> _Answer:
        """Calls `attempt` until it returns, with a pause after each ConnectionLost or Retry.

        Raises Unreachable after `timeout_ms` (None: `api_timeout_ms`).
        """
        allowed_ms = self.api_timeout_ms if timeout_ms is None else timeout_ms
        outer = self._deadline
        deadline = self._deadline = min(time.monotonic() + allowed_ms / 1000, outer)
        try:
            while True:
                try:
                    return attempt()
                except (ConnectionLost, Retry) as error:
                    if isinstance(error, ConnectionLost):
                        self._lost(error)
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

    def _free(self, address: Address) -> Connection:
        """A connection to `address` without a request under way; a second one if the first has a request under way."""
        connections = self._spares if self._is_busy(address) else self._connections
        try:
            if address not in connections:
                connections[address] = self._opened(address)
            return connections[address]
        except ConnectionLost as error:
            self._lost(error)
            raise

    def _is_busy(self, address: Address) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.unanswered > 0

    def _opened(self, address: Address) -> Connection:
        return Connection(
            address,
            self.client_id,
            timeout_s=min(self.request_timeout_ms, self.api_timeout_ms) / 1000,
            connect_timeout_s=min(self._connect_timeout_ms, self.api_timeout_ms) / 1000,
            open_by=min(time.monotonic() + self._patience_s(address), self._deadline),
            security=self._security,
        )

    def _lost(self, error: ConnectionLost) -> None:
        """Counts the failure `error`, unless it is counted already, and closes the idle connections to its address.

        A connection with a request under way stays open, for the caller that waits for the answer.
        """
        if error is self._last_failure:
            return
        self._last_failure = error
        self._failures[error.address] = self._failures.get(error.address, 0) + 1
        for connections in (self._connections, self._spares):
            if error.address in connections and not connections[error.address].unanswered:
                connections.pop(error.address).close()
        self._leaders.clear()

    def _patience_s(self, address: Address) -> float:
        """The seconds to wait for an answer that a live broker gives immediately. They double with each failure of
        `address`."""
        return min(PATIENCE_S * 2.0 ** min(self._failures.get(address, 0), 10), self.request_timeout_ms / 1000)

    def _refresh(self, topics: Iterable[str]) -> None:
        self._metadata(_named(topics))

    def _metadata(self, topics: list[dict[str, object]] | None) -> ClusterMetadata:
        return self._ask_metadata(self.any_broker(), topics)

    def _ask_metadata(self, connection: Connection, topics: list[dict[str, object]] | None) -> ClusterMetadata:
        version = connection.version(METADATA, 1, 12)
        try:
            message = {"topics": topics, "allow_auto_topic_creation": False}
            answer = connection.request(METADATA, version, message, within_s=self._patience_s(connection.address))
        except ConnectionLost as error:
            self._lost(error)  # counts the failure, so that the next request goes to another broker
            raise
        self._failures.pop(connection.address, None)
        self._brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        described: dict[str, TopicMetadata] = {}
        errors: dict[str, ErrorCode] = {}
        for topic in answer.topics:
            if topic.error_code in PASSING:
                raise Retry(f"{connection.address} answered {topic.error_code.name} for topic '{topic.name}'")
            if topic.error_code != ErrorCode.none:
                errors[topic.name] = topic.error_code
                continue
            leaders = {each.partition_index: each.leader_id for each in topic.partitions}
            described[topic.name] = TopicMetadata(
                topic.name, getattr(topic, "topic_id", None), topic.is_internal, leaders
            )
            self._leaders.update({TopicPartition(topic.name, index): leader for index, leader in leaders.items()})
        return ClusterMetadata(self._brokers, answer.controller_id, described, errors, connection.address)

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        unknown: dict[str, int] = {}
        for each in partitions:
            if self._leaders.get(each, -1) < 0:
                unknown[each.topic] = max(unknown.get(each.topic, 0), each.partition + 1)
        if unknown:
            cluster = look_up(self, {name: Wanted(partitions=count) for name, count in unknown.items()})
            for name, code in cluster.errors.items():
                kind = TopicGone if code in ABSENT else KafkaError
                raise kind(code, f"topic '{name}' at {self._bootstrap_text()}")
        grouped: dict[int, list[TopicPartition]] = {}
        for each in partitions:
            leader = self._leaders.get(each)
            if leader is None:
                raise doubt(self, each, None, "the Metadata answer doesn't have the partition")
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
        connection.send(LIST_OFFSETS, version, message)
        self.await_answer(connection, timestamps, self.request_timeout_ms / 1000)
        answer = connection.receive()
        found = {}
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                if result.error_code != ErrorCode.none:
                    self.forget_leader(partition)
                if result.error_code in ABSENT:
                    raise doubt(self, partition, None, f"{connection.address} answered {result.error_code.name}")
                check(result.error_code, str(partition), connection.address)
                found[partition] = OffsetAndTimestamp(result.offset, result.timestamp)
        return found


def _named(topics: Iterable[str] | None) -> list[dict[str, object]] | None:
    return None if topics is None else [{"name": name, "topic_id": None} for name in topics]
