"""A starting process waits for its metadata store, and says why."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ottla.metadata.patience import GivenUp, Patience
from ottla.metadata.store import AccessRefused, ForeignStore, StoreUnavailable, UnknownOutcome


class Away:
    """A store that doesn't answer the first `times` reads."""

    def __init__(self, times: int, reason: Exception | None = None) -> None:
        self.left = times
        self.reason = reason or StoreUnavailable("etcdserver: no leader")

    async def read(self, prefix: str = "") -> str:
        """The first `times` reads raise the reason; later ones return a text."""
        if self.left:
            self.left -= 1
            raise self.reason
        return "all keys"


def answer(store: Any, patience_s: float, stopped: bool = False) -> Any:
    async def ask() -> Any:
        stopping = asyncio.Event()
        if stopped:
            asyncio.get_running_loop().call_later(0.05, stopping.set)
        return await Patience(patience_s, stopping).answer(store.read)

    return asyncio.run(ask())


def test_it_waits_until_the_store_answers_and_says_once_for_what(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = Away(4)
    assert answer(store, 60) == "all keys"
    assert store.left == 0
    first, last = caplog.messages
    assert "waits for the metadata store" in first
    assert "no leader" in first
    assert last == "the metadata store answers"


def test_a_store_that_answers_at_once_isnt_talked_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert answer(Away(0), 0) == "all keys"
    assert not caplog.messages


def test_a_question_with_an_unknown_outcome_is_asked_again() -> None:
    assert answer(Away(2, UnknownOutcome("no answer came")), 60) == "all keys"


def test_its_patience_ends_with_the_reason() -> None:
    with pytest.raises(StoreUnavailable, match="no leader"):
        answer(Away(10**6), 0.3)


@pytest.mark.parametrize(
    "reason", [AccessRefused("etcd refuses the login of user broker"), ForeignStore("another cluster's")]
)
def test_what_no_waiting_mends_is_told_at_once(reason: Exception) -> None:
    store = Away(10**6, reason)
    with pytest.raises(type(reason)):
        answer(store, 60)
    assert store.left == 10**6 - 1


def test_a_signal_ends_the_wait() -> None:
    with pytest.raises(GivenUp):
        answer(Away(10**6), 3600, stopped=True)
