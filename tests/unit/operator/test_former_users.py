"""Users in Kafka whose User is gone: which are removed and when; and the record that names them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.operator.objects import Ref
from ottla.operator.plan.former_users import SETTLE_S, Departures, Verdict
from ottla.operator.plan.orphans import Definition, Unreadable
from ottla.operator.plan.recorded_users import Given, RecordedUsers, read_users, users_record

MAIN = Ref("shop", "main")
DEFINED = Definition("2025-01-01T00:00:00Z")
RECORDED = {name: Given("2026-01-01T00:00:00Z") for name in ("a", "b", "CN=c")}
NAMES = st.text(st.characters(exclude_characters="\n"), min_size=1)


def test_a_user_is_removed_after_it_was_without_a_user_for_a_while() -> None:
    departures = Departures()
    assert departures.judge(0.0, RECORDED, {"a", "CN=c"}, DEFINED) == Verdict((), SETTLE_S)
    assert departures.judge(4.0, RECORDED, {"CN=c"}, DEFINED) == Verdict((), SETTLE_S - 4.0)
    assert departures.judge(SETTLE_S, RECORDED, {"CN=c"}, DEFINED) == Verdict(("b",), 4.0)


def test_a_user_that_is_back_is_not_removed_and_settles_anew() -> None:
    departures = Departures()
    departures.judge(0.0, RECORDED, {"a", "b"}, DEFINED)
    assert departures.judge(5.0, RECORDED, set(RECORDED), DEFINED) == Verdict()
    assert departures.judge(20.0, RECORDED, {"a", "b"}, DEFINED) == Verdict((), SETTLE_S)


def test_nobody_is_removed_while_the_kind_is_not_defined() -> None:
    for definition in (None, Definition("2025-01-01T00:00:00Z", deleting=True)):
        departures = Departures()
        departures.judge(0.0, RECORDED, set(), definition)
        assert departures.judge(1000.0, RECORDED, set(), definition) == Verdict()


def test_users_older_than_the_definition_are_kept() -> None:
    recorded = {**RECORDED, "new": Given("2026-06-02T00:00:00Z")}
    departures = Departures()
    departures.judge(0.0, recorded, set(), Definition("2026-06-01T00:00:00Z"))
    assert departures.judge(1000.0, recorded, set(), Definition("2026-06-01T00:00:00Z")) == Verdict(("new",))


def test_without_the_right_to_read_the_definition_all_at_once_are_kept() -> None:
    departures = Departures()
    departures.judge(0.0, RECORDED, set(), Unreadable())
    assert departures.judge(1000.0, RECORDED, set(), Unreadable()) == Verdict()
    assert departures.judge(1000.0, RECORDED, {"a"}, Unreadable()).due == ("CN=c", "b")


@given(st.dictionaries(NAMES, st.builds(Given, st.just("2026-01-01T00:00:00Z"), st.booleans())))
def test_a_record_is_read_as_it_was_written(users: dict[str, Given]) -> None:
    empty = read_users(MAIN, "c-1", None)
    assert read_users(MAIN, "c-1", users_record(empty, users)).users == users


def test_the_record_of_an_earlier_cluster_names_nobody() -> None:
    empty = read_users(MAIN, "c-1", None)
    assert read_users(MAIN, "c-2", users_record(empty, RECORDED)).users == {}


def test_five_thousand_users_fit_into_a_config_map() -> None:
    users = {f"CN={'x' * 58}{number:04}": Given("2026-01-01T00:00:00Z", password=True) for number in range(5_000)}
    written: RecordedUsers = read_users(MAIN, "c-1", None)
    assert len(users_record(written, users)["data"]["users"]) < 1024 * 1024
