"""Every error code has exactly one meaning to a client."""

from __future__ import annotations

import pytest

from ottla.net.error_codes import ABSENT, FINAL, PASSING, Retry, check
from ottla.net.names import Address
from ottla.protocol.errors import ErrorCode, KafkaError

WHO = Address("broker", 9092)


def test_every_error_code_is_sorted_once() -> None:
    sorted_codes = [*PASSING, *ABSENT, *FINAL]
    assert len(sorted_codes) == len(set(sorted_codes))
    assert set(sorted_codes) == set(ErrorCode) - {ErrorCode.none}


def test_what_java_retries_passes_or_is_looked_into() -> None:
    """Ottla's clients raise only two of the errors that Java's clients retry: damaged data in the log, which stays
    damaged, and an election that wasn't needed.
    """
    retried = {code for code in ErrorCode if code.retriable}
    assert retried - PASSING - ABSENT == {ErrorCode.corrupt_message, ErrorCode.election_not_needed}


def test_what_is_raised() -> None:
    check(ErrorCode.none, "t-0", WHO)
    with pytest.raises(Retry, match="broker:9092 answered not_leader_or_follower for t-0"):
        check(ErrorCode.not_leader_or_follower, "t-0", WHO)
    with pytest.raises(KafkaError, match=r"policy_violation: t-0: too many \(answered by broker:9092\)"):
        check(ErrorCode.policy_violation, "t-0", WHO, "too many")
