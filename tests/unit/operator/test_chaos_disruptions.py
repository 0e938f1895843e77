"""The chaos scenario's count of broker pods that are away because they were deleted."""

from __future__ import annotations

from tests.e2e.chaos.disruptions import Disruptions

GOING = "2026-01-01T00:00:00Z"


def told(*lines: str) -> Disruptions:
    seen = Disruptions()
    for line in lines:
        seen.told(line + "\n")
    return seen


def test_one_after_the_other_is_as_it_has_to_be() -> None:
    seen = told(
        *("ADDED|b-0|u0||True", "ADDED|b-1|u1||True"),
        *(f"MODIFIED|b-0|u0|{GOING}|True", f"MODIFIED|b-0|u0|{GOING}|False", f"DELETED|b-0|u0|{GOING}|False"),
        *("ADDED|b-0|u2||", "MODIFIED|b-0|u2||False", "MODIFIED|b-0|u2||True"),
        *(f"MODIFIED|b-1|u1|{GOING}|True", f"DELETED|b-1|u1|{GOING}|False", "MODIFIED|b-1|u3||True"),
    )
    assert (seen.taken, seen.wrong) == (2, [])


def test_the_second_is_taken_before_the_first_is_ready_again() -> None:
    seen = told(f"MODIFIED|b-0|u0|{GOING}|True", "ADDED|b-0|u2||False", f"MODIFIED|b-1|u1|{GOING}|True")
    assert seen.wrong == ["away at the same time: b-0, b-1"]


def test_one_that_is_taken_again_while_it_starts_is_away_once() -> None:
    seen = told(f"MODIFIED|b-0|u0|{GOING}|True", "ADDED|b-0|u2||False", f"MODIFIED|b-0|u2|{GOING}|False")
    assert (seen.taken, seen.wrong) == (2, [])


def test_one_that_vanishes_without_a_goodbye_was_taken() -> None:
    assert told("ADDED|b-0|u0||True", "DELETED|b-0|u0||True", f"MODIFIED|b-1|u1|{GOING}|True").wrong


def test_one_that_is_not_ready_without_having_been_deleted_was_not_taken() -> None:
    assert told("MODIFIED|b-0|u0||False", f"MODIFIED|b-1|u1|{GOING}|True").wrong == []


def test_what_a_watch_tells_from_the_beginning_again_changes_nothing() -> None:
    again = (f"ADDED|b-0|u0|{GOING}|True", "ADDED|b-1|u1||True")
    seen = told(*again, *again, "ADDED|b-0|u2||True", "ADDED|b-1|u1||True", f"MODIFIED|b-1|u1|{GOING}|True")
    assert (seen.taken, seen.wrong) == (2, [])


def test_one_that_leaves_for_good_is_not_waited_for() -> None:
    seen = Disruptions()
    seen.leaves("b-3")
    seen.told(f"MODIFIED|b-3|u3|{GOING}|True\n")
    seen.told(f"MODIFIED|b-1|u1|{GOING}|True\n")
    assert (seen.taken, seen.wrong) == (1, [])
