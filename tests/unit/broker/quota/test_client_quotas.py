"""When clients are throttled, and for how long."""

from __future__ import annotations

import pytest

from ottla.broker.quota.client_quotas import FETCH, MUTATION, PRODUCE, REQUEST, ClientQuotas
from ottla.broker.quota.entities import CLIENT_ID, USER, Client
from ottla.broker.quota.windows import Windows

KAFKA = Windows(11, 1000)
MILLISECOND = 1_000_000  # ns
ALICE = ((USER, "alice"),)


def quotas(**limits: float) -> ClientQuotas:
    """The quotas of user alice."""
    some = ClientQuotas(KAFKA, KAFKA)
    some.set_limits(ALICE, limits)
    return some


def throttle_times(some: ClientQuotas, kind: str) -> list[tuple[Client, float]]:
    return [(client, measured.throttle_times.average(0)) for client, _, measured in some.by_kind[kind].measured(0)]


def test_clients_without_a_limit_arent_measured() -> None:
    some = quotas(**{PRODUCE: 1000})
    assert some.enforced
    assert some.produced("bob", "c", 10**9, 10**9, 0) == 0
    assert some.fetched("alice", "c", 10**9, 10**9, 0) == (0, False)
    assert not [*some.produce.measured(0), *some.fetch.measured(0), *some.request.measured(0)]


def test_a_producer_is_throttled_for_its_bytes_without_a_bound() -> None:
    some = quotas(**{PRODUCE: 100_000})
    assert some.produced("alice", "a", 1_000_000, 0, 0) == 0
    assert some.produced("alice", "b", 50_000, 0, 0) == 500, "a user's clients share the user's limit"
    assert some.produced("alice", "a", 10_000_000, 0, 0) == 100_500
    assert throttle_times(some, PRODUCE) == [(Client("alice", ""), 50_500)]


def test_the_share_of_time_is_throttled_for_one_window_at_most() -> None:
    some = quotas(**{REQUEST: 1})
    assert some.answered("alice", "a", 100 * MILLISECOND, None, 0) == 0
    assert some.answered("alice", "a", 1 * MILLISECOND, None, 0) == 100
    assert some.answered("alice", "a", 900 * MILLISECOND, None, 0) == 1000
    assert throttle_times(some, REQUEST) == [(Client("alice", ""), 550)]


def test_the_longer_throttle_time_counts_and_is_noted_at_its_quota() -> None:
    some = quotas(**{PRODUCE: 100_000, REQUEST: 1})
    assert some.produced("alice", "a", 1_050_000, 110 * MILLISECOND, 0) == 1000, "by time; by bytes it is 500"
    assert throttle_times(some, PRODUCE) == [(Client("alice", ""), 0)]
    assert throttle_times(some, REQUEST) == [(Client("alice", ""), 1000)]


def test_a_request_without_an_answer_is_charged_for_its_bytes_only() -> None:
    some = quotas(**{PRODUCE: 100_000, REQUEST: 1})
    assert some.produced("alice", "a", 1_050_000, None, 0) == 500
    assert not list(some.request.measured(0))


def test_a_fetch_above_the_limit_is_empty_and_its_bytes_dont_count() -> None:
    some = quotas(**{FETCH: 100_000})
    assert some.fetched("alice", "a", 900_000, 0, 0) == (0, False)
    assert some.fetched("alice", "a", 200_000, 0, 0) == (1000, True)
    assert some.fetched("alice", "a", 100_000, 0, 0) == (0, False)
    assert some.fetched("alice", "a", 1000, 0, 0) == (10, True)


def test_a_fetch_is_empty_when_the_share_of_time_is_used_up() -> None:
    some = quotas(**{FETCH: 100_000, REQUEST: 1})
    assert some.fetched("alice", "a", 1000, 150 * MILLISECOND, 0) == (1000, True)
    [(_, _, measured)] = some.fetch.measured(0)
    assert measured.samples.total(0) == 0


def test_a_fetch_may_ask_for_ten_seconds_of_its_quota() -> None:
    some = quotas(**{FETCH: 100_000})
    assert some.fetch.largest("alice", "a") == 1_000_000
    assert some.fetch.largest("bob", "a") is None


def test_a_batch_that_is_always_too_large_is_sent_after_windows_without_a_byte() -> None:
    some = quotas(**{FETCH: 1000})
    assert some.fetched("alice", "a", 100, 0, 0) == (0, False)
    assert some.fetched("alice", "a", 20_000, 0, 5000) == (10_100, True)
    assert some.fetched("alice", "a", 20_000, 0, 16_100) == (10_000, False)
    assert some.fetched("alice", "a", 20_000, 0, 26_100) == (30_000, True)


def test_changes_throttle_for_their_debt() -> None:
    some = quotas(**{MUTATION: 1, REQUEST: 1})
    assert some.mutations("bob", "a", True, 0) is None
    changes = some.mutations("alice", "a", False, 0)
    assert changes is not None
    changes.take(16, 0)
    assert some.answered("alice", "a", 105 * MILLISECOND, changes, 1000) == 4000
    assert throttle_times(some, MUTATION) == [(Client("alice", ""), 4000)]
    assert throttle_times(some, REQUEST) == [(Client("alice", ""), 0)]


def test_a_limit_that_changes_judges_what_was_measured_before() -> None:
    some = quotas(**{PRODUCE: 1_000_000})
    assert some.produced("alice", "a", 1_000_000, 0, 0) == 0
    some.set_limits(ALICE, {PRODUCE: 100_000})
    assert some.produced("alice", "a", 50_000, 0, 0) == 500
    some.set_limits(ALICE, {})
    assert not some.enforced
    assert some.produced("alice", "a", 10**9, 0, 0) == 0
    assert not list(some.produce.measured(0))


@pytest.mark.parametrize("kind", [PRODUCE, FETCH, REQUEST, MUTATION])
def test_any_kind_of_limit_is_enforced(kind: str) -> None:
    some = ClientQuotas(KAFKA, KAFKA)
    assert not some.enforced
    some.set_limits(((CLIENT_ID, None),), {kind: 1.0})
    assert some.enforced
