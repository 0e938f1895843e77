"""Checks brokers and the store while they run, for invariants that clients can't see:

- An epoch never falls in the store, in a broker or inside a log. No two brokers lead in the same epoch, and no broker
  leads by a state that was written before its process was registered.
- A leader's high watermark doesn't fall within its epoch, and no record above a high watermark is compacted.
- The last member of an ISR is never removed. A broker that is added to an ISR is registered and running, and has all
  committed records.
- A replica that may lack records is elected only if the topic allows that.
- At the end, replicas have the same bytes below the high watermark; compacted replicas have the same last record of
  each key.

The observer also decides which records may be lost. By a loss of power (`permitted`), these are the records that all
replicas in sync at that moment have lost; by an unclean election (`unclean`), the records that the elected replica
lacks.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.broker.log.compaction_child import Job
from ottla.broker.log.log import Log
from ottla.broker.partition import Partition
from ottla.metadata import keys
from ottla.metadata.keys import kind_of
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import NO_LEADER
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.metadata.model.topics import Tombstone, TopicIntent
from ottla.metadata.store import Revision
from ottla.protocol.batches import iterate_headers, records
from ottla.protocol.markers import read_marker

from .history import of
from .producer import value_of
from .recreation import NAME
from .topics import UNCLEAN

if TYPE_CHECKING:
    from .cluster import Node, World

SAMPLE_S = 0.05
Key = tuple[UUID, int]


class Observer:
    """The observer of one world. `wrong` has a sentence for each violation."""

    def __init__(self, world: World) -> None:
        self.wrong: list[str] = []
        self.counts: Counter[str] = world.counts
        self._world = world
        self._states: dict[Key, PartitionState] = {}
        self._brokers: dict[int, Broker] = {}
        self._latest_epochs: dict[int, int] = {}  # broker → epoch of its latest registration, ended or not
        self._first_epochs: dict[str, int] = {}  # incarnation → epoch of its first registration
        self._topics: dict[UUID, str] = {}
        self._led_by: dict[tuple[Key, int], int] = {}
        self._watermarks: dict[tuple[Key, int, str], int] = {}
        self._epochs: dict[tuple[Key, str], int] = {}
        self._lost_by: dict[Key, dict[int, int]] = {}  # partition → broker → the offset at which its loss begins
        world.store.observers.append(self._revision)
        self._lost_under: dict[int, int] = {}  # broker → the registration that it had when it last stopped uncleanly
        self._durable: dict[tuple[Key, int], int] = {}  # the offset below which a broker's log was synced
        self._ended: dict[tuple[Key, str], int] = {}  # the log's end in an incarnation that has ended
        world.losing_power = self._losing_power
        world.process_left = self._process_left
        world.compacting = self._compacting

    def name(self, key: Key) -> str:
        """The name of a partition in messages."""
        return f"{self._topics.get(key[0], key[0])}-{key[1]}"

    def state(self, key: Key) -> PartitionState | None:
        """The state of a partition that was last written to the store."""
        return self._states.get(key)

    def states(self, topics: Collection[str]) -> list[PartitionState]:
        """The states of all partitions of these topics."""
        return [state for (topic_id, _), state in self._states.items() if self._topics.get(topic_id) in topics]

    def _told(self, topic_id: UUID) -> str:
        """The name of a topic in the history. The topic NAME may be deleted and created again, so the history adds the
        topic's id to this name."""
        name = self._topics.get(topic_id, "")
        return f"{NAME}/{topic_id}" if name == NAME else name

    def start(self) -> None:
        """Starts to sample the replicas."""
        self._world.loop.in_world(SAMPLE_S, self._sample)

    # ---- the store

    def _revision(self, revision: Revision) -> None:
        self._world.history.trace(revision)
        for key, entry in revision.changes:
            kind = kind_of(key)
            if kind is keys.partition and entry is not None:
                self._state_written(PartitionState.decode(entry))
            elif kind is keys.topic and entry is not None:
                self._topics[TopicIntent.decode(entry).id] = keys.topic.of(key)
            elif kind is keys.broker:
                if entry is None:
                    self._brokers.pop(keys.broker.of(key), None)
                    self.counts["registrations ended"] += 1
                else:
                    broker = Broker.decode(entry)
                    self._brokers[broker.id] = broker
                    self._latest_epochs[broker.id] = broker.epoch
                    self._first_epochs.setdefault(broker.incarnation, broker.epoch)
            elif kind is keys.controller and entry is not None:
                self.counts["controllers"] += 1

    def _state_written(self, state: PartitionState) -> None:
        key = (state.topic_id, state.index)
        before = self._states.get(key)
        self._states[key] = state
        name = self.name(key)
        members = dict(zip(state.isr, state.isr_epochs, strict=True))
        self._world.note(
            f"{name}: state {state.partition_epoch}: leader {state.leader} in epoch {state.leader_epoch}, ISR {members}"
            + (f", ELR {list(state.elr)}" if state.elr else "")
            + (f", replicas {list(state.replicas)}" if state.adding or state.removing else "")
        )
        if not state.isr:
            self.wrong.append(f"{name}: the ISR is empty: {state}")
        if len(set(state.isr)) != len(state.isr) or not set(state.isr) <= set(state.replicas):
            self.wrong.append(f"{name}: the ISR isn't a subset of the replicas: {state}")
        if state.leader != NO_LEADER and state.leader not in state.isr:
            self.wrong.append(f"{name}: the leader isn't in the ISR: {state}")
        if before is None or (state.leader, state.leader_epoch) != (before.leader, before.leader_epoch):
            self._world.history.add(
                "leads", "ok", partition=[self._told(key[0]), key[1]], broker=state.leader, epoch=state.leader_epoch
            )
        if before is None:
            return
        if state.leader_epoch < before.leader_epoch or state.partition_epoch <= before.partition_epoch:
            self.wrong.append(f"{name}: epochs regressed: {before} → {state}")
        if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
            self.wrong.append(f"{name}: another leader in the same epoch: {before} → {state}")
        if state.leader_epoch != before.leader_epoch:
            self.counts["elections"] += 1
            outside = state.leader != NO_LEADER and state.leader not in (*before.isr, *before.elr)
            if self._topics.get(key[0]) == UNCLEAN and (outside or (state.recovering and not before.recovering)):
                self._unclean(key, state)
            elif outside:
                self.wrong.append(f"{name}: elected from outside of the ISR: {before} → {state}")
        if state.isr != before.isr:
            self.counts["ISR changes"] += 1
        for member, epoch in zip(state.isr, state.isr_epochs, strict=True):
            if before.epoch_in_isr(member) == epoch:
                continue
            registered = self._brokers.get(member)
            if state.leader_epoch != before.leader_epoch:
                continue  # an election by the controller; if the leader has ended meanwhile, another one follows
            if registered is None or registered.epoch != epoch or registered.state is not BrokerState.RUNNING:
                self.wrong.append(
                    f"{name}: {member} joined the ISR under epoch {epoch}, but its registration is {registered}"
                )
            leader, end = self._replica(state.leader, key), self._end(member, key)
            if leader is None or end is None or leader.leader_epoch != state.leader_epoch:
                continue
            if end < leader.high_watermark:
                self.wrong.append(
                    f"{name}: {member} joined the ISR with a log that ends at {end}, below the high watermark"
                    f" {leader.high_watermark}"
                )
        for broker in list(self._lost_by.get(key, ())):
            if state.epoch_in_isr(broker) > self._lost_under.get(broker, -1):
                del self._lost_by[key][broker]  # the broker is in sync again, under a newer registration
        if key in self._lost_by:
            self._permit(key, state)

    # ---- brokers

    def _replica(self, broker_id: int, key: Key) -> Partition | None:
        """The replica that the broker's process has open; None if there is none."""
        node = self._world.nodes.get(broker_id)
        return None if node is None or node.broker is None else node.broker.partitions.get_by_id(*key)

    def _end(self, broker_id: int, key: Key) -> int | None:
        """The log end offset of a broker's replica in the process that is registered for the broker: the present
        offset, or the one at which that process ended. None without a registration or without the replica."""
        registered, node = self._brokers.get(broker_id), self._world.nodes.get(broker_id)
        if registered is None or node is None:
            return None
        if _incarnation(node) != registered.incarnation:
            return self._ended.get((key, registered.incarnation))
        replica = self._replica(broker_id, key)
        return None if replica is None else replica.log.log_end_offset

    def _process_left(self, node: Node) -> None:
        """Called when a process has ended, before its unsynced data is lost."""
        for partition in node.broker.partitions if node.broker is not None else ():
            self._ended[(partition.topic_id, partition.index), _incarnation(node)] = partition.log.log_end_offset

    def _compacting(self, node: Node, job: Job) -> None:
        """Called when the compaction of a log begins."""
        for partition in node.broker.partitions if node.broker is not None else ():
            if partition.log.directory == job.directory and job.end_offset > partition.high_watermark:
                self.wrong.append(
                    f"{partition!r}: compacted up to {job.end_offset} on {node.host}, beyond the high watermark"
                    f" {partition.high_watermark}"
                )

    def _sample(self) -> None:
        for node, partition in self._world.replicas():
            self._look_at(node, partition)
        self._world.loop.in_world(SAMPLE_S, self._sample)

    def _look_at(self, node: Node, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        incarnation = str(node.process)
        epoch = partition.epoch
        self._durable[key, node.id] = partition.log.recovery_point
        seen = self._epochs.get((key, incarnation), -1)
        if epoch < seen:
            self.wrong.append(f"{partition!r}: epoch fell from {seen} to {epoch} on {incarnation}")
        self._epochs[key, incarnation] = epoch
        if partition.high_watermark > partition.log.log_end_offset:
            self.wrong.append(f"{partition!r}: high watermark beyond the log's end on {incarnation}")
        if partition.leading is None or partition.offline:
            return
        leader = self._led_by.setdefault((key, partition.leader_epoch), node.id)
        if leader != node.id:
            self.wrong.append(f"{partition!r}: brokers {leader} and {node.id} lead in epoch {partition.leader_epoch}")
        state = self._states.get(key)
        if state is not None and state.leader_epoch == partition.leader_epoch:
            first = self._first_epochs.get(_incarnation(node), -1)
            if state.epoch_in_isr(node.id) < first:
                self.wrong.append(
                    f"{partition!r}: {incarnation} leads by a state that is older than its registration: {state}"
                )
        watermark = self._watermarks.get((key, partition.leader_epoch, incarnation), -1)
        if partition.high_watermark < watermark:
            self.wrong.append(
                f"{partition!r}: high watermark fell from {watermark} to {partition.high_watermark} in epoch"
                f" {partition.leader_epoch} on {incarnation}"
            )
        self._watermarks[key, partition.leader_epoch, incarnation] = partition.high_watermark

    def _losing_power(self, node: Node) -> None:
        """Called before the node's unsynced data is lost."""
        self._lost_under[node.id] = self._latest_epochs.get(node.id, -1)
        for partition in node.broker.partitions if node.broker is not None else ():
            self._durable[(partition.topic_id, partition.index), node.id] = partition.log.recovery_point
        for key, state in self._states.items():
            if node.id in state.replicas:
                lost = self._lost_by.setdefault(key, {})
                lost[node.id] = min(lost.get(node.id, 1 << 62), self._durable.get((key, node.id), 0))
                self._permit(key, state)

    def _permit(self, key: Key, state: PartitionState) -> None:
        """If all eligible replicas have lost data, notes the offset from which on records may be lost: the end of the
        longest log that is left."""
        lost = self._lost_by.get(key, {})
        eligible = {*state.isr, *state.elr}
        if eligible <= set(lost):
            self._world.history.add(
                "permitted", "ok", partition=[self._told(key[0]), key[1]],
                offset=max(lost[member] for member in eligible), isr=list(state.isr),
            )  # fmt: skip

    def _unclean(self, key: Key, state: PartitionState) -> None:
        """Notes an unclean election, with the elected replica's records, which must not be lost."""
        self.counts["unclean elections"] += 1
        replica = self._replica(state.leader, key)
        held: list[tuple[int, str]] = []
        if replica is not None:
            with contextlib.suppress(OSError):  # its disk may fail
                content = _content(replica.log, replica.log.log_start_offset, replica.log.log_end_offset)
                for at, header in iterate_headers(content):
                    held += [(record.offset, value_of(record)) for record in records(content[at : at + header.size])]
        self._world.history.add(
            "unclean", "ok", partition=[self._told(key[0]), key[1]], broker=state.leader, held=held
        )  # fmt: skip

    # ---- the end

    def unconverged(self) -> str:
        """The first reason why the healed cluster hasn't converged, as a sentence; empty if it has."""
        world = self._world
        for node in world.nodes.values():
            if not node.serving:
                return f"{node.host} doesn't serve"
        by_key: dict[Key, list[tuple[Node, Partition]]] = {}
        for node, partition in world.replicas():
            by_key.setdefault((partition.topic_id, partition.index), []).append((node, partition))
        for key in by_key:
            if keys.partition(*key) not in world.store.entries:
                return f"{self.name(key)}, which was deleted, still has a replica on a broker"
        drained = next((broker.image.drained for _, broker in world.brokers()), frozenset[int]())
        for key, state in self._states.items():
            if keys.partition(*key) not in world.store.entries:
                continue
            name = self.name(key)
            if state.leader in drained and not drained.issuperset(state.isr):
                return f"{name}: a drained broker is the leader: {state}"
            if state.leader == NO_LEADER:
                return f"{name} has no leader: {state}"
            if state.adding or state.removing:
                return f"{name} is still being reassigned: {state}"
            if any(state.epoch_in_isr(member) != self._latest_epochs.get(member) for member in state.isr):
                return f"{name}: a member of the ISR has registered anew: {state}"
            if set(state.isr) != set(state.replicas):
                return f"{name}: not all replicas are in sync: {state}"
            held = by_key.get(key, [])
            if len(held) != len(state.replicas):
                return f"{name}: only {len(held)} of {len(state.replicas)} replicas are open"
            ends = {partition.log.log_end_offset for _, partition in held}
            marks = {partition.high_watermark for _, partition in held}
            if len(ends | marks) != 1:
                return f"{name}: the logs end at {sorted(ends)}, the high watermarks are {sorted(marks)}"
            if not any(partition.leads and node.id == state.leader for node, partition in held):
                return f"{name}: broker {state.leader} is the leader in the store, but doesn't lead"
        for key, entry in world.store.entries.items():
            if key.startswith(keys.tombstone.prefix):
                return f"a deletion isn't confirmed by all brokers that held the topic: {Tombstone.decode(entry)}"
        return ""

    def unstable(self, topics: Collection[str]) -> str:
        """The first partition of these topics in which a transaction isn't over, as a sentence; empty if there is none.
        Partitions that lost records are left out: the record or the marker that ended a transaction may be among
        them."""
        for node, partition in self._world.replicas():
            name = self._topics.get(partition.topic_id)
            if name not in topics or partition.last_stable_offset == partition.high_watermark:
                continue
            started = partition.log.producers.transactions.open_transactions()
            return (
                f"{partition!r} of {node.host}: the last stable offset is {partition.last_stable_offset}, the high"
                f" watermark {partition.high_watermark}; open transactions (first offset, producer): {started}"
            )
        return ""

    def compare_replicas(self) -> None:
        """Checks that all replicas have the same bytes below the high watermark, and that epochs only grow in a log."""
        by_key: dict[Key, list[tuple[Node, Partition]]] = {}
        for node, partition in self._world.replicas():
            by_key.setdefault((partition.topic_id, partition.index), []).append((node, partition))
        for replicas in by_key.values():
            start = max(partition.log.log_start_offset for _, partition in replicas)
            end = min(partition.high_watermark for _, partition in replicas)
            contents = [(node, self._content_of(partition.log, start, end)) for node, partition in replicas]
            for node, content in contents[1:]:
                if content != contents[0][1]:
                    self.wrong.append(
                        f"{replicas[0][1]!r}: {contents[0][0].host} and {node.host} differ between {start} and {end}"
                    )
            if not replicas[0][1].log.config.compacts:
                self._compare_transactions(replicas, start, end)
            for node, partition in replicas:
                latest = -1
                for segment in partition.log.segments:
                    for _, header in segment.headers():
                        if header.leader_epoch < latest:
                            self.wrong.append(f"{partition!r}: epochs regress inside the log of {node.host}")
                        latest = max(latest, header.leader_epoch)

    def _compare_transactions(self, replicas: list[tuple[Node, Partition]], start: int, end: int) -> None:
        """Checks that all replicas know the same aborted and open transactions, and the same last batch of each
        producer. A replica that has truncated a producer's batches may know the producer's epoch alone."""
        first: tuple[Node, Partition] | None = None
        for node, partition in replicas:
            if first is None:
                first = node, partition
                continue
            for what, known, others in (
                ("aborted transactions", _aborted(first[1], start, end), _aborted(partition, start, end)),
                ("open transactions", _open(first[1]), _open(partition)),
            ):
                if known != others:
                    self.wrong.append(
                        f"{partition!r}: {first[0].host} and {node.host} know different {what}: {known} and {others}"
                    )
            known_batches, other_batches = _last_batches(first[1]), _last_batches(partition)
            for producer_id in known_batches.keys() & other_batches.keys():
                if known_batches[producer_id] != other_batches[producer_id]:
                    self.wrong.append(
                        f"{partition!r}: {first[0].host} and {node.host} know different last batches of producer"
                        f" {producer_id}: {known_batches[producer_id]} and {other_batches[producer_id]}"
                    )

    def _content_of(self, log: Log, start: int, end: int) -> object:
        """The content that all replicas must share. Keys whose tombstone compaction may have removed are left out: a
        replica that wasn't in sync at the removal never gets the tombstone, as in Kafka."""
        if not log.config.compacts:
            return _content(log, start, end)
        latest = _latest_by_key(log, start, end)
        for event in of(self._world.history.events, "send", "invoke"):
            if event.get("tombstones_go") and event["partition"] == [log.topic, log.index]:
                for value, key in zip(event["values"], event["keys"], strict=True):
                    if value in event["tombstones"]:
                        latest.pop(key.encode(), None)
        return latest


def _incarnation(node: Node) -> str:
    return "" if node.broker is None else node.broker.membership.incarnation


def _aborted(partition: Partition, start: int, end: int) -> list[Any]:
    """The aborted transactions whose markers are from `start` up to `end`."""
    return [entry for entry in partition.log.aborted_between(start, end) if start <= entry.last_offset < end]


def _open(partition: Partition) -> list[tuple[int, int]]:
    return partition.log.producers.transactions.open_transactions()


def _last_batches(partition: Partition) -> dict[int, tuple[int, int, int]]:
    """Of each producer whose last batch is known: its epoch, and the batch's last sequence number and offset."""
    return {
        producer_id: (entry.epoch, entry.last_sequence, entry.last_offset)
        for producer_id, entry in partition.log.producers.items()
        if entry.batches
    }


def _latest_by_key(log: Log, start: int, end: int) -> dict[bytes | None, bytes]:
    """The last record of each key, without those of aborted transactions. Only these must be the same, because replicas
    compact at different times."""
    found: dict[bytes | None, bytes | None] = {}
    content = _content(log, start, end)
    aborted = _aborted_batches(content)
    for at, header in iterate_headers(content):
        if not header.is_control and header.base_offset not in aborted:
            found.update((record.key, record.value) for record in records(content[at : at + header.size]))
    return {key: value for key, value in found.items() if value is not None}


def _aborted_batches(content: bytes) -> set[int]:
    """The base offsets of the batches of aborted transactions."""
    written: dict[int, list[int]] = {}  # producer → its batches since its last marker
    aborted: set[int] = set()
    for at, header in iterate_headers(content):
        if header.is_control:
            marker = read_marker(content[at : at + header.size])
            batches = written.pop(header.producer_id, [])
            aborted.update(batches if marker is not None and not marker.committed else ())
        elif header.is_transactional:
            written.setdefault(header.producer_id, []).append(header.base_offset)
    return aborted


def _content(log: Log, start: int, end: int) -> bytes:
    parts = []
    offset = start
    while offset < end:
        data = log.read_bytes(offset, 1 << 20, end)
        if not data:
            break
        parts.append(data)
        *_, last = _headers(data)
        offset = last
    return b"".join(parts)


def _headers(data: bytes) -> list[int]:
    return [header.last_offset + 1 for _, header in iterate_headers(data)]
