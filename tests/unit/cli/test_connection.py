"""Errors that a command waits out, and errors that it reports immediately."""

import socket
from typing import Any
from unittest.mock import patch

import pytest
from kafka.errors import (
    KafkaConnectionError,
    NodeNotReadyError,
    OffsetNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
)

from ottla.cli.cluster import drained_brokers
from ottla.cli.connection import Cluster, sentence
from ottla.cli.errors import CommandError, ExitCode


class Asked:
    """A stand-in for a client's call. Its first calls raise one error each, in order; the next call returns 7."""

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


class Brokers:
    """A stand-in for an admin client. A request for the settings of a broker in `failures` fails."""

    def __init__(self, failures: dict[int, Exception]) -> None:
        self.failures = failures
        self.asked: set[int] = set()

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": broker} for broker in range(3)]}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[str, Any]:
        name = resources[0].name
        self.asked.add(int(name))
        if int(name) in self.failures:
            raise self.failures[int(name)]
        return {"broker": {name: {"ottla.brokers.drained": {"value": "1"}}}}


def test_another_broker_is_asked_when_one_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as living:
        cluster = Cluster(f"127.0.0.1:{living.getsockname()[1]}", timeout_s=30)
        admin = Brokers({0: UnknownBrokerIdError(0), 1: KafkaConnectionError()})
        with patch.object(Cluster, "admin", admin), patch("time.sleep"):
            for _ in range(20):  # each time another random broker is asked first
                assert drained_brokers(cluster) == [1]
    assert admin.asked == {0, 1, 2}


def test_a_broker_that_has_left_is_said_in_words() -> None:
    assert sentence(UnknownBrokerIdError(0), "the settings of broker '0'").line() == (
        "the settings of broker '0': the broker has left the cluster. `ottla brokers list` shows all brokers."
    )
