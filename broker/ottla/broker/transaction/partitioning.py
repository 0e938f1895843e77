"""The internal topic of transactions, and the partition of it that has the state of a transactional id. Pure."""

from __future__ import annotations

from ottla.protocol.java_hash import partition_of

TRANSACTIONS_TOPIC = "__transaction_state"


def partition_for(transactional_id: str, partition_count: int) -> int:
    """The partition whose leader coordinates the transactions of `transactional_id`. The partition count of
    `__transaction_state` must never change, because nearly all ids would belong to other partitions then."""
    return partition_of(transactional_id, partition_count)
