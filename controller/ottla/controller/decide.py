"""The controller's decisions: a function from an image of the metadata to proposals of changes. Pure.

A proposal is a small number of writes that are applied together, with a guard on every key from which they were
derived. The runner packs proposals into transactions. Each proposal is correct by itself, in whatever order proposals
are applied. If only some proposals are applied, the next decision continues from the state that they have left:
creation, deletion and moves of partitions can resume after any step, because the remaining steps follow from the image
alone. `topics.py` creates and deletes topics, `ottla.metadata.elections` has the rule by which leaders are elected,
`reassignment.py` moves replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from uuid import UUID

from ottla.metadata import keys
from ottla.metadata.elections import Electorate, led, stamped
from ottla.metadata.eligibility import MIN_ISR, elr_min_isr, with_eligible
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.partitions import NO_LEADER, Election, Partition, Reassignment
from ottla.metadata.reports import contenders_ends, waiting_partitions
from ottla.metadata.store import Delete, Guard, Put, Write

from .proposal import Proposal
from .reassignment import completed, reassigned
from .recovery import recovered
from .topics import create_partitions, delete_topic

UNCLEAN_ELECTION = "unclean.leader.election.enable"

_DEFAULTS = {UNCLEAN_ELECTION: "false", MIN_ISR: "1"}

PartitionId = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Scope:
    """The topics and partitions that `decide` looks at, because their state may have to change.

    `preferred` are partitions whose leadership is to go to their first replica, if that replica can lead. `unled` are
    the partitions that have no leader, or whose leader may not lead any more. The controller decides on these
    partitions first.
    """

    topics: frozenset[UUID]
    partitions: frozenset[PartitionId]
    preferred: frozenset[PartitionId] = frozenset()
    unled: frozenset[PartitionId] = frozenset()

    def __or__(self, other: Scope) -> Scope:
        """The topics and partitions of both scopes."""
        topics, partitions = self.topics | other.topics, self.partitions | other.partitions
        return Scope(topics, partitions, self.preferred | other.preferred, self.unled | other.unled)

    def __bool__(self) -> bool:
        return bool(self.topics or self.partitions or self.preferred)


def whole_scope(image: Image) -> Scope:
    """All topics and partitions: for a controller at the beginning of its term."""
    topics = frozenset(image.intents_by_id) | frozenset(image.tombstones)
    partitions = {(topic, index) for topic, states in image.partitions.items() for index in states}
    partitions.update(image.elections, image.reassignments)
    return Scope(topics, frozenset(partitions), unled=_unled(image))


def scope_of(image: Image, changed: Changed) -> Scope:
    """The topics and partitions on which a decision may be needed after a change of the metadata."""
    if changed.cluster:  # a restore of the store has ended, or fewer brokers have to report before it ends
        return whole_scope(image)
    partitions = set(changed.partitions | changed.elections | changed.reassignments)
    unled = frozenset[PartitionId]()
    if changed.brokers:
        partitions.update(_partitions_on(image, changed.brokers))
        unled = _unled(image).intersection(partitions)
    if changed.features or any(resource.type == "broker" for resource in changed.configs):
        partitions.update(_partitions_in_need(image))  # which replicas may lead depends on features and settings
    if changed.reports:
        partitions.update(waiting_partitions(image))
    for resource in changed.configs:
        if resource.type == "topic" and (intent := image.intents.get(resource.name)):
            partitions.update((intent.id, index) for index in image.partitions.get(intent.id, ()))
    return Scope(changed.topics | changed.tombstones, frozenset(partitions), unled=unled)


def imbalanced(image: Image) -> Scope:
    """Partitions whose leader isn't their first replica, although the first replica is in sync and isn't drained. The
    controller looks for such partitions at intervals.

    Kafka's KRaft controller, too, balances each such partition, whatever `leader.imbalance.per.broker.percentage` is.
    """
    drained = image.drained
    found = {
        (topic_id, index)
        for topic_id, states in image.partitions.items()
        for index, state in states.items()
        if NO_LEADER != state.leader != state.replicas[0] in state.isr and state.replicas[0] not in drained
    }
    return Scope(frozenset(), frozenset(), frozenset(found))


def in_order(topics: Iterable[UUID]) -> list[UUID]:
    """The topic ids, sorted by their integer values. A comparison of UUID objects is slower: for thousands of topics it
    would block the event loop for long."""
    return sorted(topics, key=attrgetter("int"))


def in_order_of_topics(partitions: Iterable[PartitionId]) -> list[PartitionId]:
    """The partitions sorted by topic, as `in_order` sorts topics, then by index."""
    return sorted(partitions, key=lambda partition: (partition[0].int, partition[1]))


def decide(image: Image, scope: Scope, defaults: Mapping[str, str]) -> Iterator[Proposal]:
    """The proposals for a scope. Correctness doesn't depend on their order.

    `defaults` are settings by Kafka's names, which apply where no dynamic setting overrides them. While the store is
    being restored from a backup, only a part of the metadata is in the store, and nothing is proposed.
    """
    if image.cluster is not None and image.cluster.restoring:
        return
    settings = {**_DEFAULTS, **defaults}
    for topic_id in in_order(scope.topics):
        if topic_id in image.tombstones:
            yield from delete_topic(image, topic_id)
        elif intent := image.intents_by_id.get(topic_id):
            yield from create_partitions(image, intent)
    epochs = _electable(image)
    electorates: dict[UUID, Electorate] = {}
    for partition_id in in_order_of_topics(scope.partitions | scope.preferred):
        preferred = partition_id in scope.preferred
        if preferred or not _settled(image, partition_id, epochs):
            yield from _look_at(image, partition_id, preferred, settings, electorates)


def _settled(image: Image, partition_id: PartitionId, epochs: Mapping[int, int]) -> bool:
    """Whether a cheap check shows that a partition needs no decision. False if only a full decision can show it.

    A partition needs no decision if no election and no reassignment of it is requested or under way, its leader is a
    member of the ISR and isn't drained, it has no eligible leader replicas outside the ISR, and each member of the ISR
    may lead and still has the registration with which it joined. `epochs` has the registration epochs of the brokers
    that may lead, by broker id.

    The check has to be cheap, because it runs for every partition whose state changes. A decision about thousands of
    partitions changes all their states, so each of them is checked again afterwards. Later, each change of an ISR leads
    to a check of its partition, too.
    """
    partition = image.partition(*partition_id)
    return (
        partition is not None
        and partition.leader in partition.isr
        and partition.leader not in image.drained
        and not (partition.reassigning or partition.restored or partition.elr or partition.last_known_elr)
        and tuple(map(epochs.get, partition.isr)) == partition.isr_epochs
        and not (image.elections and partition_id in image.elections)
        and not (image.reassignments and partition_id in image.reassignments)
    )


def _look_at(
    image: Image,
    partition_id: PartitionId,
    preferred: bool,
    defaults: Mapping[str, str],
    electorates: dict[UUID, Electorate],
) -> Iterator[Proposal]:
    """The proposal for one partition, if any. `electorates` caches each topic's electorate for the topic's other
    partitions."""
    topic_id, index = partition_id
    partition = image.partition(topic_id, index)
    election = image.elections.get(partition_id)
    reassignment = image.reassignments.get(partition_id)
    guards: list[Guard] = []
    writes: list[Write] = []
    if partition is not None:
        if topic_id in image.tombstones:
            return
        if partition.restored:
            reassignment = None  # the reassignment waits until the partition has a leader
            after = recovered(image, partition, unclean=election is not None and election.unclean)
        else:
            usual = election is None and not preferred and partition.leader != NO_LEADER
            electorate = electorates.get(topic_id) if usual else None
            if electorate is None:
                electorate = _electorate(image, partition, election, preferred, defaults)
                if usual:
                    electorates[topic_id] = electorate
            after = _successor(partition, reassignment, electorate)
        if after is not partition:
            key = keys.partition(topic_id, index)
            guards.append(Guard(key, partition.revision))
            writes.append(Put(key, after.encode()))
        if reassignment is not None and (topic := image.intents_by_id.get(topic_id)):
            guards.append(Guard(keys.topic(topic.name), topic.revision))  # a topic's deletion must know all replicas
    if election is not None:
        guards.append(Guard(keys.election(topic_id, index), election.revision))
        writes.append(Delete(keys.election(topic_id, index)))
    if reassignment is not None:
        guards.append(Guard(keys.reassignment(topic_id, index), reassignment.revision))
        writes.append(Delete(keys.reassignment(topic_id, index)))
    if writes:
        yield Proposal(tuple(guards), tuple(writes))


def _successor(partition: Partition, reassignment: Reassignment | None, electorate: Electorate) -> Partition:
    """The partition's next state, after reassignment and election in one step. If nothing changes, the result is
    `partition` itself."""
    after = partition
    if reassignment is not None:
        after = reassigned(after, reassignment.target, electorate)
    after = completed(led(after, electorate), electorate)
    return stamped(partition, with_eligible(partition, after, electorate.brokers, electorate.min_isr))


def _electorate(
    image: Image, partition: Partition, election: Election | None, preferred: bool, defaults: Mapping[str, str]
) -> Electorate:
    intent = image.intents_by_id.get(partition.topic_id)
    name = "" if intent is None else intent.name
    unclean = election is not None and election.unclean
    return Electorate(
        image.brokers,
        image.drained,
        elr_min_isr(image, name, defaults[MIN_ISR]),
        unclean or _unclean_allowed(image, name, defaults[UNCLEAN_ELECTION]),
        preferred or (election is not None and not election.unclean),
        contenders_ends(image, partition) if partition.leader == NO_LEADER else {},
    )


def _unclean_allowed(image: Image, topic: str, default: str) -> bool:
    own = image.config("topic", topic).get(UNCLEAN_ELECTION) if topic else None
    value = own or image.config("broker", "").get(UNCLEAN_ELECTION) or default
    return value.lower() == "true"


def _partitions_on(image: Image, brokers: frozenset[int]) -> Iterator[PartitionId]:
    for topic_id, states in image.partitions.items():
        for index, partition in states.items():
            if not brokers.isdisjoint(partition.replicas):
                yield topic_id, index


def _electable(image: Image) -> dict[int, int]:
    """The registration epochs of the brokers that may lead, by broker id."""
    return {broker.id: broker.epoch for broker in image.brokers.values() if broker.electable}


def _unled(image: Image) -> frozenset[PartitionId]:
    """Partitions without a leader, or whose leader's broker is gone, has registered anew or can't lead."""
    epochs = _electable(image)
    return frozenset(
        (topic_id, index)
        for topic_id, states in image.partitions.items()
        for index, partition in states.items()
        if (epoch := epochs.get(partition.leader)) is None or epoch != partition.epoch_in_isr(partition.leader)
    )


def _partitions_in_need(image: Image) -> Iterator[PartitionId]:
    doubtful = image.drained | {NO_LEADER}
    for topic_id, states in image.partitions.items():
        for index, partition in states.items():
            if partition.leader in doubtful or partition.elr or partition.last_known_elr:
                yield topic_id, index
