"""What a command waits out, and what it reports at once."""

import socket

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError, OffsetNotAvailableError, TopicAuthorizationFailedError

from ottla.cli.connection import Cluster
from ottla.cli.errors import CommandError, ExitCode


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


def test_a_dead_broker_among_living_ones_is_not_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as living, socket.create_server(("127.0.0.1", 0)) as dying:
        ports = [server.getsockname()[1] for server in (dying, living)]
        dying.close()
        asked = Asked(NodeNotReadyError(), KafkaConnectionError())
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        assert Cluster(bootstrap, timeout_s=30).patiently(asked) == 7
        assert asked.times == 3


def test_where_no_broker_accepts_a_connection_nothing_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    asked = Asked(KafkaConnectionError())
    with pytest.raises(CommandError, match="can't reach a broker") as raised:
        Cluster(f"127.0.0.1:{port}", timeout_s=30).patiently(asked)
    assert raised.value.exit_code == ExitCode.unreachable
    assert asked.times == 1


def test_what_may_not_happen_twice_is_not_repeated_where_its_answer_was_lost() -> None:
    asked = Asked(KafkaConnectionError())
    with pytest.raises(KafkaConnectionError):
        Cluster("127.0.0.1:9092", timeout_s=30).patiently(asked, repeatable=False)
    assert asked.times == 1
