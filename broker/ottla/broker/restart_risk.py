"""Works out which partitions would suffer if brokers stopped now, and whether a broker's replicas are in sync. Pure.

A person, a script or the operator that restarts brokers asks for this before and after each restart. Before several
brokers are restarted together, one question must name all of them, because a stop of two brokers may do harm where the
stop of either one would do none. The answers follow from the metadata alone: the rule by which the controller elects
leaders (`ottla.metadata.elections`) is applied to the brokers that would remain.

Idea: Redpanda's reports before and after a restart.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Set
from typing import NamedTuple

from ottla.metadata.elections import Electorate, election, surviving
from ottla.metadata.eligibility import NO_ELR, is_enabled
from ottla.metadata.image import Image
from ottla.metadata.model.partitions import NO_LEADER, Partition, with_isr


class Risk(enum.Enum):
    """The harm that a stop of brokers does to a partition: the first member of this enum that applies."""

    ONLY_COPY = "only_copy"  # its only replica is on a stopping broker: offline until that broker is back
    OFFLINE = "offline"  # none of its remaining replicas may lead: offline until a stopped broker is back
    LOSES_RECORDS = "loses_records"  # an unclean election: a replica that lacks the newest records becomes leader
    TOO_FEW_REPLICAS = "too_few_replicas"  # it has no more replicas than its minimal ISR, so any stop leaves too few
    BELOW_MIN_ISR = "below_min_isr"  # it has a leader, but producers with acks=all are refused


class Held(NamedTuple):
    """A partition of which one of the given brokers has a replica. `name` is the topic's name and the partition's
    index, joined by a hyphen."""

    name: str
    topic: str
    state: Partition


def replicas_of(image: Image, brokers: Set[int]) -> Iterator[Held | None]:
    """Yields every partition of which one of these brokers is to have a replica. For each other partition it yields
    None, so that the caller can pause."""
    for topic_id, states in image.partitions.items():
        intent = image.intents_by_id.get(topic_id)
        for index, state in states.items():
            held = intent is not None and not brokers.isdisjoint(state.replicas)
            yield Held(f"{intent.name}-{index}", intent.name, state) if intent is not None and held else None


def without_leader(image: Image) -> list[str]:
    """The names of all partitions of the cluster that have no leader."""
    return [
        f"{intent.name}-{index}"
        for topic_id, states in image.partitions.items()
        if (intent := image.intents_by_id.get(topic_id)) is not None
        for index, state in states.items()
        if state.leader == NO_LEADER
    ]


def in_sync(image: Image, broker_id: int, state: Partition) -> bool:
    """Whether the broker's replica is in the ISR, under the broker's present registration."""
    broker = image.brokers.get(broker_id)
    return broker is not None and state.epoch_in_isr(broker_id) == broker.epoch


def risk(image: Image, stopping: Set[int], held: Held, min_isr: int, *, unclean: bool) -> Risk | None:
    """The harm to the partition if all brokers in `stopping` stopped together; None where clients would notice no harm.

    `min_isr` and `unclean` are the topic's settings `min.insync.replicas` and `unclean.leader.election.enable`. A stop
    does no harm if the stopping replicas aren't in sync, or if the partition has no leader anyway.
    """
    state = held.state
    members = surviving(state, Electorate(image.brokers))
    if state.leader == NO_LEADER or stopping.isdisjoint(members):
        return None
    if len(state.replicas) == 1:
        return Risk.ONLY_COPY
    if members != state.isr:  # the controller is about to remove the dead members from the ISR
        state = with_isr(state, members, tuple(map(state.epoch_in_isr, members)))
    # Administrators' wishes to drain brokers are left out: they change only which of several replicas leads.
    left = {
        replica: broker
        for replica in state.replicas
        if replica not in stopping and (broker := image.brokers.get(replica)) is not None
    }
    outcome = election(state, Electorate(left, min_isr=min_isr if is_enabled(image) else NO_ELR, unclean=unclean))
    if outcome.leader == NO_LEADER:
        return Risk.OFFLINE
    if outcome.unclean:
        return Risk.LOSES_RECORDS
    in_sync_left = len(outcome.isr)
    if in_sync_left >= min(min_isr, len(state.replicas)):
        return None
    # Where one replica stops and all others are in sync, waiting wouldn't make the restart any safer.
    unavoidable = len(state.replicas) <= min_isr and in_sync_left == len(state.replicas) - 1
    return Risk.TOO_FEW_REPLICAS if unavoidable else Risk.BELOW_MIN_ISR
