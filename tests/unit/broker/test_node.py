"""A broker's stop, with its parts replaced by mocks."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import pytest

from ottla.broker import node
from ottla.metadata.image import Image
from ottla.settings.config import BrokerConfig


def broker_of_mocks(image: Image) -> node.Broker:
    broker = node.Broker.__new__(node.Broker)
    for part in ("groups", "internal_topics", "server", "replication", "monitoring", "_registration"):
        setattr(broker, part, AsyncMock())
    for part in ("isr_changes", "moves", "logs", "replicas", "inspectors"):
        setattr(broker, part, Mock())
    broker.id = 0
    broker.follower = Mock(image=image)
    broker.store = Mock(refusal=None)
    broker.replaced = None
    broker._tasks = set()
    broker._keeping_alive = None
    return broker


def stop(broker: node.Broker) -> None:
    async def run() -> None:
        await asyncio.wait_for(broker.stop(), 5)

    asyncio.run(run())


def test_a_stop_closes_the_logs_although_the_store_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a full disk under the metadata file: each try has an unknown outcome, and is followed by another try."""

    async def tries_for_ever(state: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(node, "_ANNOUNCING_S", 0.05)
    broker = broker_of_mocks(Image())
    broker._registration.change = tries_for_ever  # type: ignore[union-attr, method-assign, assignment]
    stop(broker)
    broker.logs.close.assert_called_once()  # type: ignore[attr-defined]
    assert "draining couldn't be announced: the metadata store didn't take it within" in caplog.text


def image_of(*partitions: tuple[int, tuple[int, ...]], restored: bool = False) -> Any:
    """Partitions as (leader, ISR); brokers 0 and 1 are running."""
    states = {
        index: SimpleNamespace(leader=leader, isr=isr, restored=restored)
        for index, (leader, isr) in enumerate(partitions)
    }
    brokers = {id: SimpleNamespace(id=id, electable=id != 2) for id in (0, 1, 2)}
    return SimpleNamespace(brokers=brokers, partitions={UUID(int=1): states})


@pytest.mark.parametrize("led", [0, 3])
def test_who_hands_leaderships_over_answers_for_a_while_longer(monkeypatch: pytest.MonkeyPatch, led: int) -> None:
    monkeypatch.setattr(node, "_LINGERING_S", 0.2)
    broker = broker_of_mocks(image_of((1, (0, 1)), (0, (0,)), *[(0, (0, 1))] * led))
    broker.follower.wait = AsyncMock()  # type: ignore[method-assign]
    handed_over: list[float] = []
    closed: list[float] = []
    broker.follower.wait.side_effect = lambda *_: handed_over.append(time.monotonic())
    broker.server.close.side_effect = lambda: closed.append(time.monotonic())  # type: ignore[attr-defined]
    stop(broker)
    assert (closed[0] - handed_over[0] > 0.15) == bool(led)


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        ((0, (0, 1)), True),  # another one can lead
        ((1, (1, 0)), True),  # the partition's leader would wait for this broker's fetches
        ((1, (1,)), False),
        ((0, (0,)), False),  # no other broker has all records
        ((0, (0, 2)), False),  # no running broker has all records
    ],
)
def test_a_stop_waits_for_what_others_can_do_without_it(state: tuple[int, tuple[int, ...]], waits: bool) -> None:
    image = image_of(state)
    broker = broker_of_mocks(image)
    broker.follower.wait = AsyncMock()  # type: ignore[method-assign]
    stop(broker)
    (find, _), _ = broker.follower.wait.call_args
    assert (find(image) is None) == waits
    assert find(image_of(state, restored=True)), "no broker is removed from an ISR of a backup"


def broker_in(folder: Path) -> node.Broker:
    """A broker that wasn't started; to be called on the event loop."""
    return node.Broker(BrokerConfig.from_sources(f"node.id=0\nlog.dirs={folder}"), Mock())


def test_a_broker_without_a_log_directory_left_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = broker_in(tmp_path)
        broker.logs.owner.none_left()
        assert broker.failed.is_set()

    asyncio.run(scene())


def test_a_deletion_is_confirmed_only_by_who_has_the_node_id(tmp_path: Path) -> None:
    """Earlier, a second process with the same node id confirmed deletions for the first one before it was refused."""

    async def scene() -> None:
        broker = broker_in(tmp_path)
        confirmed = broker.intents.confirm_deletion = AsyncMock()  # type: ignore[method-assign]
        broker.replicas._listeners.topic_removed(UUID(int=7))
        await asyncio.sleep(0)
        confirmed.assert_not_awaited()
        duty = asyncio.create_task(broker._confirm_deletions())
        await asyncio.sleep(0.01)
        duty.cancel()
        confirmed.assert_awaited_once_with(0, UUID(int=7))

    asyncio.run(scene())
