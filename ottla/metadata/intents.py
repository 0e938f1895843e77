"""Intents: the changes that administrators ask for, written to the store by the broker that got the request.

The controller then carries the intents out. Each intent is one guarded transaction. The controller answers by partition
states and, last, by a ready mark. The broker goes on once its *own* image shows the result, and answers its client when
the other brokers know the result, too (`broker/applied_revisions.py`). So the client finds the change at every broker
that it asks next. If the broker's image doesn't show the result within the request's time-out, the answer is
REQUEST_TIMED_OUT, and the intent stays in the store.

If a guard fails, another process was faster. The present value of the guarded key decides between another attempt and
an error. A request that would change nothing is a transaction too, with guards alone: another broker may have changed
the key since the revision of this broker's image, and then the request isn't fulfilled yet.

A decision that depends on the registered brokers is made only when the image has every broker that was registered at
the time of the request. So a broker counts for all requests, at all brokers, as soon as its registration says that it
is running. Kafka's controller decides so too, by the same log that made the broker ready.

A write of unknown outcome is settled (`settling.py`), so that no request waits for a write that never happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from uuid import UUID

from ottla.placement import Candidate, place
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.uuids import uuid_text

from . import keys
from .follower import Follower
from .identities import ConfigResource, QuotaEntity
from .image import Image, Topic
from .model import NO_LEADER, Broker, Config, Election, Partition, Quota, Reassignment, Tombstone, TopicIntent
from .naming import METADATA_TOPIC, check_any_runs, check_assignments, check_topic_name, metric_name
from .reassignment import check_cancellable, check_target
from .settling import Settling, within
from .store import Committed, Delete, Entry, Guard, Put, Rejected, Store, StoreUnavailable, UnknownOutcome, Write

logger = logging.getLogger(__name__)

DEFAULT = -1  # a partition count or replication factor that the request doesn't give
PARTITIONS_PER_REQUEST_MAX = 10_000  # as Kafka's ReplicationControlManager
_RETRY_S = 0.5
_NO_ENTRIES: Mapping[str, str] = {}
_NO_LIMITS: Mapping[str, float] = {}

ConfigEdit = Callable[[Mapping[str, str]], Mapping[str, str]]
QuotaEdit = Callable[[Mapping[str, float]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, with either both numbers or `assignments`, which pair a partition index with its replicas."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic. If the request was only validated, there is no such topic, and no topic has its `id`."""

    id: UUID
    partition_count: int
    replication_factor: int


class Intents:
    """Writes the intents of one broker's administrators to the metadata store."""

    def __init__(
        self,
        store: Store,
        follower: Follower,
        random: Random | None = None,
    ) -> None:
        """`random` makes topic ids and the positions where placement starts; by default it is the system's."""
        self._store = store
        self._follower = follower
        self._settling = Settling(store, follower)
        self._random = SystemRandom() if random is None else random

    @property
    def _image(self) -> Image:
        return self._follower.image

    def check_new_topic_name(self, name: str) -> None:
        """Raises KafkaError if no topic of that name can be created.

        The errors are INVALID_REQUEST, INVALID_TOPIC_EXCEPTION and TOPIC_ALREADY_EXISTS.
        """
        if name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
        check_topic_name(name)
        if name in self._image.intents:
            raise _exists(name)
        if (similar := metric_name(name)) and (colliding := self._image.metric_names.get(similar)):
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {min(colliding)}"
            )

    async def create_topic(self, topic: NewTopic, timeout_s: float, *, validate_only: bool = False) -> CreatedTopic:
        """Creates a topic and waits until it is visible here. Raises KafkaError."""
        _check_deadline(timeout_s)
        self.check_new_topic_name(topic.name)
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            intent = TopicIntent(topic.name, self._random_topic_id(), self._assignments(topic))
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
        """Deletes a topic and waits until it is invisible here. Raises KafkaError, UNKNOWN_TOPIC_ID among others."""
        _check_deadline(timeout_s)
        intent = self._image.intents_by_id.get(topic_id)
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
        """Adds partitions up to `partition_count` and waits until they are visible here. Raises KafkaError."""
        _check_deadline(timeout_s)
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            intent = self._image.intents.get(name)
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

    async def alter_config(self, resource: ConfigResource, edit: ConfigEdit, timeout_s: float = 30.0) -> None:
        """Replaces a resource's dynamic settings by `edit(present ones)`, and waits until this broker's image has them.

        `edit` may raise KafkaError. It is called again if another process has changed the settings meanwhile. If it
        returns no settings, the resource's key is removed.
        """
        async with within(timeout_s):
            await self._alter_config(resource, edit)

    async def _alter_config(self, resource: ConfigResource, edit: ConfigEdit) -> None:
        config: Config | None = self._image.configs.get(resource)
        key = keys.config(resource)
        while True:
            present = Config(_NO_ENTRIES) if config is None else config
            entries = edit(present.entries)
            write: Write = Put(key, replace(present, entries=entries).encode()) if entries else Delete(key)
            writes = [] if entries == present.entries else [write]
            result = await self._settling.attempt([*self._guards_of(resource), Guard(key, present.revision)], writes)
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:  # the outcome is unknown: the image will show it
                await self._settling.until_settled(key)
                config = self._image.configs.get(resource)
            elif key in result.failed:
                entry = result.failed[key]
                config = None if entry is None else Config.decode(entry)
            else:  # the topic was deleted meanwhile, or its number of partitions was raised
                (topic,) = result.failed.values()
                if topic is None:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition)
                await self._settling.until_revision(topic.mod_revision)
                config = self._image.configs.get(resource)

    async def alter_quota(self, entity: QuotaEntity, edit: QuotaEdit, timeout_s: float = 30.0) -> None:
        """Does the same as `alter_config` for the quotas of an entity."""
        async with within(timeout_s):
            await self._alter_quota(entity, edit)

    async def _alter_quota(self, entity: QuotaEntity, edit: QuotaEdit) -> None:
        quota: Quota | None = self._image.quotas.get(entity)
        key = keys.quota(entity)
        while True:
            present = Quota(_NO_LIMITS) if quota is None else quota
            limits = edit(present.limits)
            write: Write = Put(key, replace(present, limits=limits).encode()) if limits else Delete(key)
            writes = [] if limits == present.limits else [write]
            result = await self._settling.attempt([Guard(key, present.revision)], writes)
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:
                await self._settling.until_settled(key)
                quota = self._image.quotas.get(entity)
                continue
            entry = result.failed[key]
            quota = None if entry is None else Quota.decode(entry)

    async def elect_leader(self, topic: str, index: int, unclean: bool, timeout_s: float) -> None:
        """Asks for the election of the preferred replica, or (`unclean`) of any live one, and waits for the election.

        Raises KafkaError.
        """
        known = self._image.topics.get(topic)
        if known is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such topic as {topic}")
        partition = known.partitions.get(index)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}")
        if partition.leader >= 0 and (unclean or partition.leader == partition.replicas[0]):
            raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
        preferred = partition.replicas[0]
        if not unclean and not (
            preferred in partition.isr and self._runs(preferred) and preferred not in self._image.drained
        ):
            raise _not_elected(unclean)
        if unclean and not any(self._runs(replica) for replica in partition.replicas):
            raise _not_elected(unclean)
        key = keys.election(known.id, index)
        # An election that was asked for already counts as this request's. The controller deletes its key once it has
        # decided.
        async with within(timeout_s):
            result = await self._settling.surely([Guard(key, 0)], [Put(key, Election(unclean).encode())])
            if isinstance(result, Committed):
                await self._settling.until_revision(result.revision)
            else:
                await self._settling.until_settled(key)
            await self._settling.until(lambda image: None if (known.id, index) in image.elections else True)
        after = self._image.partition(known.id, index)
        if after is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}")
        if after.leader == NO_LEADER if unclean else after.leader != after.replicas[0]:
            raise _not_elected(unclean)

    async def reassign(
        self, topic: str, index: int, target: Sequence[int] | None, allow_another_factor: bool, timeout_s: float
    ) -> None:
        """Asks for a partition's move to the replicas `target`, or (None) for the end of its move.

        Waits until the controller has begun to carry that out. If two administrators ask at the same time, one is
        refused (REASSIGNMENT_IN_PROGRESS). Raises KafkaError.
        """
        async with within(timeout_s):
            if target is not None:
                await self._settling.until_all_known(keys.broker.prefix)
            await self._reassign(topic, index, target, allow_another_factor)

    async def _reassign(self, topic: str, index: int, target: Sequence[int] | None, allow_another_factor: bool) -> None:
        before = self._reassignable(topic, index)
        wanted = (before.topic_id, index)
        key, state_key = keys.reassignment(*wanted), keys.partition(*wanted)
        wish = Reassignment(None if target is None else tuple(target))
        doubtful = False  # whether the wish may have been written
        while True:
            image = self._image
            state = self._reassignable(topic, index)
            moved, standing = _assignment(state) != _assignment(before), image.reassignments.get(wanted)
            ours = _fulfils(state, wish) if moved else standing is not None and standing.target == wish.target
            if doubtful and ours:
                break
            if moved or standing is not None:
                raise _being_moved(topic, index)
            if target is None:
                check_cancellable(state, image.brokers)
            else:
                check_target(target, state, self._known(target), allow_another_factor)
            intent = image.intents_by_id[state.topic_id]
            guards = [Guard(keys.topic(topic), intent.revision), Guard(state_key, state.revision), Guard(key, 0)]
            there = wish.target == state.target and not state.removing  # the replicas are the target, or are added
            result = await self._settling.attempt(guards, [] if there else [Put(key, wish.encode())])
            if isinstance(result, Committed):
                await self._settling.until_revision(result.revision)
                break
            if result is None:
                doubtful = True
                await self._settling.until_settled(key, state_key)
                continue
            other = result.failed.get(key)
            if other is not None and not (doubtful and other.value == wish.encode()):
                raise _being_moved(topic, index)
            newest = max((entry.mod_revision for entry in result.failed.values() if entry), default=image.revision + 1)
            await self._settling.until_revision(newest)  # the partition's state changed, or the topic's intent did
        await self._settling.until(lambda image: None if wanted in image.reassignments else True)

    async def unregister_broker(self, broker_id: int, timeout_s: float = 30.0) -> None:
        """Deletes a broker's registration. A broker that is alive registers anew. Raises KafkaError."""
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            await self._unregister_broker(broker_id)

    async def _unregister_broker(self, broker_id: int) -> None:
        doubtful = None  # the registration that may have been deleted
        while True:
            broker = self._image.brokers.get(broker_id)
            if doubtful is not None and (broker is None or broker.epoch != doubtful):
                return None
            if broker is None and broker_id in self._known([broker_id]):
                return None  # its registration ended with its process
            if broker is None:
                raise KafkaError(
                    ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"
                )
            key = keys.broker(broker_id)
            result = await self._settling.attempt([Guard(key, broker.revision)], [Delete(key)])
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:
                doubtful = broker.epoch
                await self._settling.until_settled(key)
            else:
                await self._settling.until(_registered_otherwise(broker))

    async def confirm_deletion(self, broker_id: int, topic_id: UUID) -> None:
        """Confirms in the tombstone that this broker has no data of a deleted topic left.

        It tries until it succeeds, however long the store is away. There is no second confirmation before the broker's
        next start, and until then the tombstone would stay.
        """
        tombstone = self._image.tombstones.get(topic_id)
        key = keys.tombstone(topic_id)
        while tombstone is not None and broker_id in tombstone.pending:
            rest = tuple(pending for pending in tombstone.pending if pending != broker_id)
            guard = Guard(key, tombstone.revision)
            try:
                result = await self._store.transact([guard], [Put(key, replace(tombstone, pending=rest).encode())])
            except UnknownOutcome:
                continue
            except StoreUnavailable as reason:
                logger.info("the deletion of %s waits to be confirmed: %s", tombstone.name, reason)
                await asyncio.sleep(_RETRY_S)
                continue
            if isinstance(result, Committed):
                return
            entry = result.failed[key]
            tombstone = None if entry is None else Tombstone.decode(entry)

    def _assignments(self, topic: NewTopic) -> tuple[tuple[int, ...], ...]:
        brokers = self._image.brokers
        count, factor = topic.partition_count, topic.replication_factor
        if topic.assignments:
            for number, label in ((factor, "replication factor"), (count, "numPartitions")):
                if number != DEFAULT:
                    raise KafkaError(
                        ErrorCode.invalid_request,
                        f"A manual partition assignment was specified, but {label} was not set to -1.",
                    )
            wanted = [replica for _, replicas in topic.assignments for replica in replicas]
            assignments = check_assignments(topic.assignments, self._known(wanted))
            check_any_runs(assignments, _running(brokers))
            return assignments
        if factor < 1:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if count < 1:
            raise KafkaError(
                ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
            )
        return self._placed(count, factor, 0)

    def _placed(self, count: int, replication_factor: int, first_index: int) -> tuple[tuple[int, ...], ...]:
        if count > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
        image = self._image
        undrained = any(broker.electable and broker.id not in image.drained for broker in image.brokers.values())
        unwanted = image.drained if undrained else frozenset[int]()
        candidates = [
            Candidate(broker.id, broker.rack, broker.electable and broker.id not in unwanted)
            for broker in image.brokers.values()
        ]
        # As with Kafka, a broker that is down may get a replica where it is needed, and catches up later.
        if replication_factor > len(candidates):
            down = self._with_replicas() - image.brokers.keys()
            candidates += [Candidate(broker_id, live=False) for broker_id in sorted(down)]
        start = self._random.randrange(1 << 20)
        return place(candidates, count, replication_factor, start, first_index)

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
        first = self._image.partition(intent.id, 0)
        factor = len(intent.assignments[0]) if first is None else len(first.replicas)
        if assignments is None:
            new = self._placed(added, factor, present)
        else:
            if len(assignments) != added:
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were"
                    " specified.",
                )
            wanted = [replica for replicas in assignments for replica in replicas]
            new = check_assignments(list(enumerate(assignments)), self._known(wanted), factor)
            check_any_runs(new, _running(self._image.brokers), present)
        return replace(intent, assignments=(*intent.assignments, *new))

    def _holders(self, intent: TopicIntent) -> tuple[int, ...]:
        """The brokers that may have data of the topic."""
        holders = {replica for replicas in intent.assignments for replica in replicas}
        for state in self._image.partitions.get(intent.id, {}).values():
            holders.update(state.replicas)
        return tuple(sorted(holders))

    def _known(self, wanted: Iterable[int]) -> Collection[int]:
        """The ids of the brokers that exist: the registered ones and, if `wanted` has another, all that have replicas.

        Kafka remembers a broker that is down until it is unregistered. Here a registration ends with its process, so a
        broker that is down is known only by its replicas.
        """
        image = self._image
        if all(broker in image.brokers for broker in wanted):
            return image.brokers
        return self._with_replicas() | image.brokers.keys()

    def _with_replicas(self) -> set[int]:
        """The ids of the brokers that have replicas, whether they run or not."""
        states = (state for of_topic in self._image.partitions.values() for state in of_topic.values())
        return {replica for state in states for replica in state.replicas}

    def _reassignable(self, topic: str, index: int) -> Partition:
        known = self._image.topics.get(topic)
        if known is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {topic}.")
        partition = known.partitions.get(index)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {topic}:{index}.")
        return partition

    def _runs(self, broker_id: int) -> bool:
        broker = self._image.brokers.get(broker_id)
        return broker is not None and broker.electable

    def _guards_of(self, resource: ConfigResource) -> list[Guard]:
        """For a topic's settings, the guard that the topic still exists: its deletion deletes its settings, too."""
        if resource.type != "topic":
            return []
        intent = self._image.intents.get(resource.name)
        if intent is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return [Guard(keys.topic(resource.name), intent.revision)]

    def _random_topic_id(self) -> UUID:
        """A random id whose text doesn't start with a dash, because tools would take it for a flag."""
        while True:
            candidate = UUID(int=self._random.getrandbits(128), version=4)
            if not uuid_text(candidate).startswith("-"):
                return candidate


def _appeared(image: Image, topic_id: UUID, partition_count: int) -> Topic | bool | None:
    """The topic, if it is visible with that many partitions; True if it has been deleted since; else None."""
    topic: Topic | None = image.topics_by_id.get(topic_id)
    if topic is not None and len(topic.partitions) >= partition_count:
        return topic
    return True if topic_id in image.tombstones else None


def _assignment(state: Partition) -> tuple[tuple[int, ...], ...]:
    return (state.replicas, state.adding, state.removing)


def _registered_otherwise(known: Broker) -> Callable[[Image], bool | None]:
    def find(image: Image) -> bool | None:
        present = image.brokers.get(known.id)
        return True if present is None or present.revision != known.revision else None

    return find


def _fulfils(state: Partition, wish: Reassignment) -> bool:
    """Whether the state of a partition, after a change of its assignment, is as the wish asks."""
    return not state.reassigning if wish.target is None else state.target == wish.target


def _being_moved(topic: str, index: int) -> KafkaError:
    return KafkaError(
        ErrorCode.reassignment_in_progress,
        f"Somebody else has asked for another assignment of {topic}-{index} at this moment.",
    )


def _not_elected(unclean: bool) -> KafkaError:
    if unclean:
        return KafkaError(
            ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."
        )
    return KafkaError(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")


def _check_deadline(timeout_s: float) -> None:
    """Raises KafkaError for a time-out of 0 or less: as in Kafka, a request that doesn't wait at all does nothing."""
    if timeout_s <= 0:
        raise KafkaError(ErrorCode.request_timed_out)


def _decoded_topic(entry: Entry | None) -> TopicIntent | None:
    return None if entry is None else TopicIntent.decode(entry)


def _running(brokers: Mapping[int, Broker]) -> dict[int, bool]:
    return {broker.id: broker.electable for broker in brokers.values()}


def _exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
