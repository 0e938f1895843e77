"""The answers of partitions' leaders to markers."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.markers import Markers, Verdict, verdict
from ottla.broker.transaction.states import State
from ottla.protocol.errors import ErrorCode

from .rules import A, B, known


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, Verdict.DONE), (35, Verdict.DONE), (43, Verdict.DONE), (47, Verdict.OVERTAKEN), (52, Verdict.STOP)]
    + [(code, Verdict.AGAIN) for code in (3, 6, 7, 19, 20, 56)],
)
def test_kafkas_table_but_for_an_invalid_epoch(code: int, expected: Verdict) -> None:
    assert verdict(ErrorCode(code)) is expected


def test_an_answer_that_says_nothing_for_certain_is_followed_by_another_try() -> None:
    for error in (ErrorCode.unknown_server_error, ErrorCode.cluster_authorization_failed, ErrorCode.corrupt_message):
        assert verdict(error) is Verdict.AGAIN


def test_markers_are_missing_until_every_partition_has_its_own() -> None:
    markers = Markers("id", known(State.PREPARE_COMMIT))
    assert markers.answered(A, ErrorCode.not_leader_or_follower) is Verdict.AGAIN
    assert markers.missing == {A, B}
    assert markers.answered(A, ErrorCode.none) is Verdict.DONE
    assert markers.missing == {B}
    markers.gone(B)
    assert not markers.missing
    assert not markers.stopped
    assert markers.transaction.partitions == {A, B}


def test_a_newer_coordinator_stops_all_markers_of_the_transaction() -> None:
    markers = Markers("id", known(State.PREPARE_ABORT))
    assert markers.answered(A, ErrorCode.transaction_coordinator_fenced) is Verdict.STOP
    assert markers.stopped


def test_a_partition_with_a_later_epoch_still_misses_a_marker() -> None:
    markers = Markers("id", known(State.PREPARE_COMMIT))
    assert markers.answered(A, ErrorCode.invalid_producer_epoch) is Verdict.OVERTAKEN
    assert (markers.overtaken, markers.missing, markers.stopped) == ({A}, {A, B}, False)
    assert markers.answered(A, ErrorCode.none) is Verdict.DONE
    assert (markers.overtaken, markers.missing) == ({A}, {B})
