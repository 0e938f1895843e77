"""A broker's end: its stop, and the events after which it stops by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock, Mock

from ottla.broker.node import Broker
from ottla.metadata.registration import NodeIdTaken
from ottla.metadata.store import ForeignStore, StoreUnavailable
from ottla.settings.config import BrokerConfig


def play(folder: Path, scene: Callable[[Broker], Awaitable[None]]) -> None:
    """Runs the coroutine function `scene` with a broker that wasn't started."""

    async def main() -> None:
        async with asyncio.timeout(10):
            await scene(Broker(BrokerConfig.from_sources(f"node.id=0\nlog.dirs={folder}"), Mock()))

    asyncio.run(main())


def registered() -> Mock:
    """A membership of a registered broker whose store takes no writes."""
    refuses = AsyncMock(side_effect=StoreUnavailable("no room"))
    return Mock(registered=True, keeping=None, announce_draining=refuses, end=AsyncMock())


def test_a_stop_closes_the_logs_although_the_store_takes_nothing(tmp_path: Path) -> None:
    async def scene(broker: Broker) -> None:
        broker.membership, broker.logs = membership, logs = registered(), Mock()
        await broker.stop()
        membership.announce_draining.assert_awaited_once()
        logs.close.assert_called_once()
        membership.end.assert_awaited_once_with(withdrawn=True)

    play(tmp_path, scene)


def test_a_broker_without_a_log_directory_left_ends(tmp_path: Path) -> None:
    async def scene(broker: Broker) -> None:
        broker.logs.owner.none_left()
        assert broker.tasks.failed.is_set()

    play(tmp_path, scene)


def test_a_broker_hands_nothing_over_on_the_store_or_under_the_id_of_others(tmp_path: Path) -> None:
    async def ends(error: Exception) -> None:
        raise error

    async def scene(broker: Broker, error: Exception) -> None:
        broker.membership = membership = registered()
        broker.readiness.serving = True
        await asyncio.wait([broker.spawn(ends(error), vital=True)])
        await asyncio.sleep(0)
        assert broker.tasks.failed.is_set()
        assert not broker.readiness.serving
        await broker.stop()
        membership.announce_draining.assert_not_awaited()
        membership.end.assert_awaited_once_with(withdrawn=isinstance(error, NodeIdTaken))

    for error in (ForeignStore("another store"), NodeIdTaken("another process")):
        play(tmp_path / type(error).__name__, lambda broker, error=error: scene(broker, error))  # type: ignore[misc]
