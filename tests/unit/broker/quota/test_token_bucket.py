"""The tokens of changes, and the two ways in which a quota of changes is enforced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.quota.mutations import Mutations
from ottla.broker.quota.samples import Samples
from ottla.broker.quota.token_bucket import TokenBucket
from ottla.broker.quota.windows import Windows
from ottla.protocol.errors import ErrorCode, KafkaError

KAFKA = Windows(11, 1000)


def test_a_burst_of_eleven_windows_is_free_and_the_debt_is_paid_back_at_the_rate() -> None:
    bucket = TokenBucket(KAFKA)
    assert bucket.tokens(5, 0) == 55
    bucket.take(55, 5, 0)
    assert bucket.throttle_ms(5, 0) == 0
    bucket.take(60, 5, 0)
    assert bucket.throttle_ms(5, 0) == 12_000
    assert bucket.throttle_ms(5, 11_000) == 1000
    assert bucket.throttle_ms(5, 12_000) == 0
    assert bucket.tokens(5, 1_000_000) == 55, "no more than a burst is saved"


@given(
    steps=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 300)), max_size=40),
    rate=st.integers(1, 50),
    windows=st.builds(Windows, st.integers(1, 12), st.just(1000)),
)
def test_tokens_are_those_of_a_clock_that_ticks_each_millisecond(
    steps: list[tuple[int, int]], rate: int, windows: Windows
) -> None:
    """The twin counts thousandths of tokens, so that it is exact."""
    bucket, now = TokenBucket(windows), 0
    burst = rate * windows.span_ms
    twin = burst
    for passed, taken in steps:
        now += passed
        for _ in range(passed):
            twin = min(burst, twin + rate)
        bucket.take(taken, rate, now)
        twin -= taken * 1000
        assert bucket.tokens(rate, now) == pytest.approx(twin / 1000)


def test_a_rate_that_changes_changes_the_burst() -> None:
    bucket = TokenBucket(KAFKA)
    assert bucket.tokens(10, 0) == 110
    assert bucket.tokens(1, 0) == 11
    assert bucket.tokens(10, 1000) == 21


def test_a_strict_quota_allows_a_change_whole_or_refuses_it() -> None:
    bucket = TokenBucket(KAFKA)
    made = Samples(KAFKA)
    changes = Mutations(bucket, 1, made, strict=True)
    changes.take(31, 0)
    assert changes.throttle_ms(0) == 0, "a change is allowed however large it is, if there is no debt"
    with pytest.raises(KafkaError) as refused:
        changes.take(1, 1000)
    assert refused.value.code is ErrorCode.throttling_quota_exceeded
    assert bucket.tokens(1, 1000) == -19, "a refused change takes nothing"
    assert changes.throttle_ms(1000) == 19_000
    assert changes.throttle_ms(4000) == 16_000, "the time since the refusal counts"
    assert made.total(1000) == 31
    Mutations(bucket, 1, made, strict=True).take(1, 20_000)


def test_a_permissive_quota_makes_the_change_and_the_client_wait() -> None:
    bucket = TokenBucket(KAFKA)
    changes = Mutations(bucket, 1, Samples(KAFKA), strict=False)
    changes.take(11, 0)
    assert changes.throttle_ms(0) == 0
    changes.take(4, 0)
    changes.take(2, 0)
    assert changes.throttle_ms(0) == 6000
    assert changes.throttle_ms(6500) == 0
