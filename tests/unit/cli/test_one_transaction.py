"""The transaction of `ottla produce`: what a run says of its outcome, which may be unknown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from kafka import errors

from ottla.cli.connection import Cluster
from ottla.cli.errors import CommandError, ExitCode
from ottla.cli.one_transaction import OneTransaction
from ottla.cli.output import Output


class Producer:
    """A stand-in for kafka-python's producer, which records the calls, and answers them by the given functions."""

    def __init__(self, **answers: Callable[[], None]) -> None:
        self.calls: list[str] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[[], None]:
        def call() -> None:
            self.calls.append(name.removesuffix("_transaction").removesuffix("_transactions"))
            self._answers.get(name, lambda: None)()

        return call


def never() -> None:
    threading.Event().wait()


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def run(producer: Producer, error: BaseException | None = None) -> None:
    cluster = Cluster("127.0.0.1:1", timeout_s=0.1)
    transaction = OneTransaction(cluster, Output(), "id", 60)
    with transaction.around(cast(Any, producer), lambda: 3):
        if error is not None:
            raise error


def test_records_are_committed() -> None:
    producer = Producer()
    run(producer)
    assert producer.calls == ["init", "begin", "commit"]


def test_an_error_aborts_and_says_so() -> None:
    producer = Producer()
    with pytest.raises(CommandError) as raised:
        run(producer, CommandError("line 3: not JSON", "Correct it."))
    assert raised.value.line() == "line 3: not JSON; the transaction is aborted. Correct it."
    assert producer.calls == ["init", "begin", "abort"]


def test_an_interruption_aborts_and_says_how_many_records_were_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Producer(), KeyboardInterrupt())
    assert capsys.readouterr().err == "3 records written; the transaction is aborted.\n"


@pytest.mark.parametrize("abort", [never, failing(errors.KafkaError("the state is wrong"))])
def test_an_abort_that_fails_is_left_to_the_time_out(abort: Callable[[], None]) -> None:
    with pytest.raises(CommandError) as raised:
        run(Producer(abort_transaction=abort), CommandError("the first error"))
    assert raised.value.message == (
        "the first error; the transaction isn't aborted yet: that happens at the latest after its time-out of 60 s"
    )


def test_a_commit_without_an_answer_has_an_unknown_outcome_and_is_not_aborted() -> None:
    producer = Producer(commit_transaction=never)
    with pytest.raises(CommandError) as raised:
        run(producer)
    assert raised.value.exit_code == ExitCode.timed_out
    assert "may still be carried out" in raised.value.message
    assert "abort" not in producer.calls


def test_an_interrupted_commit_has_an_unknown_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    transaction = OneTransaction(Cluster("127.0.0.1:1", timeout_s=0.1), Output(), "id", 60)
    thread_join = threading.Thread.join

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        thread_join(self, timeout)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        producer = Producer()
        with pytest.raises(KeyboardInterrupt), transaction.around(cast(Any, producer), lambda: 3):
            pass
    assert producer.calls == ["init", "begin", "commit"]
    assert capsys.readouterr().err == "The commit was under way and may still be carried out.\n"


@pytest.mark.parametrize("error", [errors.ProducerFencedError(), errors.InvalidProducerEpochError()])
def test_a_fenced_producer_names_both_causes(error: Exception) -> None:
    wrapped = errors.KafkaError("Cannot perform send because a request has failed with errors.", error)
    for fenced in (error, wrapped):
        with pytest.raises(CommandError) as raised:
            run(Producer(commit_transaction=failing(fenced)))
        assert "another producer has taken it over, or the transaction was open for longer than 60 s" in (
            raised.value.message
        )


def test_a_time_out_that_brokers_refuse_is_named() -> None:
    error = errors.KafkaError("Unexpected error in InitProducerIdResponse: InvalidTransactionTimeoutError")
    with pytest.raises(CommandError) as raised:
        run(Producer(init_transactions=failing(error)))
    assert "--transaction-timeout 60 is longer than transaction.max.timeout.ms" in raised.value.message
