"""A process that starts waits for its metadata store, and says why."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ottla.metadata.patience import store_answers
from ottla.metadata.store import AccessRefused, StoreUnavailable


class Away:
    """A store that doesn't answer the first `times` reads."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def read(self, prefix: str = "") -> None:
        """As `Store.read`."""
        if self.left:
            self.left -= 1
            raise StoreUnavailable("etcdserver: no leader")


def answers(store: Any, patience_s: float, stopped: bool = False) -> bool:
    async def ask() -> bool:
        stopping = asyncio.Event()
        if stopped:
            asyncio.get_running_loop().call_later(0.05, stopping.set)
        return await store_answers(store, patience_s, stopping)

    return asyncio.run(ask())


def test_it_waits_until_the_store_answers_and_says_once_for_what(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = Away(4)
    assert answers(store, 60)
    assert store.left == 0
    first, last = caplog.messages
    assert "waits for the metadata store" in first
    assert "no leader" in first
    assert last == "the metadata store answers"


def test_a_store_that_answers_at_once_isnt_talked_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert answers(Away(0), 0)
    assert not caplog.messages


def test_its_patience_ends_with_the_reason() -> None:
    with pytest.raises(StoreUnavailable, match="no leader"):
        answers(Away(10**6), 0.3)


def test_who_isnt_let_in_is_told_at_once() -> None:
    class Guarded:
        async def read(self, prefix: str = "") -> None:
            raise AccessRefused("etcd doesn't let in broker")

    with pytest.raises(AccessRefused, match="doesn't let in"):
        answers(Guarded(), 60)


def test_a_signal_ends_the_wait() -> None:
    assert not answers(Away(10**6), 3600, stopped=True)
