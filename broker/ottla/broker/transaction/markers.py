"""The markers of a decided transaction: which are missing, and what the answers of partitions' leaders mean. Pure.

A marker ends the transaction in one partition. When no marker is missing any more, the transaction is complete, and the
producer can begin the next one. A marker may be written twice, because an answer can get lost and because a new
coordinator sends all markers again. The partitions' leaders accept that.

Source: Kafka's TransactionMarkerRequestCompletionHandler.
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
    STOP = "no marker of the transaction is sent any more: a newer producer epoch or coordinator has taken over"


_VERDICTS: Mapping[ErrorCode, Verdict] = {
    ErrorCode.none: Verdict.DONE,
    ErrorCode.unsupported_version: Verdict.DONE,  # the partition can't have the transaction's records
    ErrorCode.unsupported_for_message_format: Verdict.DONE,
    ErrorCode.invalid_producer_epoch: Verdict.STOP,
    ErrorCode.transaction_coordinator_fenced: Verdict.STOP,
}


def verdict(error: ErrorCode) -> Verdict:
    """What follows from the answer `error`. After an error that leaves open whether the partition still needs its
    marker, the marker is sent again."""
    return _VERDICTS.get(error, Verdict.AGAIN)


@dataclass(slots=True, eq=False)
class Markers:
    """The markers of one decided transaction. `missing` are the partitions whose leaders haven't confirmed the
    marker. Two objects are equal only if they are the same object: a later transaction of the id has markers of its
    own."""

    transactional_id: str
    transaction: Transaction
    stopped: bool = False
    missing: set[TopicPartition] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.transaction.partitions)

    def answered(self, partition: TopicPartition, error: ErrorCode) -> Verdict:
        """Notes the leader's answer for `partition`."""
        found = verdict(error)
        if found is Verdict.DONE:
            self.missing.discard(partition)
        elif found is Verdict.STOP:
            self.stopped = True
        return found

    def gone(self, partition: TopicPartition) -> None:
        """Notes that the metadata lacks `partition`: its topic was deleted."""
        self.missing.discard(partition)
