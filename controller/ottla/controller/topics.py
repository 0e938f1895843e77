"""The creation and deletion of topics in several transactions: the controller may stop after any of them. Pure.

Creation writes the states of all partitions first, and the topic's ready mark last (one transaction if all fit in it).
Deletion begins with a tombstone. It deletes the ready mark first, then the states, and the tombstone last, when no
broker has data of the topic any more. The remaining writes follow from the metadata image alone, so a new controller
completes them after its predecessor has stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from ottla.metadata import keys
from ottla.metadata.elections import Electorate, first_state
from ottla.metadata.image import Image
from ottla.metadata.model.partitions import NO_LEADER, Partition
from ottla.metadata.model.topics import Ready, TopicIntent
from ottla.metadata.store import Delete, Guard, Put

from .proposal import Proposal

ATOMIC_CREATION_MAX = 100  # the most partitions that one transaction creates, with their states and the ready mark


def create_partitions(image: Image, intent: TopicIntent) -> Iterator[Proposal]:
    """The writes that are still needed until the topic has all partitions that an administrator asked for (`intent`),
    and a ready mark, which makes them visible to clients."""
    states: Mapping[int, Partition] = image.partitions.get(intent.id, {})
    wanted = len(intent.assignments)
    mark = image.ready.get(intent.id)
    if mark is not None and mark.partitions >= wanted:
        return
    topic_guard = Guard(keys.topic(intent.name), intent.revision)
    missing = [index for index in range(wanted) if index not in states] if len(states) < wanted else []
    electorate = Electorate(image.brokers, image.drained)
    puts = (_creation(intent, index, electorate) for index in missing)
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


def delete_topic(image: Image, topic_id: UUID) -> Iterator[Proposal]:
    """The writes that delete the keys of a topic with a tombstone: the ready mark, which makes it visible to clients,
    its partitions' states, and, once no broker has its data any more, the tombstone."""
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


def _creation(intent: TopicIntent, index: int, electorate: Electorate) -> Put:
    blank = Partition(intent.id, index, intent.assignments[index], (), (), NO_LEADER)
    return Put(keys.partition(intent.id, index), first_state(blank, electorate).encode())
