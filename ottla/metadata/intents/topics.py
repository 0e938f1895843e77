"""Administrators' requests to create and delete topics, and to add partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from ottla.metadata import keys
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import Image, Topic
from ottla.metadata.model.settings import Config
from ottla.metadata.model.topics import Tombstone, TopicIntent
from ottla.metadata.naming import METADATA_TOPIC, check_topic_name, metric_name
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import (
    Committed,
    Delete,
    Entry,
    Guard,
    Put,
    Rejected,
    Store,
    StoreUnavailable,
    UnknownOutcome,
    Write,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.uuids import uuid_text

from .replicas import assigned, placed

logger = logging.getLogger(__name__)

DEFAULT = -1  # stands for a partition count or replication factor that a request doesn't give
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create: either with a partition count and a replication factor, or with `assignments`, which pair a
    partition's index with its replicas."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic. If the request was only validated, no topic was created, and no topic has this `id`."""

    id: UUID
    partition_count: int
    replication_factor: int


class TopicIntents:
    """Administrators' requests about topics, and the brokers' confirmations of deletions."""

    def __init__(self, store: Store, settling: Settling, random: Random) -> None:
        """`random` draws topic ids and the positions where the placement of replicas starts."""
        self._store = store
        self._settling = settling
        self._random = random

    def check_new_topic_name(self, name: str) -> None:
        """Raises KafkaError if no topic of that name can be created.

        The errors are INVALID_REQUEST, INVALID_TOPIC_EXCEPTION and TOPIC_ALREADY_EXISTS.
        """
        if name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
        check_topic_name(name)
        if name in self._settling.image.intents:
            raise _exists(name)
        if (similar := metric_name(name)) and (colliding := self._settling.image.metric_names.get(similar)):
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {min(colliding)}"
            )

    async def create_topic(self, topic: NewTopic, timeout_s: float, *, validate_only: bool = False) -> CreatedTopic:
        """Creates a topic and waits until it is visible in this broker's image. Raises KafkaError."""
        _check_deadline(timeout_s)
        self.check_new_topic_name(topic.name)
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            intent = TopicIntent(topic.name, self._random_topic_id(), self._replicas(topic))
            created = CreatedTopic(intent.id, len(intent.assignments), len(intent.assignments[0]))
            if not validate_only:
                await self._create(intent, topic.configs)
            return created

    async def _create(self, intent: TopicIntent, configs: Mapping[str, str]) -> None:
        key, deleted = keys.topic(intent.name), keys.tombstone(intent.id)
        resource_key = keys.config(ConfigResource("topic", intent.name))
        config: Write = Put(resource_key, Config(configs).encode()) if configs else Delete(resource_key)
        # If the outcome is unknown, the topic may exist, and an administrator may delete it meanwhile. The guard on its
        # tombstone keeps the next attempt from creating it once more.
        guards = [Guard(key, 0), Guard(deleted, 0)]
        result = await self._settling.surely(guards, [Put(key, intent.encode()), config])
        if isinstance(result, Rejected) and deleted not in result.failed:
            raise _exists(intent.name)
        await self._settling.until(lambda image: _appeared(image, intent.id, len(intent.assignments)), intent.id)

    async def delete_topic(self, topic_id: UUID, timeout_s: float) -> None:
        """Deletes a topic and waits until this broker's image doesn't show it any more.

        Raises KafkaError, UNKNOWN_TOPIC_ID among others.
        """
        _check_deadline(timeout_s)
        intent = self._settling.image.intents_by_id.get(topic_id)
        async with within(timeout_s):
            while True:
                if intent is None or intent.id != topic_id:
                    raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
                key = keys.topic(intent.name)
                tombstone = Tombstone(topic_id, intent.name, self._holders(intent))
                writes: list[Write] = [
                    Delete(key),
                    Delete(keys.config(ConfigResource("topic", intent.name))),
                    Put(keys.tombstone(topic_id), tombstone.encode()),
                ]
                result = await self._settling.surely([Guard(key, intent.revision)], writes)
                if isinstance(result, Committed):
                    break
                intent = _decoded_topic(result.failed[key])
            await self._settling.until(lambda image: None if topic_id in image.intents_by_id else True, topic_id)

    async def create_partitions(
        self,
        name: str,
        partition_count: int,
        assignments: Sequence[Sequence[int]] | None,
        timeout_s: float,
        *,
        validate_only: bool = False,
    ) -> None:
        """Adds partitions up to `partition_count`, and waits until this broker's image has them. Raises KafkaError."""
        _check_deadline(timeout_s)
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            intent = self._settling.image.intents.get(name)
            while True:
                if intent is None:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition)
                grown = self._grown(intent, partition_count, assignments)
                if validate_only:
                    return
                key = keys.topic(name)
                result = await self._settling.surely([Guard(key, intent.revision)], [Put(key, grown.encode())])
                if isinstance(result, Committed):
                    break
                intent = _decoded_topic(result.failed[key])
            await self._settling.until(lambda image: _appeared(image, grown.id, partition_count), grown.id)

    async def confirm_deletion(self, broker_id: int, topic_id: UUID) -> None:
        """Confirms in a deleted topic's tombstone that this broker has no data of the topic left.

        Tries until it succeeds, however long the store can't be reached. If it gave up, the tombstone would stay until
        the broker confirms the deletion after its next start.
        """
        tombstone = self._settling.image.tombstones.get(topic_id)
        key = keys.tombstone(topic_id)
        while tombstone is not None and broker_id in tombstone.pending:
            rest = tuple(pending for pending in tombstone.pending if pending != broker_id)
            guard = Guard(key, tombstone.revision)
            try:
                result = await self._store.transact([guard], [Put(key, replace(tombstone, pending=rest).encode())])
            except UnknownOutcome:
                continue
            except StoreUnavailable as reason:
                logger.info("the deletion of %s can't be confirmed yet: %s", tombstone.name, reason)
                await asyncio.sleep(_RETRY_S)
                continue
            if isinstance(result, Committed):
                return
            entry = result.failed[key]
            tombstone = None if entry is None else Tombstone.decode(entry)

    def _replicas(self, topic: NewTopic) -> tuple[tuple[int, ...], ...]:
        count, factor = topic.partition_count, topic.replication_factor
        if topic.assignments:
            for number, label in ((factor, "replication factor"), (count, "numPartitions")):
                if number != DEFAULT:
                    raise KafkaError(
                        ErrorCode.invalid_request,
                        f"A manual partition assignment was specified, but {label} was not set to -1.",
                    )
            return assigned(self._settling.image, topic.assignments)
        if factor < 1:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if count < 1:
            raise KafkaError(
                ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
            )
        return placed(self._settling.image, count, factor, self._random_start())

    def _grown(
        self, intent: TopicIntent, partition_count: int, assignments: Sequence[Sequence[int]] | None
    ) -> TopicIntent:
        present = len(intent.assignments)
        if partition_count == present:
            raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
        if partition_count < present:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"The topic {intent.name} currently has {present} partition(s); {partition_count} would not be an"
                " increase.",
            )
        added = partition_count - present
        first = self._settling.image.partition(intent.id, 0)
        factor = len(intent.assignments[0]) if first is None else len(first.replicas)
        if assignments is None:
            new = placed(self._settling.image, added, factor, self._random_start(), present)
        else:
            if len(assignments) != added:
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were"
                    " specified.",
                )
            new = assigned(self._settling.image, list(enumerate(assignments)), factor, present)
        return replace(intent, assignments=(*intent.assignments, *new))

    def _holders(self, intent: TopicIntent) -> tuple[int, ...]:
        """The brokers that may have data of the topic."""
        holders = {replica for replicas in intent.assignments for replica in replicas}
        for state in self._settling.image.partitions.get(intent.id, {}).values():
            holders.update(state.replicas)
        return tuple(sorted(holders))

    def _random_topic_id(self) -> UUID:
        """A random id whose text doesn't start with a dash, because tools would take it for a flag."""
        while True:
            candidate = UUID(int=self._random.getrandbits(128), version=4)
            if not uuid_text(candidate).startswith("-"):
                return candidate

    def _random_start(self) -> int:
        return self._random.randrange(1 << 20)


def _appeared(image: Image, topic_id: UUID, partition_count: int) -> Topic | bool | None:
    """The topic, if it is visible with this number of partitions; True if it has been deleted since; else None."""
    topic: Topic | None = image.topics_by_id.get(topic_id)
    if topic is not None and len(topic.partitions) >= partition_count:
        return topic
    return True if topic_id in image.tombstones else None


def _check_deadline(timeout_s: float) -> None:
    """Raises KafkaError for a time-out of 0 or less: as in Kafka, a request that doesn't wait at all does nothing."""
    if timeout_s <= 0:
        raise KafkaError(ErrorCode.request_timed_out)


def _decoded_topic(entry: Entry | None) -> TopicIntent | None:
    return None if entry is None else TopicIntent.decode(entry)


def _exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
