"""The states of partitions, and administrators' requests for elections and moves of replicas. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

from ottla.metadata.identities import BY_PARTITION
from ottla.metadata.store import Entry

from .brokers import NO_EPOCH
from .value import NOTHING_UNKNOWN, Value

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Partition(Value):
    """The state of a partition.

    `isr_epochs[i]` is the registration epoch under which the broker `isr[i]` was admitted to the ISR. If that broker
    has registered anew since, its replica doesn't count as in sync. A broker leads only if `leads` is true for its
    present registration epoch.

    `elr` are the eligible leader replicas (KIP-966, see `eligibility.py`), `elr_epochs[i]` the registration epoch under
    which `elr[i]` was last known to have every committed record. During a reassignment (KIP-455), `original`
    are the replicas from before the reassignment, and `replicas` are the replicas of the target followed by `removing`.
    `adding` are the replicas of the target that aren't in `original`.

    A `restored` state comes from a backup, so its ISR may be long outdated, or from the adoption of Apache Kafka's log
    directories, which don't name the ISR. The leader of such a partition is elected by the ends of the replicas' logs,
    not by the ISR.
    """

    topic_id: UUID
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    isr_epochs: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    recovering: bool = False  # an unclean election chose the leader, and it hasn't recovered its log yet
    elr_epochs: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    restored: bool = False
    revision: int = 0

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment of the partition's replicas is under way."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that the partition will have when its reassignment, if there is one, is complete."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def leads(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker is the leader in this state, and is in the ISR under the registration epoch
        `broker_epoch`."""
        return self.leader == broker_id and self.epoch_in_isr(broker_id) == broker_epoch

    def epoch_in_isr(self, broker_id: int) -> int:
        """The registration epoch under which the broker is in the ISR, or NO_EPOCH."""
        for member, epoch in zip(self.isr, self.isr_epochs, strict=True):
            if member == broker_id:
                return epoch
        return NO_EPOCH

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "replicas": self.replicas,
            "isr": self.isr,
            "isr_epochs": self.isr_epochs,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "partition_epoch": self.partition_epoch,
        }
        for name in ("adding", "removing", "elr", "last_known_elr", "recovering", "elr_epochs", "original", "restored"):
            if value := getattr(self, name):
                fields[name] = value
        return fields

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        topic_id, index = BY_PARTITION.of(entry.key)
        pop = document.pop
        return cls(
            topic_id,
            index,
            tuple(pop("replicas")),
            tuple(pop("isr")),
            tuple(pop("isr_epochs")),
            pop("leader"),
            pop("leader_epoch"),
            pop("partition_epoch"),
            tuple(pop("adding", ())),
            tuple(pop("removing", ())),
            tuple(pop("elr", ())),
            tuple(pop("last_known_elr", ())),
            pop("recovering", False),
            tuple(pop("elr_epochs", ())),
            tuple(pop("original", ())),
            pop("restored", False),
            entry.mod_revision,
            format=version,
            unknown=document or NOTHING_UNKNOWN,
        )


def with_isr(partition: Partition, isr: tuple[int, ...], isr_epochs: tuple[int, ...]) -> Partition:
    """The partition with another ISR under the same leader: only the partition epoch grows."""
    return replace(partition, isr=isr, isr_epochs=isr_epochs, partition_epoch=partition.partition_epoch + 1)


@dataclass(frozen=True, slots=True)
class Election(Value):
    """A request to elect a partition's preferred replica, or (`unclean`) any live replica, as the leader."""

    unclean: bool = False
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"unclean": self.unclean}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("unclean", False), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Reassignment(Value):
    """A request to move a partition to the replicas `target`, or (None) to cancel its present move."""

    target: tuple[int, ...] | None
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"target": self.target}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        target = document.pop("target")
        return cls(None if target is None else tuple(target), entry.mod_revision, format=version, unknown=document)
