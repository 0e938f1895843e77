"""What the controller changes, given what the metadata says: a pure function from an image to proposals. Pure.

A proposal is a handful of writes that belong together, with guards on everything it was derived from; the runner packs
proposals into transactions. Each is right by itself and in any order, and deciding again after any of them was applied
goes on from there: creation and deletion resume at every midpoint, because what is left to do is read off the image.

Creation: the states of all partitions first, the ready mark last (in one transaction with them where they fit).
Deletion (a tombstone stands): the ready mark first, then the states, at last the tombstone, when no broker has data.

Partitions, by the rules of Kafka's PartitionChangeBuilder and the design's fencing rule:

1. A member of the ISR whose broker isn't registered, or registered anew since it was admitted (another epoch), is dead.
   It leaves the ISR if another member survives; the last members never leave, since only they hold all records.
2. The leader stays if it survives. Else the first survivor in assignment order that may be elected leads, the leader
   epoch grows. A broker that drains hands over what it leads and leaves the ISR, if another member can take over; it
   isn't elected.
3. If all members are dead, whoever of them runs again first leads, under its new epoch, alone in the ISR. Until then
   there is no leader. Only with unclean elections allowed may a replica from outside the ISR lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from ottla.metadata import keys
from ottla.metadata.image import Changed, Image
from ottla.metadata.model import (
    NO_EPOCH,
    NO_LEADER,
    Broker,
    Election,
    Partition,
    Ready,
    TopicIntent,
    with_isr,
    with_leader,
)
from ottla.metadata.store import Delete, Guard, Put, Write

ATOMIC_CREATION_MAX = 100  # a topic of so many partitions is created, states and mark, in one transaction

UNCLEAN_ELECTION = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Writes that are applied together, if all guards hold."""

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """What has to be looked at: everything whose answer may have changed."""

    topics: frozenset[UUID]
    partitions: frozenset[tuple[UUID, int]]
    elections: frozenset[tuple[UUID, int]] = frozenset()


def whole_scope(image: Image) -> Scope:
    """Everything: for a controller that begins."""
    topics = frozenset(image.intents_by_id) | frozenset(image.tombstones)
    partitions = frozenset((topic, index) for topic, states in image.partitions.items() for index in states)
    return Scope(topics, partitions, frozenset(image.elections))


def scope_of(image: Image, changed: Changed) -> Scope:
    """What a change of the metadata calls for."""
    partitions = set(changed.partitions)
    if changed.brokers:
        partitions.update(_partitions_on(image, changed.brokers))
    if any(resource.type == "broker" for resource in changed.configs):  # unclean elections may be allowed now
        partitions.update(_partitions_without_leader(image))
    for resource in changed.configs:
        if resource.type == "topic" and (intent := image.intents.get(resource.name)):
            partitions.update((intent.id, index) for index in image.partitions.get(intent.id, ()))
    return Scope(changed.topics | changed.tombstones, frozenset(partitions), changed.elections)


def decide(image: Image, scope: Scope, defaults: Mapping[str, str]) -> Iterator[Proposal]:
    """What is to be written, in an order that is good but not needed.

    `defaults` are the settings (Kafka's names) that hold where no dynamic one overrides them.
    """
    for topic_id in sorted(scope.topics):
        if topic_id in image.tombstones:
            yield from _delete_topic(image, topic_id)
        elif intent := image.intents_by_id.get(topic_id):
            yield from _create_partitions(image, intent)
    for topic_id, index in sorted(scope.partitions | scope.elections):
        partition = image.partition(topic_id, index)
        if partition is not None and topic_id not in image.tombstones:
            election = image.elections.get((topic_id, index))
            unclean = _unclean_allowed(image, topic_id, defaults)
            yield from _update_partition(partition, image.brokers, election, unclean)
    for topic_id, index in sorted(scope.elections):
        if (topic_id, index) in image.elections and image.partition(topic_id, index) is None:
            yield Proposal((), (Delete(keys.election(topic_id, index)),))


def created(topic_id: UUID, index: int, replicas: tuple[int, ...], brokers: Mapping[int, Broker]) -> Partition:
    """The first state of a partition: all replicas that run are in sync (there is nothing to have yet)."""
    members = tuple(b for b in replicas if b in brokers and brokers[b].electable)
    if not members:
        return Partition(topic_id, index, replicas, replicas, (NO_EPOCH,) * len(replicas), NO_LEADER)
    return Partition(topic_id, index, replicas, members, _epochs(members, brokers), members[0])


def elected(
    partition: Partition, brokers: Mapping[int, Broker], *, preferred: bool = False, unclean: bool = False
) -> Partition:
    """The partition as it should be with these brokers registered; the same object where nothing is to change."""
    survivors = tuple(
        member
        for member, epoch in zip(partition.isr, partition.isr_epochs, strict=True)
        if member in brokers and brokers[member].epoch == epoch
    )
    able = tuple(member for member in survivors if brokers[member].electable)
    if able:
        if preferred and partition.replicas[0] in able:
            leader = partition.replicas[0]
        elif partition.leader in able:
            leader = partition.leader
        else:
            leader = next((replica for replica in partition.replicas if replica in able), able[0])
        return _changed(partition, leader, able, brokers)
    if survivors:  # they drain: one that leads goes on, the others aren't elected, and the dead leave all the same
        return _changed(partition, partition.leader if partition.leader in survivors else NO_LEADER, survivors, brokers)
    returned = tuple(b for b in partition.replicas if b in partition.isr and b in brokers and brokers[b].electable)
    if returned:
        return _changed(partition, returned[0], returned[:1], brokers)
    if unclean:
        running = tuple(b for b in partition.replicas if b in brokers and brokers[b].electable)
        if running:
            return replace(_changed(partition, running[0], running[:1], brokers), recovering=True)
    return _changed(partition, NO_LEADER, partition.isr, brokers)


def _changed(partition: Partition, leader: int, isr: tuple[int, ...], brokers: Mapping[int, Broker]) -> Partition:
    """The partition with that leader and ISR. Without a leader, members keep the epochs they were admitted under."""
    if leader == NO_LEADER:
        epochs = tuple(map(partition.epoch_in_isr, isr))
        if partition.leader != NO_LEADER:
            return with_leader(partition, NO_LEADER, isr, epochs)
        return with_isr(partition, isr, epochs) if isr != partition.isr else partition
    epochs = _epochs(isr, brokers)
    # The same broker under a new epoch is another leader.
    if leader != partition.leader or partition.epoch_in_isr(leader) != brokers[leader].epoch:
        return with_leader(partition, leader, isr, epochs)
    if isr != partition.isr:
        return with_isr(partition, isr, epochs)
    return partition


def _epochs(members: Iterable[int], brokers: Mapping[int, Broker]) -> tuple[int, ...]:
    return tuple(brokers[member].epoch for member in members)


def _create_partitions(image: Image, intent: TopicIntent) -> Iterator[Proposal]:
    states: Mapping[int, Partition] = image.partitions.get(intent.id, {})
    wanted = len(intent.assignments)
    mark = image.ready.get(intent.id)
    if mark is not None and mark.partitions >= wanted:
        return
    topic_guard = Guard(keys.topic(intent.name), intent.revision)
    missing = [index for index in range(wanted) if index not in states] if len(states) < wanted else []
    puts = (_creation(intent, index, image.brokers) for index in missing)
    if len(missing) <= ATOMIC_CREATION_MAX:
        first_states = tuple(puts)
        revision = 0 if mark is None else mark.revision
        ready = Ready(wanted) if mark is None else replace(mark, partitions=wanted)
        key = keys.ready(intent.id)
        guards = (topic_guard, Guard(key, revision), *(Guard(put.key, 0) for put in first_states))
        yield Proposal(guards, (*first_states, Put(key, ready.encode())))
        return
    for put in puts:
        yield Proposal((topic_guard, Guard(put.key, 0)), (put,))


def _creation(intent: TopicIntent, index: int, brokers: Mapping[int, Broker]) -> Put:
    state = created(intent.id, index, intent.assignments[index], brokers)
    return Put(keys.partition(intent.id, index), state.encode())


def _delete_topic(image: Image, topic_id: UUID) -> Iterator[Proposal]:
    tombstone = image.tombstones[topic_id]
    mark = image.ready.get(topic_id)
    states: Mapping[int, Partition] = image.partitions.get(topic_id, {})
    if mark is not None:
        key = keys.ready(topic_id)
        yield Proposal((Guard(key, mark.revision),), (Delete(key),))
    for index in sorted(states):
        key = keys.partition(topic_id, index)
        yield Proposal((Guard(key, states[index].revision),), (Delete(key),))
    if mark is None and not states and not tombstone.pending:
        key = keys.tombstone(topic_id)
        yield Proposal((Guard(key, tombstone.revision),), (Delete(key),))


def _update_partition(
    partition: Partition, brokers: Mapping[int, Broker], election: Election | None, unclean: bool
) -> Iterator[Proposal]:
    key = keys.partition(partition.topic_id, partition.index)
    if election is not None:
        unclean = unclean or election.unclean
    after = elected(partition, brokers, preferred=election is not None and not election.unclean, unclean=unclean)
    guards: list[Guard] = []
    writes: list[Write] = []
    if after is not partition:
        guards.append(Guard(key, partition.revision))
        writes.append(Put(key, after.encode()))
    if election is not None:
        election_key = keys.election(partition.topic_id, partition.index)
        guards.append(Guard(election_key, election.revision))
        writes.append(Delete(election_key))
    if writes:
        yield Proposal(tuple(guards), tuple(writes))


def _partitions_on(image: Image, brokers: frozenset[int]) -> Iterator[tuple[UUID, int]]:
    for topic_id, states in image.partitions.items():
        for index, partition in states.items():
            if not brokers.isdisjoint(partition.replicas):
                yield topic_id, index


def _partitions_without_leader(image: Image) -> Iterator[tuple[UUID, int]]:
    for topic_id, states in image.partitions.items():
        for index, partition in states.items():
            if partition.leader == NO_LEADER:
                yield topic_id, index


def _unclean_allowed(image: Image, topic_id: UUID, defaults: Mapping[str, str]) -> bool:
    intent = image.intents_by_id.get(topic_id)
    own = image.config("topic", intent.name).get(UNCLEAN_ELECTION) if intent else None
    value = own or image.config("broker", "").get(UNCLEAN_ELECTION) or defaults.get(UNCLEAN_ELECTION, "false")
    return value.lower() == "true"
