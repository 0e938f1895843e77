"""Producer ids, handed out in blocks by compare-and-swap and never twice.

A reused id would make a new producer's records look like an old one's duplicates, so a block whose write has an unknown
outcome is given up, and the counter only grows.
"""

from __future__ import annotations

from . import keys
from .model import ProducerIds
from .store import Committed, Guard, Put, Store, UnknownOutcome

BLOCK_SIZE = 1000


async def allocate_block(store: Store) -> range:
    """The next block of producer ids, for the caller alone. Raises StoreUnavailable."""
    present = ProducerIds(0)
    while True:
        wanted = ProducerIds(present.next_id + BLOCK_SIZE, format=present.format, unknown=present.unknown)
        guard = Guard(keys.PRODUCER_IDS, present.revision)
        try:
            result = await store.transact([guard], [Put(keys.PRODUCER_IDS, wanted.encode())])
        except UnknownOutcome:
            continue  # if it happened, the next try is rejected, and takes the block after
        if isinstance(result, Committed):
            return range(present.next_id, present.next_id + BLOCK_SIZE)
        entry = result.failed[keys.PRODUCER_IDS]
        present = ProducerIds(0) if entry is None else ProducerIds.decode(entry)
