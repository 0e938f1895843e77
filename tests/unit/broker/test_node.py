"""A broker's stop, with its parts replaced."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from ottla.broker import node


def test_a_stop_closes_the_logs_although_the_store_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk under the metadata file: each try has an unknown outcome, and there is always another try."""

    async def tries_for_ever(state: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(node, "_ANNOUNCING_S", 0.05)
    broker = node.Broker.__new__(node.Broker)
    for part in ("groups", "internal_topics", "server", "replication", "monitoring", "_registration"):
        setattr(broker, part, AsyncMock())
    for part in ("moves", "logs", "replicas"):
        setattr(broker, part, Mock())
    broker._registration.change = tries_for_ever  # type: ignore[union-attr, method-assign, assignment]
    broker._tasks = set()
    broker._keeping_alive = None

    async def stop() -> None:
        await asyncio.wait_for(broker.stop(), 5)

    asyncio.run(stop())
    broker.logs.close.assert_called_once()  # type: ignore[attr-defined]
    assert "draining couldn't be announced: the metadata store didn't take it within" in caplog.text
