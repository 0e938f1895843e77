"""A client of the brokers, by Kafka's admin protocol: one method reads a whole cluster, and others change the cluster,
in batches.

There is one connection for each cluster, to any broker, because every broker serves every admin request. It is made by
Ottla's own client, because the operator reads 5,000 topics every two minutes, and this must cost next to nothing:
kafka-python's admin client takes half a second to decode the answers, kio's readers 0.04 s.

A method that changes topics returns for each topic None if the change was made, else the broker's refusal. If a whole
request gets no answer, `Unreachable` is raised, and it isn't known which changes were made; the next `look` shows the
changes that were made.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ottla.net.admin import (
    ALTER_CONFIGS,
    BROKER,
    DESCRIBE_CONFIGS,
    TOPIC,
    ask,
    refusal,
    settings_altered,
    settings_wanted,
)
from ottla.net.names import Address, parse_bootstrap
from ottla.net.peer import Peer
from ottla.net.streams import Connect
from ottla.operator.kafka_loads import Loads, ask_loads
from ottla.operator.kafka_throttles import ask_throttled_by_hand
from ottla.operator.link import PLAIN, Link
from ottla.operator.objects import OPERATOR, Ref
from ottla.operator.plan.topic import Configure, Create, Delete, Grow, KafkaCluster, KafkaPartition, KafkaTopic, Move
from ottla.operator.plan.volumes import LogDirectory
from ottla.operator.queue import Retry, why
from ottla.placement import PartitionName
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.settings.alteration import Operation
from ottla.settings.own import OVERRIDES

METADATA, CREATE_TOPICS, DELETE_TOPICS = (3, 12), (19, 7), (20, 6)
CREATE_PARTITIONS, REASSIGN, LIST_MOVES = (37, 3), (45, 0), (46, 0)
DESCRIBE_LOG_DIRS, ALTER_REPLICA_LOG_DIRS = (35, 5), (34, 2)
_GONE = (ErrorCode.replica_not_available, ErrorCode.unknown_topic_or_partition)
REQUEST_MS = 30_000
DESCRIBED_AT_ONCE = 500
CHANGED_AT_ONCE = 100
PARTITIONS_AT_ONCE = 1_000

Refusals = dict[str, KafkaError | None]
"""A topic's name → the error that refused the topic's change; None if the change was made."""

_T = TypeVar("_T")


class Unreachable(Retry):
    """No broker answered. The request may have been carried out or not."""


class KafkaAdmin:
    """A client of one cluster's brokers. Several tasks may use it; the client sends one request after the other.

    Methods raise Unreachable if no broker answers.
    """

    def __init__(self, bootstrap: str, connect: Connect = PLAIN.connect) -> None:
        """`bootstrap`: host:port, several separated by commas."""
        self.bootstrap = bootstrap
        self._connect = connect
        self._peers = [Peer(connect, address.host, address.port, OPERATOR) for address in parse_bootstrap(bootstrap)]
        self._one_at_a_time = asyncio.Lock()

    def close(self) -> None:
        """Ends the connection; a later request opens a new one."""
        for peer in self._peers:
            peer.close()

    async def cluster_id(self) -> str:
        """The cluster's id, which brokers and their volumes have in common; empty if the broker doesn't know it yet."""
        return str((await self.send(METADATA, {"topics": [], "allow_auto_topic_creation": False})).cluster_id or "")

    async def look(self, *, internal: bool = False) -> KafkaCluster:
        """The brokers and all topics, with their moves and their own settings. `internal`: with internal topics."""
        metadata = await self.send(METADATA, {"topics": None, "allow_auto_topic_creation": False})
        moves = await self._moves()
        known = [
            topic
            for topic in metadata.topics
            if topic.error_code == ErrorCode.none and (internal or not topic.is_internal)
        ]
        overrides = await self._overrides([topic.name for topic in known])
        settings = await self.settings(BROKER, "")
        load: Counter[int] = Counter()
        topics = {}
        for topic in known:
            partitions = {
                partition.partition_index: _partition(partition, moves.get((topic.name, partition.partition_index)))
                for partition in topic.partitions
            }
            for partition in partitions.values():
                load.update(partition.target)
            if topic.name in overrides:  # else the topic was deleted between the two requests
                topics[topic.name] = KafkaTopic(topic.name, topic.topic_id, partitions, overrides[topic.name])
        return KafkaCluster(
            racks={broker.node_id: broker.rack for broker in metadata.brokers},
            topics=topics,
            load=load,
            settings=settings,
        )

    async def loads(self) -> Loads:
        """The load of each broker that answers."""
        return await ask_loads(await self._addresses(), self._connect)

    async def throttled_by_hand(self) -> bool:
        """Whether an administrator throttles replicas by hand, or may do so unseen, because a broker doesn't answer."""
        return await ask_throttled_by_hand(await self._addresses(), self._connect)

    async def _addresses(self) -> dict[int, tuple[str, int]]:
        metadata = await self.send(METADATA, {"topics": [], "allow_auto_topic_creation": False})
        return {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}

    async def create(self, steps: Sequence[Create]) -> Refusals:
        """Creates topics."""
        done: Refusals = {}
        for batch in _batches(steps):
            topics = [
                {
                    "name": step.topic,
                    "num_partitions": step.partitions,
                    "replication_factor": step.replication_factor,
                    "assignments": [],
                    "configs": [{"name": name, "value": value} for name, value in step.config.items()],
                }
                for step in batch
            ]
            answer = await self.send(CREATE_TOPICS, {"topics": topics, "timeout": REQUEST_MS, "validate_only": False})
            done.update((str(topic.name), refusal(topic)) for topic in answer.topics)
        return done

    async def configure(self, steps: Sequence[Configure]) -> Refusals:
        """Changes settings of topics; of each topic either all changes are made or none."""
        done: Refusals = {}
        for batch in slices(steps, CHANGED_AT_ONCE):
            done.update(await self._alter(TOPIC, {step.topic: (step.given, step.reset) for step in batch}))
        return done

    async def configure_brokers(self, given: Mapping[str, str], reset: Iterable[str] = (), *, broker: str = "") -> None:
        """Changes dynamic settings of all brokers, or of `broker`, which has to be the broker that answers. Raises
        KafkaError if the broker refuses."""
        refused = (await self._alter(BROKER, {broker: (given, reset)}))[broker]
        if refused is not None:
            raise refused

    async def settings(self, kind: int, name: str) -> dict[str, str]:
        """The dynamic settings of all brokers (BROKER and no name), or of another resource. Raises KafkaError."""
        (result,) = (await self.send(DESCRIBE_CONFIGS, settings_wanted(kind, [name]))).results
        if (refused := refusal(result)) is not None:
            raise refused
        return {str(entry.name): str(entry.value or "") for entry in result.configs}

    async def own_settings(self, brokers: Iterable[int]) -> dict[int, dict[str, str]] | None:
        """The dynamic settings of each of these brokers alone, which any broker knows; None if the broker that answers
        is of an older release. Raises KafkaError."""
        found: dict[int, dict[str, str]] = {}
        for some in slices(sorted(brokers), DESCRIBED_AT_ONCE):
            message = settings_wanted(BROKER, map(str, some), [OVERRIDES])
            for result in (await self.send(DESCRIBE_CONFIGS, message)).results:
                if result.error_code == ErrorCode.invalid_request or not (result.error_code or result.configs):
                    return None
                if (refused := refusal(result)) is not None:
                    raise refused
                given = json.loads(result.configs[0].value)
                found[int(result.resource_name)] = {name: value or "" for name, value in given.items()}
        return found

    async def grow(self, steps: Sequence[Grow]) -> Refusals:
        """Adds partitions to topics."""
        done: Refusals = {}
        for batch in slices(steps, CHANGED_AT_ONCE):
            topics = [{"name": step.topic, "count": step.partitions, "assignments": None} for step in batch]
            message = {"topics": topics, "timeout": REQUEST_MS, "validate_only": False}
            answer = await self.send(CREATE_PARTITIONS, message)
            done.update((str(result.name), refusal(result)) for result in answer.results)
        return done

    async def move(self, steps: Sequence[Move]) -> Refusals:
        """Begins or cancels moves of partitions. The result has for each topic the first refusal of a move of its
        partitions, or None."""
        done: Refusals = {}
        for batch in slices(steps, CHANGED_AT_ONCE):
            topics = [
                {
                    "name": step.topic,
                    "partitions": [
                        {"partition_index": index, "replicas": target} for index, target in step.targets.items()
                    ],
                }
                for step in batch
            ]
            answer = await self.send(REASSIGN, {"topics": topics, "timeout": REQUEST_MS})
            if answer.error_code != ErrorCode.none:
                raise Unreachable(f"the moves were refused: {answer.error_message or answer.error_code.name}")
            for topic in answer.responses:
                refusals = map(refusal, topic.partitions)
                done[str(topic.name)] = next((refused for refused in refusals if refused is not None), None)
        return done

    async def log_directories(self) -> list[LogDirectory]:
        """The log directories of the broker that answers."""
        answer = await self.send(DESCRIBE_LOG_DIRS, {"topics": None})
        return [_log_directory(result) for result in answer.results]

    async def move_to_directories(self, moves: Mapping[str, Sequence[PartitionName]]) -> None:
        """The broker that answers begins to move its own replicas to other log directories (target → partitions).
        Raises KafkaError with the first refusal, but not for replicas that don't exist any more."""
        dirs = []
        for path, partitions in moves.items():
            by_topic: dict[str, list[int]] = {}
            for topic, index in partitions:
                by_topic.setdefault(topic, []).append(index)
            topics = [{"name": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
            dirs.append({"path": path, "topics": topics})
        for result in (await self.send(ALTER_REPLICA_LOG_DIRS, {"dirs": dirs})).results:
            for partition in result.partitions:
                if partition.error_code not in (ErrorCode.none, *_GONE):
                    raise KafkaError(
                        ErrorCode(partition.error_code), f"{result.topic_name}-{partition.partition_index}"
                    )

    async def delete(self, steps: Sequence[Delete]) -> Refusals:
        """Deletes topics by their ids. A topic that doesn't exist any more counts as deleted."""
        done: Refusals = {}
        for batch in slices(steps, CHANGED_AT_ONCE):
            names = {step.id: step.topic for step in batch}
            topics = [{"name": None, "topic_id": topic_id} for topic_id in names]
            answer = await self.send(DELETE_TOPICS, {"topics": topics, "timeout": REQUEST_MS})
            for response in answer.responses:
                gone = response.error_code == ErrorCode.unknown_topic_id
                done[names[response.topic_id]] = None if gone else refusal(response)
        return done

    async def _moves(self) -> dict[tuple[str, int], Any]:
        answer = await self.send(LIST_MOVES, {"timeout": REQUEST_MS, "topics": None})
        if answer.error_code != ErrorCode.none:
            raise Unreachable(f"the moves can't be listed: {answer.error_message or answer.error_code.name}")
        return {
            (topic.name, partition.partition_index): partition
            for topic in answer.topics
            for partition in topic.partitions
        }

    async def _overrides(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for some in slices(names, DESCRIBED_AT_ONCE):
            for result in (await self.send(DESCRIBE_CONFIGS, settings_wanted(TOPIC, some, [OVERRIDES]))).results:
                if result.error_code == ErrorCode.none:
                    if not result.configs:
                        raise Unreachable("the brokers are older than the operator: they don't know ottla.overrides")
                    found[result.resource_name] = json.loads(result.configs[0].value)
        return found

    async def _alter(self, kind: int, changes: Mapping[str, tuple[Mapping[str, str], Iterable[str]]]) -> Refusals:
        edits = {
            name: [
                *((setting, Operation.SET.value, value) for setting, value in given.items()),
                *((setting, Operation.DELETE.value, None) for setting in reset),
            ]
            for name, (given, reset) in changes.items()
        }
        answer = await self.send(ALTER_CONFIGS, settings_altered(kind, edits))
        return {str(response.resource_name): refusal(response) for response in answer.responses}

    async def send(self, api: tuple[int, int], message: Mapping[str, Any]) -> Any:
        """Sends `message` as a request of `api` (key, version) to a broker, and returns the answer."""
        async with self._one_at_a_time:
            failures = []
            for peer in list(self._peers):
                try:
                    return await ask(peer, api, message, REQUEST_MS / 1000 + 10)
                except (OSError, ProtocolError) as error:
                    failures.append(f"{peer}: {why(error)}")
                    self._peers.append(self._peers.pop(0))
        raise Unreachable(f"no broker answers ({'; '.join(failures)})")


class KafkaAdmins:
    """One client for each of several clusters, made when it is first asked for."""

    def __init__(self) -> None:
        self._admins: dict[Ref, tuple[str, Link, KafkaAdmin]] = {}

    def get(self, cluster: Ref, bootstrap: str, link: Link) -> KafkaAdmin:
        """The cluster's client; a new one if its bootstrap address or the way to connect has changed."""
        known = self._admins.get(cluster)
        if known is not None and known[:2] == (bootstrap, link):
            return known[2]
        self.forget(cluster)
        admin = KafkaAdmin(bootstrap, link.connect)
        self._admins[cluster] = bootstrap, link, admin
        return admin

    def forget(self, cluster: Ref) -> None:
        """Ends the connection to a cluster."""
        known = self._admins.pop(cluster, None)
        if known is not None:
            known[2].close()

    def close(self) -> None:
        """Ends the connections to all clusters."""
        for cluster in list(self._admins):
            self.forget(cluster)


def admin_of(host: str, link: Link) -> KafkaAdmin:
    """A client of one broker, for requests that only this broker itself can serve. The caller has to close it."""
    return KafkaAdmin(str(Address(host, link.port)), link.connect)


def said(error: KafkaError) -> str:
    """The broker's own message, or the name of its error code if it sent no message."""
    return error.message or error.code.name


def slices(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """The items in parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _partition(partition: Any, move: Any) -> KafkaPartition:
    replicas = tuple(partition.replica_nodes)
    if move is None:
        return KafkaPartition(replicas, frozenset(partition.isr_nodes))
    return KafkaPartition(
        tuple(move.replicas),
        frozenset(partition.isr_nodes),
        frozenset(move.adding_replicas),
        frozenset(move.removing_replicas),
    )


def _log_directory(result: Any) -> LogDirectory:
    sizes: dict[PartitionName, int] = {}
    arriving: dict[PartitionName, int] = {}
    for topic in result.topics:
        for partition in topic.partitions:
            held = arriving if partition.is_future_key else sizes
            held[str(topic.name), int(partition.partition_index)] = int(partition.partition_size)
    failed = result.error_code != ErrorCode.none
    return LogDirectory(result.log_dir, int(result.usable_bytes), sizes, arriving, failed, result.is_cordoned)


def _batches(steps: Sequence[Create]) -> Iterator[list[Create]]:
    """Splits the topics to create into batches, so that no request is refused for its size or blocks a broker's event
    loop for long."""
    batch: list[Create] = []
    partitions = 0
    for step in steps:
        wanted = max(step.partitions, 1)
        if batch and (len(batch) == CHANGED_AT_ONCE or partitions + wanted > PARTITIONS_AT_ONCE):
            yield batch
            batch, partitions = [], 0
        batch.append(step)
        partitions += wanted
    if batch:
        yield batch
