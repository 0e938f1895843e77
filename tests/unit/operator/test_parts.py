"""The table of a reconcile's parts: which parts are carried out and which aren't, and what is reported about each."""

from __future__ import annotations

import asyncio

import pytest

from ottla.operator.parts import ALL_S_MAX, NotYet, Part, carry_out, checked
from ottla.operator.queue import Retry
from ottla.operator.status import Trouble


def _part(name: str, *needs: str, raises: BaseException | None = None, reads: bool = False) -> Part[list[str]]:
    async def does(done: list[str]) -> None:
        if raises is not None:
            raise raises
        done.append(name)

    return Part(name, does, needs, reads=reads)


def _done(*parts: Part[list[str]], paused: bool = False) -> tuple[list[str], list[Trouble]]:
    done: list[str] = []
    return done, asyncio.run(carry_out(checked(parts), done, paused=paused))


def test_a_failure_stops_those_that_need_it_and_those_that_need_them() -> None:
    done, troubles = _done(
        _part("a", raises=Retry("no")), _part("b", "a"), _part("c", "b"), _part("d"), _part("e", "d")
    )
    assert done == ["d", "e"]
    assert troubles == [
        Trouble("a", "Refused", "no"),
        Trouble("b", "Waiting", "waits for a, which isn't done"),
        Trouble("c", "Waiting", "waits for b, which isn't done"),
    ]
    assert [trouble.failed for trouble in troubles] == [True, False, False]


def test_who_waits_for_something_outside_is_no_trouble_and_neither_are_those_that_need_it() -> None:
    assert _done(_part("a", raises=NotYet("etcd")), _part("b", "a"), _part("c")) == (["c"], [])


def test_a_failure_weighs_more_than_a_wait() -> None:
    done, troubles = _done(_part("a", raises=NotYet("etcd")), _part("b", raises=Retry("no")), _part("c", "a", "b"))
    assert done == []
    assert [trouble.part for trouble in troubles] == ["b", "c"]


def test_only_reading_parts_are_done_while_paused() -> None:
    assert _done(_part("a"), _part("b", reads=True), _part("c", "a", reads=True), paused=True) == (["b"], [])


def test_an_error_without_words_is_told_by_its_name() -> None:
    _, (trouble,) = _done(_part("a", raises=AssertionError()))
    assert (trouble.reason, trouble.message) == ("Unexpected", "a failed unexpectedly (AssertionError): AssertionError")


def test_a_cancelled_reconcile_ends() -> None:
    with pytest.raises(asyncio.CancelledError):
        _done(_part("a", raises=asyncio.CancelledError()), _part("b"))


def test_what_isnt_reached_in_time_is_told() -> None:
    times = iter([0.0, 1.0, ALL_S_MAX + 1.0])
    done: list[str] = []
    parts = [_part("a"), _part("b")]
    (trouble,) = asyncio.run(carry_out(parts, done, clock=lambda: next(times)))
    assert done == ["a"]
    assert trouble == Trouble("b", "Refused", "the part wasn't reached, because the parts before it took too long")


def test_a_table_names_only_parts_that_stand_above() -> None:
    with pytest.raises(AssertionError, match="b needs a part that doesn't stand above it"):
        checked([_part("b", "a"), _part("a")])
    with pytest.raises(AssertionError, match="a stands in the table twice"):
        checked([_part("a"), _part("a")])
