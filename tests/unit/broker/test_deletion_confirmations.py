"""Deletions are confirmed by the process that has the node id."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock
from uuid import UUID

from ottla.broker.deletion_confirmations import DeletionConfirmations
from ottla.broker.tasks import Tasks


def test_a_deletion_is_confirmed_only_by_who_has_the_node_id() -> None:
    """Before the fix, a second process with the same node id confirmed deletions in the first one's place before it was
    refused.
    """

    async def scene() -> None:
        tasks = Tasks(Mock())
        confirmed = AsyncMock()
        confirmations = DeletionConfirmations(0, Mock(confirm_deletion=confirmed), tasks)
        confirmations.topic_removed(UUID(int=7))
        await asyncio.sleep(0)
        confirmed.assert_not_awaited()
        tasks.spawn(confirmations.run())
        await asyncio.sleep(0.01)
        confirmed.assert_awaited_once_with(0, UUID(int=7))
        await tasks.cancel()

    asyncio.run(scene())


def test_a_confirmation_that_fails_does_not_hold_up_the_next_one() -> None:
    async def scene() -> None:
        tasks = Tasks(Mock())
        confirmed = AsyncMock(side_effect=[ValueError("a bug"), None])
        confirmations = DeletionConfirmations(0, Mock(confirm_deletion=confirmed), tasks)
        for number in (7, 8):
            confirmations.topic_removed(UUID(int=number))
        tasks.spawn(confirmations.run())
        await asyncio.sleep(0.01)
        assert [call.args[1].int for call in confirmed.await_args_list] == [7, 8]
        await tasks.cancel()

    asyncio.run(scene())
