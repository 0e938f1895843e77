"""The markers of a decided transaction: which are missing, and what the answers of partitions' leaders mean. Pure.

A marker ends the transaction in one partition. When no marker is missing any more, the transaction is complete, and the
producer can begin the next one. A marker may be written twice, because an answer can get lost and because a new
coordinator sends all markers again. The partitions' leaders accept that.

A partition may know a later epoch of the producer than its coordinator does: the records of later transactions were
lost with the disks of all in-sync replicas of `__transaction_state`, and the partition's weren't. The coordinator has
forgotten those transactions, so it can't commit them. It fences the producer id for good: the partition gets an abort
in the last of all epochs, which ends whatever is open there, and the transactional id goes on with another producer id.
A coordinator that is merely late is told apart by the epoch of its own leadership, which the partition compares, too.

Source: Kafka's TransactionMarkerRequestCompletionHandler, which sends no more markers at INVALID_PRODUCER_EPOCH: the
transaction then never ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.protocol.errors import ErrorCode

from .metadata import TopicPartition, Transaction


class Verdict(Enum):
    """What follows from a leader's answer for one marker."""

    DONE = "the partition needs this marker no longer"
    AGAIN = "the marker is sent again, to the broker that leads the partition then"
    OVERTAKEN = "the partition knows a later epoch of the producer, and is sent a marker that fences the producer id"
    STOP = "no marker of the transaction is sent any more: a newer coordinator has taken over"


_VERDICTS: Mapping[ErrorCode, Verdict] = {
    ErrorCode.none: Verdict.DONE,
    ErrorCode.unsupported_version: Verdict.DONE,  # the partition can't have the transaction's records
    ErrorCode.unsupported_for_message_format: Verdict.DONE,
    ErrorCode.invalid_producer_epoch: Verdict.OVERTAKEN,
    ErrorCode.transaction_coordinator_fenced: Verdict.STOP,
}


def verdict(error: ErrorCode) -> Verdict:
    """What follows from the answer `error`. After an error that leaves open whether the partition still needs its
    marker, the marker is sent again."""
    return _VERDICTS.get(error, Verdict.AGAIN)


@dataclass(slots=True, eq=False)
class Markers:
    """The markers of one decided transaction. `missing` are the partitions whose leaders haven't confirmed the
    marker. `overtaken` are the partitions that know a later epoch of the producer. Two objects are equal only if they
    are the same object: a later transaction of the id has markers of its own."""

    transactional_id: str
    transaction: Transaction
    stopped: bool = False
    overtaken: set[TopicPartition] = field(default_factory=set)
    missing: set[TopicPartition] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.transaction.partitions)

    def answered(self, partition: TopicPartition, error: ErrorCode) -> Verdict:
        """Notes the leader's answer for `partition`."""
        found = verdict(error)
        if found is Verdict.DONE:
            self.missing.discard(partition)
        elif found is Verdict.OVERTAKEN:
            self.overtaken.add(partition)
        elif found is Verdict.STOP:
            self.stopped = True
        return found

    def gone(self, partition: TopicPartition) -> None:
        """Notes that the metadata lacks `partition`: its topic was deleted."""
        self.missing.discard(partition)
