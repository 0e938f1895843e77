"""Confirms in the metadata store that a broker has removed all data of deleted topics.

Deletions are confirmed one after the other, and not before this process has the node id: until then another process may
have the node id, and may still have the topic's logs. A topic's tombstone is removed when every broker has confirmed
the deletion.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from ottla.broker.tasks import Tasks
from ottla.metadata.intents.facade import Intents


class DeletionConfirmations:
    """The confirmations of one broker. Its owner runs `run` as a task once the broker is registered."""

    def __init__(self, broker_id: int, intents: Intents, tasks: Tasks) -> None:
        self._broker_id = broker_id
        self._intents = intents
        self._tasks = tasks
        self._removed: asyncio.Queue[UUID] = asyncio.Queue()

    def topic_removed(self, topic_id: UUID) -> None:
        """Called when this broker has no data of a deleted topic any more. A listener of the replicas."""
        self._removed.put_nowait(topic_id)

    async def run(self) -> None:
        """Confirms the deletions, until cancelled."""
        while True:
            topic_id = await self._removed.get()
            confirmation = self._intents.confirm_deletion(self._broker_id, topic_id)
            await asyncio.wait([self._tasks.spawn(confirmation, f"deletion of {topic_id}")])
