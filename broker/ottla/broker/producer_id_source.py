"""Hands out producer ids to idempotent producers, from blocks that belong to this broker alone."""

from __future__ import annotations

import asyncio

from ottla.metadata.producer_ids import allocate_block
from ottla.metadata.store import Store, StoreUnavailable
from ottla.protocol.errors import ErrorCode, KafkaError


class ProducerIdSource:
    """Hands out producer ids one by one; when a block is used up, a new one is taken from the metadata store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._block: range = range(0)
        self._position = 0
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that was never handed out before. Raises KafkaError COORDINATOR_NOT_AVAILABLE, on which clients
        repeat the request."""
        while self._position >= len(self._block):
            async with self._allocating:
                if self._position >= len(self._block):
                    try:
                        self._block = await allocate_block(self._store)
                    except StoreUnavailable as error:
                        raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error
                    self._position = 0
        self._position += 1
        return self._block[self._position - 1]
