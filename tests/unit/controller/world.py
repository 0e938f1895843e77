"""A store in memory, and the image that shows each write immediately, for tests of the controller's decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from ottla.controller.decide import decide, whole_scope
from ottla.controller.proposal import Proposal
from ottla.metadata import keys
from ottla.metadata.features import ELIGIBLE_LEADER_REPLICAS
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import DRAINED, Changed, Image
from ottla.metadata.model.brokers import NO_EPOCH, Broker, BrokerState, Endpoint
from ottla.metadata.model.partitions import Partition, Reassignment
from ottla.metadata.model.settings import Config, Feature
from ottla.metadata.model.topics import Tombstone, TopicIntent
from ottla.metadata.store import Change, Delete, Entry, Guard, Put, Revision, Write

T = UUID("12345678-1234-4321-8765-123456789abc")
NO_DEFAULTS: Mapping[str, str] = {}


class World:
    """A metadata store in memory, and the image that shows each write immediately."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.image = Image()
        self.changed = Changed()

    def write(self, guards: Sequence[Guard], writes: Sequence[Write]) -> bool:
        if not all(guard.holds(self.entries.get(guard.key)) for guard in guards):
            return False
        revision = self.image.revision + 1
        changes = []
        for write in writes:
            before = self.entries.get(write.key)
            if isinstance(write, Put):
                created = revision if before is None else before.create_revision
                self.entries[write.key] = Entry(write.key, write.value, revision, created)
                changes.append(Change(write.key, self.entries[write.key]))
            elif before is not None:
                del self.entries[write.key]
                changes.append(Change(write.key, None))
        self.image, changed = self.image.apply(Revision(revision, tuple(changes)))
        self.changed |= changed
        return True

    def put(self, key: str, value: Any) -> None:
        assert self.write([], [Put(key, value.encode())])

    def delete(self, key: str) -> None:
        assert self.write([], [Delete(key)])

    def broker(self, broker_id: int, state: BrokerState = BrokerState.RUNNING, previous_epoch: int = NO_EPOCH) -> None:
        endpoints = {"L": Endpoint("L", "h", 1)}
        self.put(keys.broker(broker_id), Broker(broker_id, 0, endpoints, state=state, previous_epoch=previous_epoch))

    def stop(self, broker_id: int) -> int:
        """Ends a registration; returns its epoch."""
        epoch: int = self.image.brokers[broker_id].epoch
        self.delete(keys.broker(broker_id))
        return epoch

    def restart(self, broker_id: int, *, clean: bool) -> None:
        """Ends a registration, and begins another one, before the controller acts."""
        epoch = self.stop(broker_id)
        self.broker(broker_id, previous_epoch=epoch if clean else NO_EPOCH)

    def keep_eligible_replicas(self) -> None:
        self.put(keys.feature(ELIGIBLE_LEADER_REPLICAS), Feature(1))

    def topic(self, assignments: Sequence[Sequence[int]], name: str = "t", topic_id: UUID = T) -> None:
        self.put(keys.topic(name), TopicIntent(name, topic_id, tuple(map(tuple, assignments))))

    def delete_topic(self, name: str = "t") -> None:
        intent = self.image.intents[name]
        holders = tuple(sorted({replica for replicas in intent.assignments for replica in replicas}))
        tombstone = Put(keys.tombstone(intent.id), Tombstone(intent.id, name, holders).encode())
        assert self.write([Guard(keys.topic(name), intent.revision)], [Delete(keys.topic(name)), tombstone])

    def reassign(self, target: Sequence[int] | None, index: int = 0) -> None:
        self.put(keys.reassignment(T, index), Reassignment(None if target is None else tuple(target)))

    def drain(self, *broker_ids: int) -> None:
        """Drains exactly these brokers: they are not to lead partitions."""
        self.put(keys.config(ConfigResource("broker", "")), Config({DRAINED: ",".join(map(str, broker_ids))}))

    def state(self, index: int = 0, **fields: Any) -> None:
        """Writes other fields into a partition's state, as another writer would."""
        self.put(keys.partition(T, index), replace(self.partition(index), **fields))

    def proposals(self, defaults: Mapping[str, str] = NO_DEFAULTS) -> list[Proposal]:
        return list(decide(self.image, whole_scope(self.image), defaults))

    def settle(self, defaults: Mapping[str, str] = NO_DEFAULTS) -> int:
        """Decides and applies the decisions until nothing is left to do; returns the number of rounds."""
        for rounds in range(20):
            proposals = self.proposals(defaults)
            if not proposals:
                return rounds
            for proposal in proposals:
                assert self.write(proposal.guards, proposal.writes)
        raise AssertionError("the controller doesn't finish")

    def partition(self, index: int = 0) -> Partition:
        partition = self.image.partition(T, index)
        assert partition is not None
        return partition

    def epochs(self, *brokers: int) -> tuple[int, ...]:
        return tuple(self.image.brokers[broker].epoch for broker in brokers)

    def copy(self) -> World:
        other = World()
        other.entries, other.image = dict(self.entries), self.image
        return other
