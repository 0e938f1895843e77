"""What a command waits out, and what it reports at once."""

import pytest
from kafka.errors import OffsetNotAvailableError, TopicAuthorizationFailedError

from ottla.cli.connection import Cluster


class Asked:
    """Fails with each error in turn, then answers 7."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times = 0

    def __call__(self) -> int:
        self.times += 1
        if self.errors:
            raise self.errors.pop(0)
        return 7


def test_a_new_leader_that_is_not_ready_is_asked_again() -> None:
    asked = Asked(OffsetNotAvailableError())
    assert Cluster("127.0.0.1:9092", timeout_s=30).patiently(asked) == 7
    assert asked.times == 2


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    with pytest.raises(OffsetNotAvailableError):
        Cluster("127.0.0.1:9092", timeout_s=0).patiently(Asked(*[OffsetNotAvailableError()] * 3))


def test_what_does_not_pass_is_raised_at_once() -> None:
    asked = Asked(TopicAuthorizationFailedError())
    with pytest.raises(TopicAuthorizationFailedError):
        Cluster("127.0.0.1:9092", timeout_s=30).patiently(asked)
    assert asked.times == 1
