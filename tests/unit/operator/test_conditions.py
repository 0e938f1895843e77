"""Conditions: the lastTransitionTime moves only when the condition's status changes, and the conditions of other
writers stay.
"""

from datetime import UTC, datetime

from ottla.operator.status import Condition, conditions

BEFORE = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW = datetime(2026, 5, 1, 13, tzinfo=UTC)


def test_the_time_is_that_of_the_last_flip() -> None:
    first = conditions([], [Condition("Ready", False, "A", "a")], 1, BEFORE)
    same = conditions(first, [Condition("Ready", False, "B", "b")], 2, NOW)
    assert same[0]["lastTransitionTime"] == "2026-05-01T12:00:00Z"
    assert (same[0]["reason"], same[0]["message"], same[0]["observedGeneration"]) == ("B", "b", 2)
    flipped = conditions(same, [Condition("Ready", True, "C")], 2, NOW)
    assert flipped[0]["lastTransitionTime"] == "2026-05-01T13:00:00Z"
    assert conditions(flipped, [Condition("Ready", None, "D")], 2, NOW)[0]["status"] == "Unknown"


def test_the_same_again_is_the_same_document() -> None:
    found = [Condition("Ready", True, "A"), Condition("Rolling", False, "B")]
    first = conditions([], found, 1, BEFORE)
    assert conditions(first, found, 1, NOW) == first


def test_what_somebody_else_looks_after_stays() -> None:
    other = {"type": "Mine", "status": "True", "lastTransitionTime": "x", "reason": "r", "message": ""}
    assert conditions([other], [Condition("Ready", True, "A")], 1, NOW)[1] == other
