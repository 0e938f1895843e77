"""A stopping broker waits until other brokers lead its partitions, as far as they can, and for no longer than its
time-out.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import pytest

from ottla.broker import hand_over as module
from ottla.broker.hand_over import hand_over
from ottla.metadata.image import Image


def image_of(*partitions: tuple[int, tuple[int, ...]], restored: bool = False) -> Any:
    """An image with these partitions, each given as (leader, ISR). Brokers 0 and 1 may become leaders, broker 2 may
    not.
    """
    states = {
        index: SimpleNamespace(leader=leader, isr=isr, restored=restored)
        for index, (leader, isr) in enumerate(partitions)
    }
    brokers = {id: SimpleNamespace(id=id, electable=id != 2) for id in (0, 1, 2)}
    return SimpleNamespace(brokers=brokers, partitions={UUID(int=1): states})


def handed_over(image: Any, announce: Any = None) -> Any:
    """Lets broker 0 hand over the partitions that it leads in the image. Returns a mock of the metadata's follower."""
    follower = Mock(image=image, wait=AsyncMock())

    async def run() -> None:
        await asyncio.wait_for(hand_over(0, follower, announce or AsyncMock()), 5)

    asyncio.run(run())
    return follower


def test_a_store_that_takes_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try to announce the draining has an unknown outcome, as with a full disk under the metadata file. Without a
    limit the tries would never end.
    """

    async def tries_for_ever() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "_ANNOUNCING_S", 0.05)
    handed_over(Image(), tries_for_ever).wait.assert_not_called()
    assert "the broker couldn't announce that it drains: the metadata store didn't answer within" in caplog.text


@pytest.mark.parametrize("led", [0, 3])
def test_who_hands_leaderships_over_lingers(monkeypatch: pytest.MonkeyPatch, led: int) -> None:
    monkeypatch.setattr(module, "_LINGERING_S", 0.2)
    began = time.monotonic()
    handed_over(image_of((1, (0, 1)), (0, (0,)), *[(0, (0, 1))] * led))
    assert (time.monotonic() - began > 0.15) == bool(led)


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        ((0, (0, 1)), True),  # broker 1 can lead
        ((1, (1, 0)), True),  # its leader would wait for this broker's fetches
        ((1, (1,)), False),
        ((0, (0,)), False),  # no other broker has all records
        ((0, (0, 2)), False),  # no other running broker has all records
    ],
)
def test_a_stop_waits_for_what_others_can_do_without_it(
    monkeypatch: pytest.MonkeyPatch, state: tuple[int, tuple[int, ...]], waits: bool
) -> None:
    monkeypatch.setattr(module, "_LINGERING_S", 0.0)
    image = image_of(state)
    (find, _), _ = handed_over(image).wait.call_args
    assert (find(image) is None) == waits
    assert find(image_of(state, restored=True)), "a partition restored from a backup isn't waited for"


def test_a_stop_says_how_much_nobody_took_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LINGERING_S", 0.0)
    follower = Mock(image=image_of((0, (0, 1)), (0, (0, 1)), (1, (0, 1))), wait=AsyncMock(side_effect=TimeoutError))
    asyncio.run(hand_over(0, follower, AsyncMock()))
    assert "the broker stops, although it still leads 2 partitions that other brokers could lead" in caplog.text
