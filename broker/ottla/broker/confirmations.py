"""The port by which a partition's leader asks the coordinators of transactions.

A transaction begins in a partition with its first batch. Before the partition's leader appends that batch, the
transaction's coordinator must confirm that the transaction is open and has the partition. Otherwise a late batch of a
transaction that has ended could begin a transaction that nobody ends.

Source: KIP-890; Kafka's AddPartitionsToTxnManager.
"""

from __future__ import annotations

from typing import Protocol

from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import TopicPartition


class Confirmations(Protocol):
    """The coordinators of transactions, on this broker and on other brokers."""

    async def confirm(
        self, transactional_id: str, producer: Producer, partition: TopicPartition, *, adds: bool
    ) -> None:
        """Returns if the open transaction of `producer` has the partition. With `adds` the coordinator adds the
        partition to the transaction, because the client doesn't send a request for that.

        Raises KafkaError with an error of the transaction's coordinator, and NETWORK_EXCEPTION if its answer was lost.
        """
