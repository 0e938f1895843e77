"""Hands out producer ids in blocks, by compare-and-swap, and never hands out an id twice.

A reused id would make a new producer's records look like duplicates of an old producer's. So a block is given up if its
write has an unknown outcome, and the counter only grows.
"""

from __future__ import annotations

from . import keys
from .model.cluster import ProducerIds
from .store import Committed, Guard, Put, Store, UnknownOutcome

BLOCK_SIZE = 1000


async def allocate_block(store: Store) -> range:
    """The next block of producer ids, which only this caller gets. Raises StoreUnavailable."""
    present = ProducerIds(0)
    while True:
        wanted = ProducerIds(present.next_id + BLOCK_SIZE, format=present.format, unknown=present.unknown)
        guard = Guard(keys.producer_ids.key, present.revision)
        try:
            result = await store.transact([guard], [Put(keys.producer_ids.key, wanted.encode())])
        except UnknownOutcome:
            continue  # if the block was written, the next attempt is rejected, and the one after it takes another block
        if isinstance(result, Committed):
            return range(present.next_id, present.next_id + BLOCK_SIZE)
        entry = result.failed[keys.producer_ids.key]
        present = ProducerIds(0) if entry is None else ProducerIds.decode(entry)
