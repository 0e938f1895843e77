"""The guards of transactions that are about to begin in a partition. Pure.

A transaction begins in a partition with its first batch. Before the leader appends that batch, the transaction's
coordinator must confirm that the transaction is open and has the partition: otherwise the batch of a transaction that
has ended could begin a transaction that nobody ends. While the leader asks, the transaction may end: its marker is
appended here, and the answer is out of date. So each question has a *guard*, an object that is compared by its identity
only:

1. The leader takes the guard (`ask`), asks the coordinator, and appends the batch only if the guard is still the
   partition's guard of this producer (`is_current`).
2. Each append of the producer, data or marker, drops the guard. Later questions get another one.
3. A producer of protocol version 2 gets a new epoch with each transaction, and the marker of a transaction already has
   the next transaction's epoch. Such a marker keeps the guard of that next transaction.
4. A question for a newer epoch gets another guard, because the older epoch is fenced.

Guards are in memory only, and a leader that resigns drops them: the next leader asks the coordinators anew.

Source: Kafka's VerificationGuard, VerificationStateEntry and ProducerStateManager (KIP-890).
"""

from __future__ import annotations

from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError


class Guard:
    """A question to a coordinator, compared by identity."""

    __slots__ = ()


NOT_NEEDED = Guard()
"""Stands for the guard of a batch that continues a transaction: such a batch needs no coordinator's confirmation. This
guard is never current."""


class _Asked:
    """The questions for one producer that have the same guard. `bumps` says whether the producer gets a new epoch with
    each transaction. `first_sequence` is the lowest base sequence of the batches that wait for the answer."""

    __slots__ = ("asked_ms", "bumps", "epoch", "first_sequence", "guard")

    def __init__(self, epoch: int, first_sequence: int, bumps: bool, asked_ms: int) -> None:
        self.guard = Guard()
        self.epoch = epoch
        self.first_sequence = first_sequence
        self.bumps = bumps
        self.asked_ms = asked_ms


class Verifications:
    """The guards of one partition, by producer id, in the order in which they were made."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def ask(
        self, producer_id: int, epoch: int, first_sequence: int, *, bumps: bool, now_ms: int, expiration_ms: int
    ) -> Guard:
        """The guard for a batch that begins a transaction. If a batch of a newer epoch has asked before, the returned
        guard is never current. Guards older than `expiration_ms` are dropped, because their batches won't come any
        more."""
        asked = self._asked.get(producer_id)
        if asked is None or epoch > asked.epoch:
            self._asked.pop(producer_id, None)
            asked = self._asked[producer_id] = _Asked(epoch, first_sequence, bumps, now_ms)
            self._expire(now_ms, expiration_ms)
        elif epoch < asked.epoch:
            return Guard()
        asked.first_sequence = min(asked.first_sequence, first_sequence)
        return asked.guard

    def _expire(self, now_ms: int, expiration_ms: int) -> None:
        while self._asked:
            oldest = next(iter(self._asked))
            if now_ms - self._asked[oldest].asked_ms < expiration_ms:
                return
            del self._asked[oldest]

    def is_current(self, producer_id: int, guard: Guard | None) -> bool:
        """Whether nothing of this producer was appended since `guard` was taken."""
        asked = self._asked.get(producer_id)
        return guard is not None and asked is not None and asked.guard is guard

    def check_sequence(self, header: BatchHeader, known: bool) -> None:
        """Checks a client's batch that begins a transaction; `known` says whether the partition knows the
        batch's producer.

        Raises KafkaError OUT_OF_ORDER_SEQUENCE_NUMBER where another batch comes first, so that the client sends this
        batch again."""
        asked = self._asked.get(header.producer_id)
        if asked is None:
            return
        sequence = header.base_sequence
        if sequence > asked.first_sequence or (asked.bumps and sequence != 0 and not known):
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id}'s transaction can't begin with sequence {sequence} in this partition",
            )

    def appended(self, header: BatchHeader) -> None:
        """Notes an append of a producer: a transactional batch, or a marker."""
        asked = self._asked.get(header.producer_id)
        if asked is None or (header.is_control and asked.bumps and asked.epoch == header.producer_epoch):
            return
        del self._asked[header.producer_id]

    def clear(self) -> None:
        """Drops all guards."""
        self._asked.clear()
