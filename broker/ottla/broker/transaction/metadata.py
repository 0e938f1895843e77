"""The state of one transactional id, and the changes that this state can undergo. Pure.

Each change makes another `Transaction`, which becomes one record of `__transaction_state`. The methods make the change
without asking whether it is allowed: the rules in `initialization`, `additions` and `ending` decide that.

Source: Kafka's TransactionMetadata and TxnTransitMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from .states import PREPARED, State

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 32_767  # of an int16; only coordinators use it, so that any producer's epoch can be raised once more
LAST_EPOCH_OF_PRODUCERS = EPOCH_MAX - 1
NEVER_TIMED_OUT_MS = 2**31 - 1  # the time-out of a transaction that another system commits (KIP-939)
V1, V2 = 0, 2  # the protocols of clients, as records state them


class TopicPartition(NamedTuple):
    """A partition that a transaction writes to."""

    topic: str
    partition: int


Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id: its producer id and epoch, and its present or latest transaction. Times are in ms since
    1970, NO_TIME where there is none.

    `previous_producer_id` is the producer id before the last change, and equal to `producer_id` in most cases.
    `next_producer_id` is the id that replaces `producer_id` as soon as the transaction has ended, because no epochs are
    left. `client_version` is the protocol (V1 or V2) of the client that added a partition or ended the transaction.
    `last_epoch` is the epoch with which the producer may repeat its InitProducerId; no record has it, so it is NO_EPOCH
    after a load.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    partitions: Partitions
    last_update_ms: int
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = V1
    last_epoch: int = NO_EPOCH

    @property
    def prepared(self) -> bool:
        """Whether the transaction is decided, and markers may be missing."""
        return self.state in PREPARED

    @property
    def commits(self) -> bool:
        """Whether the decision is to commit the transaction."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def epochs_used_up(self) -> bool:
        """Whether no epoch is left for another producer of this producer id."""
        return self.epoch >= LAST_EPOCH_OF_PRODUCERS

    @property
    def changes_producer_id(self) -> bool:
        """Whether the producer id is being replaced, or was replaced by the last change."""
        return self.next_producer_id != NO_PRODUCER_ID or self.previous_producer_id not in (
            NO_PRODUCER_ID,
            self.producer_id,
        )

    def overdue(self, now_ms: int) -> bool:
        """Whether the transaction is open for longer than its time-out."""
        return (
            self.state is State.ONGOING
            and self.timeout_ms != NEVER_TIMED_OUT_MS
            and self.start_ms + self.timeout_ms < now_ms
        )

    # --- InitProducerId ---

    def initialized(self, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        """The state in which the producer begins anew in `epoch`, with the same producer id."""
        return replace(
            self,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=State.EMPTY,
            partitions=NO_PARTITIONS,
            last_update_ms=now_ms,
            start_ms=NO_TIME,
            previous_producer_id=self.producer_id,
        )

    def initialized_again(self, timeout_ms: int, now_ms: int) -> Transaction:
        """The state of `initialized`, for a producer that repeats its request because the answer was lost. The producer
        can repeat the request once more."""
        begun = self.initialized(self.epoch, self.last_epoch, timeout_ms, now_ms)
        return replace(begun, previous_producer_id=self.previous_producer_id)

    def rotated(self, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        """The state in which the producer begins anew with another producer id, in epoch 0."""
        begun = self.initialized(0, last_epoch, timeout_ms, now_ms)
        return replace(begun, producer_id=producer_id)

    # --- a transaction ---

    def with_partitions(self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """The state after `partitions` were added. The first partitions of a transaction begin it."""
        return replace(
            self,
            state=State.ONGOING,
            partitions=self.partitions.union(partitions),
            last_update_ms=now_ms,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            client_version=client_version,
            previous_producer_id=self.producer_id,
        )

    def ended_v1(self, commit: bool, now_ms: int) -> Transaction:
        """The state after a client of V1 has decided the transaction; the epoch stays."""
        return self._ended(commit, self.epoch, self.last_epoch, V1, now_ms)

    def ended_v2(self, commit: bool, now_ms: int, next_producer_id: int = NO_PRODUCER_ID) -> Transaction:
        """The state after the transaction was decided by V2. The state has the producer's next epoch already. If the
        epochs are used up, `next_producer_id` is a producer id that was never used before."""
        ended = self._ended(commit, min(self.epoch + 1, EPOCH_MAX), self.epoch, V2, now_ms)
        start_ms = self.start_ms if self.state is State.ONGOING else now_ms  # an abort without any partition
        return replace(ended, next_producer_id=next_producer_id, start_ms=start_ms)

    def fenced_v1(self, now_ms: int) -> Transaction:
        """The state after the coordinator itself has aborted the transaction and fenced the producer: the epoch is
        raised, and no later request of the producer counts as a repeat."""
        return self._ended(False, min(self.epoch + 1, EPOCH_MAX), NO_EPOCH, V1, now_ms)

    def completed(self, now_ms: int, fenced: bool = False) -> Transaction:
        """The state after all markers were written. If a marker has fenced the producer id for good (`fenced`), no
        epoch is left, and the next producer gets another id."""
        other_id = self.client_version >= V2 and self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            producer_id=self.next_producer_id if other_id else self.producer_id,
            epoch=0 if other_id else EPOCH_MAX if fenced else self.epoch,
            last_epoch=NO_EPOCH if fenced else self.last_epoch,
            state=State.COMPLETE_COMMIT if self.commits else State.COMPLETE_ABORT,
            partitions=NO_PARTITIONS,
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def _ended(self, commit: bool, epoch: int, last_epoch: int, client_version: int, now_ms: int) -> Transaction:
        return replace(
            self,
            epoch=epoch,
            last_epoch=last_epoch,
            state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
            last_update_ms=now_ms,
            client_version=client_version,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )


def created(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A transactional id that is seen for the first time, with a producer id that was never used before."""
    return Transaction(
        producer_id,
        0,
        timeout_ms,
        State.EMPTY,
        NO_PARTITIONS,
        now_ms,
        previous_producer_id=producer_id,
    )
