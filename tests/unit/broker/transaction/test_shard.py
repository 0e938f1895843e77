"""One partition of `__transaction_state` (a shard): a change of a transactional id counts once its record is committed;
until then further requests for the id are answered CONCURRENT_TRANSACTIONS."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.decision import Answer, Limits, Moment, Wanted
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.initialization import Init, Producer
from ottla.broker.transaction.markers import Markers
from ottla.broker.transaction.metadata import V1, V2, Transaction
from ottla.broker.transaction.records import id_key, value
from ottla.broker.transaction.shard import Change, Plan, TransactionShard, encode
from ottla.broker.transaction.states import PREPARED, State
from ottla.protocol.errors import ErrorCode, ProtocolError

from .rules import LEVEL_0, LEVEL_2, NOW_MS, PID, UNUSED_PID, A, B, C, known

ME = Producer(PID, 5)
COMMIT = Ending(PID, 5, True, V2)
BUSY = Plan(Answer(ErrorCode.concurrent_transactions))


def shard_with(*states: Transaction) -> TransactionShard:
    """A shard with the transactional ids "0", "1", … in these states."""
    shard = TransactionShard(Limits())
    for number, transaction in enumerate(states):
        assert shard.replayed(id_key(str(number)), value(transaction, 1), 0, True)
    return shard


def appended(shard: TransactionShard, plan: Plan | Wanted | None, offset: int) -> Plan:
    assert isinstance(plan, Plan)
    assert plan.change is not None
    shard.appended([plan.change], offset)
    return plan


def state(shard: TransactionShard, transactional_id: str = "0") -> State | None:
    described = shard.described(transactional_id)
    return None if described is None else described.state


# --- a change under way ---


def test_a_change_counts_when_it_is_committed() -> None:
    shard = shard_with(known(State.ONGOING))
    appended(shard, shard.end("0", COMMIT, LEVEL_2), 10)
    assert (state(shard), shard.first_unshown) == (State.ONGOING, 10)
    shard.committed(10)
    assert state(shard) is State.ONGOING
    shard.committed(11)
    assert (state(shard), shard.first_unshown) == (State.PREPARE_COMMIT, None)


def test_until_then_the_ids_requests_wait_and_those_of_other_ids_do_not() -> None:
    shard = shard_with(known(State.ONGOING), known(State.ONGOING))
    plan = appended(shard, shard.end("0", COMMIT, LEVEL_2), 10)
    assert plan.answer == Answer(ErrorCode.none, PID, 6)
    assert shard.end("0", COMMIT, LEVEL_2) == BUSY
    assert shard.init_producer_id("0", Init(1_000), LEVEL_2) == BUSY
    assert shard.add_partitions("0", Producer(PID, 6), {C}, V2, LEVEL_2) == BUSY
    assert shard.abort_overdue("0", Moment(2**60, 2)) is None
    assert isinstance(appended(shard, shard.end("1", COMMIT, LEVEL_2), 11), Plan)


def test_an_append_that_failed_has_changed_nothing() -> None:
    shard = shard_with(known(State.ONGOING))
    for _ in range(3):
        plan = shard.end("0", COMMIT, LEVEL_2)
        assert isinstance(plan, Plan)
        assert plan.change is not None
        assert plan.change.after is not None
        assert plan.change.after.epoch == 6
        shard.append_failed([plan.change])
        assert state(shard) is State.ONGOING
    appended(shard, shard.end("0", COMMIT, LEVEL_2), 10)
    assert plan.change is not None
    shard.append_failed([plan.change])  # of the older attempt, which isn't under way any more
    assert shard.end("0", COMMIT, LEVEL_2) == BUSY


def test_changes_are_applied_a_few_at_a_time() -> None:
    shard = shard_with(*[known(State.ONGOING)] * 5)
    for number in range(5):
        appended(shard, shard.end(str(number), COMMIT, LEVEL_2), 10 + number)
    shard.committed(14, 2)
    assert shard.first_unshown == 12
    shard.committed(14, 10)
    assert shard.first_unshown == 14


def test_a_producer_id_is_wanted_before_anything_is_under_way() -> None:
    shard = TransactionShard(Limits())
    assert shard.init_producer_id("new", Init(1_000), LEVEL_2) is Wanted.PRODUCER_ID
    plan = appended(shard, shard.init_producer_id("new", Init(1_000), LEVEL_2, UNUSED_PID), 0)
    assert plan.answer == Answer(ErrorCode.none, UNUSED_PID, 0)
    assert shard.init_producer_id("new", Init(1_000), LEVEL_2, UNUSED_PID + 1) == BUSY
    shard.committed(1)
    assert state(shard, "new") is State.EMPTY


def test_an_empty_id_is_an_invalid_request() -> None:
    shard = TransactionShard(Limits())
    invalid = Plan(Answer(ErrorCode.invalid_request))
    assert shard.init_producer_id("", Init(1_000), LEVEL_2) == invalid
    assert shard.add_partitions("", ME, {A}, V1, LEVEL_2) == invalid
    assert shard.end("", COMMIT, LEVEL_2) == invalid
    assert shard.verify("", ME, {A}) == {A: ErrorCode.invalid_request}


def test_verification_doesnt_wait() -> None:
    shard = shard_with(known(State.ONGOING))
    appended(shard, shard.add_partitions("0", ME, {C}, V1, LEVEL_2), 10)
    assert shard.verify("0", ME, {A, C}) == {A: ErrorCode.none, C: ErrorCode.transaction_abortable}
    shard.committed(11)
    assert shard.verify("0", ME, {C}) == {C: ErrorCode.none}


# --- markers ---


def test_a_decision_that_is_committed_begins_markers() -> None:
    shard = shard_with(known(State.ONGOING))
    appended(shard, shard.end("0", COMMIT, LEVEL_2), 10)
    assert not shard.take_begun()
    shard.committed(11)
    (markers,) = shard.take_begun()
    assert (markers.transactional_id, markers.missing, markers.transaction.epoch) == ("0", {A, B}, 6)
    assert not shard.take_begun()


def test_the_transaction_is_complete_when_no_marker_is_missing() -> None:
    shard = shard_with(known(State.PREPARE_COMMIT))
    (markers,) = shard.take_begun()
    markers.answered(A, ErrorCode.none)
    assert shard.complete(markers, LEVEL_2) is None
    markers.answered(B, ErrorCode.none)
    plan = shard.complete(markers, LEVEL_2)
    assert isinstance(plan, Plan)
    assert shard.complete(markers, LEVEL_2) is None
    assert plan.change is not None
    shard.append_failed([plan.change])
    appended(shard, shard.complete(markers, LEVEL_2), 10)
    shard.committed(11)
    assert state(shard) is State.COMPLETE_COMMIT
    assert not shard.is_current(markers)
    assert shard.complete(markers, LEVEL_2) is None


def test_an_abort_without_partitions_has_no_marker_missing() -> None:
    shard = shard_with(known(State.EMPTY))
    appended(shard, shard.end("0", Ending(PID, 5, False, V2), LEVEL_2), 10)
    shard.committed(11)
    (markers,) = shard.take_begun()
    appended(shard, shard.complete(markers, LEVEL_2), 11)


def test_a_transaction_that_a_newer_coordinator_took_over_isnt_completed() -> None:
    shard = shard_with(known(State.PREPARE_COMMIT))
    (markers,) = shard.take_begun()
    markers.answered(A, ErrorCode.none)
    markers.answered(B, ErrorCode.transaction_coordinator_fenced)
    markers.gone(B)
    assert shard.complete(markers, LEVEL_2) is None


@pytest.mark.parametrize("client_version", [V1, V2])
def test_a_producer_id_that_was_fenced_in_a_partition_is_replaced(client_version: int) -> None:
    shard = shard_with(known(State.PREPARE_COMMIT, client_version=client_version))
    (markers,) = shard.take_begun()
    markers.answered(A, ErrorCode.invalid_producer_epoch)
    assert shard.complete(markers, LEVEL_2) is None
    markers.answered(A, ErrorCode.none)
    markers.answered(B, ErrorCode.none)
    appended(shard, shard.complete(markers, LEVEL_2), 0)
    shard.committed(1)
    assert shard.transactions["0"].state is State.COMPLETE_COMMIT
    late = shard.add_partitions("0", Producer(PID, known(State.ONGOING).epoch), {A}, client_version, LEVEL_2)
    assert late.answer.error is ErrorCode.producer_fenced
    plan = shard.init_producer_id("0", Init(60_000), LEVEL_2, UNUSED_PID)
    assert isinstance(plan, Plan)
    assert plan.answer == Answer(ErrorCode.none, UNUSED_PID, 0)


def test_markers_of_an_earlier_transaction_complete_nothing() -> None:
    shard = shard_with(known(State.PREPARE_COMMIT, partitions=frozenset()))
    (earlier,) = shard.take_begun()
    shard.replayed(id_key("0"), value(known(State.PREPARE_COMMIT, epoch=7), 1), 0, True)
    assert shard.complete(earlier, LEVEL_2) is None
    assert shard.complete(Markers("else", known(State.PREPARE_COMMIT)), LEVEL_2) is None


# --- a load ---


@pytest.mark.parametrize("of", State)
def test_a_load_begins_all_markers_of_decided_transactions_again(of: State) -> None:
    shard = shard_with(known(of), known(State.EMPTY))
    begun = shard.take_begun()
    assert [markers.missing for markers in begun] == ([{A, B}] if of in PREPARED else [])


def test_a_load_begins_no_markers_of_transactions_that_have_ended_since() -> None:
    shard = shard_with(known(State.PREPARE_COMMIT), known(State.PREPARE_ABORT))
    shard.replayed(id_key("0"), value(known(State.COMPLETE_COMMIT), 1), 0, True)
    assert [markers.transactional_id for markers in shard.take_begun()] == ["1"]


def test_an_open_transaction_keeps_its_clock_over_a_load() -> None:
    shard = shard_with(known(State.ONGOING, start_ms=100, timeout_ms=50))
    assert (shard.overdue(shard.open_ids(), 150), shard.overdue(shard.open_ids(), 151)) == ([], ["0"])


def test_records_above_the_high_watermark_count_when_they_are_committed() -> None:
    shard = shard_with(known(State.EMPTY))
    shard.replayed(id_key("0"), value(known(State.ONGOING), 1), 5, False)
    shard.replayed(id_key("0"), value(known(State.PREPARE_ABORT), 1), 6, False)
    assert (state(shard), shard.first_unshown) == (State.EMPTY, 5)
    shard.committed(6)
    assert state(shard) is State.ONGOING
    shard.committed(7)
    assert state(shard) is State.PREPARE_ABORT
    assert shard.end("0", COMMIT, LEVEL_2) == BUSY


def test_a_tombstone_removes_the_id() -> None:
    shard = shard_with(known(State.ONGOING))
    assert shard.replayed(id_key("0"), None, 0, True)
    assert state(shard) is None
    assert not shard.overdue(shard.open_ids(), 2**62)


def test_other_kinds_and_versions_are_skipped() -> None:
    shard = shard_with(known(State.ONGOING))
    assert not shard.replayed(b"\x00\x05xyz", b"", 0, True)
    assert not shard.replayed(id_key("0"), b"\x00\x09" + bytes(50), 0, True)
    assert shard.decided(PID, True, 1, True) == 0
    assert state(shard) is State.ONGOING


def test_malformed_records_change_nothing() -> None:
    shard = shard_with(known(State.ONGOING))
    with pytest.raises(ProtocolError):
        shard.replayed(id_key("0"), b"\x00\x01\x00", 0, True)
    assert state(shard) is State.ONGOING


# --- time ---


def test_a_transaction_that_is_overdue_is_aborted_once() -> None:
    shard = shard_with(known(State.ONGOING, start_ms=100, timeout_ms=50), known(State.ONGOING))
    assert shard.overdue(shard.open_ids(), NOW_MS) == ["0"]
    assert shard.abort_overdue("1", LEVEL_2) is None
    assert shard.abort_overdue("unknown", LEVEL_2) is None
    plan = appended(shard, shard.abort_overdue("0", LEVEL_2), 10)
    assert plan.answer == Answer()
    assert not shard.overdue(shard.open_ids(), NOW_MS)
    shard.committed(11)
    assert state(shard) is State.PREPARE_ABORT
    assert not shard.overdue(shard.open_ids(), NOW_MS)


def test_the_abort_of_a_producer_without_epochs_wants_a_producer_id() -> None:
    shard = shard_with(known(State.ONGOING, 32_766, start_ms=100, timeout_ms=50))
    assert shard.abort_overdue("0", LEVEL_2) is Wanted.PRODUCER_ID
    assert isinstance(shard.abort_overdue("0", LEVEL_2, UNUSED_PID), Plan)
    shard = shard_with(known(State.ONGOING, 32_766, start_ms=100, timeout_ms=50))
    assert isinstance(shard.abort_overdue("0", LEVEL_0), Plan)


def test_ids_at_rest_expire() -> None:
    old = NOW_MS - Limits().expiration_ms
    shard = shard_with(
        *(known(state, last_update_ms=old) for state in State), known(State.EMPTY, last_update_ms=old + 1)
    )
    changes = shard.expire(shard.ids(), NOW_MS)
    expired = {str(number) for number, state in enumerate(State) if state.label.startswith(("Empty", "Complete"))}
    assert {change.transactional_id for change in changes} == expired
    assert not shard.expire(shard.ids(), NOW_MS)
    assert shard.described("0") is None
    assert {name for name in shard.transactions if shard.described(name) is not None} == {"1", "2", "3", "6"}
    assert shard.init_producer_id("0", Init(1_000), LEVEL_2) == BUSY
    shard.append_failed(changes)
    assert state(shard) is State.EMPTY
    changes = [*shard.expire(["0", "1", "gone"], NOW_MS), *shard.expire(shard.ids(), NOW_MS)]
    assert {change.transactional_id for change in changes} == expired
    assert len(changes) == 3
    shard.appended(changes, 50)
    shard.committed(53)
    assert set(shard.transactions) == {"1", "2", "3", "6"}
    assert shard.end("0", COMMIT, LEVEL_2) == Plan(Answer(ErrorCode.invalid_producer_id_mapping))


# --- records ---


@pytest.mark.parametrize("last_visible", [True, False])
def test_records_count_in_their_order_although_the_high_watermark_rises_while_they_are_read(last_visible: bool) -> None:
    shard = TransactionShard(Limits())
    shard.replayed(id_key("0"), value(known(State.ONGOING, epoch=4), 1), 5, False)
    shard.replayed(id_key("0"), value(known(State.COMPLETE_ABORT, epoch=7), 1), 6, True)
    shard.replayed(id_key("0"), value(known(State.EMPTY, epoch=8), 1), 7, last_visible)
    shard.committed(7)
    assert (state(shard), shard.first_unshown) == (State.COMPLETE_ABORT, 7)
    shard.committed(8)
    assert (state(shard), shard.transactions["0"].epoch) == (State.EMPTY, 8)


def test_the_feature_level_says_how_a_change_is_written() -> None:
    change = Change("id", known(State.ONGOING))
    assert encode(change, 0) == (id_key("id"), value(known(State.ONGOING), 0))
    assert encode(change, 1) == encode(change, 2) == (id_key("id"), value(known(State.ONGOING), 1))
    assert encode(Change("id", None), 2) == (id_key("id"), None)
