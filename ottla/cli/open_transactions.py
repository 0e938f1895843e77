"""Open transactions in partitions, and which of them hang because no coordinator will end them. Pure.

A transaction is open in a partition from its first record to its marker. The partition's last stable offset stays at
or before that record, so that consumers which read only committed records get nothing behind it. The coordinator of the
transaction writes the marker, at the latest after the transaction's time-out. A transaction hangs in a partition if no
coordinator counts the partition among those in which it still has to write a marker.

The leader of a partition and a coordinator are asked one after the other, and a transaction may end in between. So a
transaction hangs only if the partition's leader still shows it as open after the coordinators have been asked: the
coordinator takes a partition off the transaction's list only after the marker has been written.

Source: KIP-664, Kafka's TransactionsCommand (FindHangingTransactionsCommand), which asks the leader only once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

Partition = tuple[str, int]


class OpenTransaction(NamedTuple):
    """A transaction that is open in one partition, as the partition's leader describes it. `last_timestamp` is the
    timestamp of the producer's last batch there, in ms; `coordinator_epoch` is -1 before the producer's first marker
    there."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int

    @property
    def name(self) -> str:
        """The partition as a user writes it on the command line: `topic:partition`."""
        return f"{self.topic}:{self.partition}"

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """What stays the same as long as the transaction is open."""
        return self[:4]


class Coordinated(NamedTuple):
    """A transactional id as its coordinator describes it. `partitions` are those in which the transaction still needs a
    marker."""

    transactional_id: str
    state: str
    partitions: Collection[Partition]


def open_transactions(producers: Mapping[Any, Iterable[Any]]) -> list[OpenTransaction]:
    """The open transactions among the producers of each partition, in the order of partitions and offsets. The
    producers have the fields of kafka-python's ProducerState."""
    return sorted(
        OpenTransaction(
            topic,
            partition,
            producer.current_transaction_start_offset,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.last_timestamp,
        )
        for (topic, partition), active in producers.items()
        for producer in active
        if producer.current_transaction_start_offset >= 0
    )


def written_before(transactions: Iterable[OpenTransaction], moment_ms: int) -> list[OpenTransaction]:
    """Those transactions whose producer has written nothing to the partition since `moment_ms`."""
    return [one for one in transactions if one.last_timestamp <= moment_ms]


def coordinated_by(one: OpenTransaction, coordinated: Mapping[int, Coordinated]) -> Coordinated | None:
    """The transactional id whose coordinator will end the transaction in this partition; None if the transaction hangs.
    `coordinated` has the transactional ids that coordinators know, by producer id."""
    known = coordinated.get(one.producer_id)
    return known if known is not None and (one.topic, one.partition) in known.partitions else None


def hanging(
    before: Iterable[OpenTransaction], coordinated: Mapping[int, Coordinated], after: Iterable[OpenTransaction]
) -> list[OpenTransaction]:
    """The transactions that hang, as they are in `after`: `before` and `after` are the partitions' open transactions
    before and after the coordinators were asked for `coordinated`."""
    suspects = {one.identity for one in before if coordinated_by(one, coordinated) is None}
    return [one for one in after if one.identity in suspects]
