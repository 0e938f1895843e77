"""One transaction around all records of a run of `ottla produce`: all of them become visible together, or none.

If anything but the commit itself fails, or the run is interrupted, the transaction is aborted. The commit's outcome is
unknown if its answer doesn't come in time: then the run neither claims success nor aborts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from ottla.cli import availability
from ottla.cli.connection import sentence
from ottla.cli.errors import CommandError, ExitCode
from ottla.cli.output import Output
from ottla.wording import counted

if TYPE_CHECKING:
    from kafka import KafkaProducer

    from ottla.cli.connection import Cluster

_FENCED = (47, 90)
_UNCONFIRMED = "the commit was under way and may still be carried out"


class OneTransaction:
    """The transaction of `transactional_id`. The coordinator aborts it if it is open for longer than `timeout_s`."""

    def __init__(self, cluster: Cluster, output: Output, transactional_id: str, timeout_s: float) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._output = output
        self._timeout_s = timeout_s
        self._subject = f"transactional id '{transactional_id}'"

    @property
    def settings(self) -> dict[str, str | int]:
        """The settings of kafka-python's producer."""
        return {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": int(self._timeout_s * 1000),
        }

    @contextmanager
    def around(self, producer: KafkaProducer, written: Callable[[], int]) -> Iterator[None]:
        """Commits what the body sends and waits for. If the body raises an exception, the transaction is aborted, and a
        CommandError says so, too. `written` returns how many records are known to be written."""
        self._begin(producer)
        try:
            yield
        except CommandError as error:
            error.message += f"; {self._abort(producer)}"
            raise
        except BaseException:
            count = written()
            self._output.note(f"{counted(count, 'record')} written; {self._abort(producer)}.")
            raise
        self._commit(producer)

    def explained(self, error: BaseException) -> CommandError | None:
        """The CommandError for an error that is about the transaction rather than about records; else None."""
        causes = [error, *error.args]
        if any(getattr(cause, "errno", None) in _FENCED for cause in causes):
            return CommandError(
                f"{self._subject}: another producer has taken it over, or the transaction was open for longer than"
                f" {self._timeout_s:g} s",
                "Use a transactional id that no other producer uses, or raise --transaction-timeout.",
                kafka_code=_FENCED[1],
            )
        # The client's error for an answer that it doesn't know has no code, but its text has the name of the error.
        if "InvalidTransactionTimeoutError" in str(error):
            return CommandError(
                f"--transaction-timeout {self._timeout_s:g} is longer than transaction.max.timeout.ms of the brokers",
                "Say a shorter one.",
                kafka_code=50,
            )
        return None

    def _begin(self, producer: KafkaProducer) -> None:
        from kafka.errors import KafkaError, KafkaTimeoutError

        try:
            producer.init_transactions()
            producer.begin_transaction()
        except KafkaError as error:
            if isinstance(error, KafkaTimeoutError):
                availability.check_transactions(self._cluster, self.transactional_id)
            raise self.explained(error) or sentence(error, self._subject) from error

    def _commit(self, producer: KafkaProducer) -> None:
        from kafka.errors import KafkaError

        try:
            ended = _within(producer.commit_transaction, self._cluster.timeout_s)
        except KafkaError as error:
            raise self.explained(error) or sentence(error, self._subject) from error
        except BaseException:
            self._output.note(f"{_UNCONFIRMED.capitalize()}.")
            raise
        if not ended:
            raise CommandError(
                f"{self._subject}: {_UNCONFIRMED}, and there was no answer in time",
                f"`ottla transactions describe {self.transactional_id}` shows the state.",
                ExitCode.timed_out,
            )

    def _abort(self, producer: KafkaProducer) -> str:
        """Aborts the transaction. Returns the rest of a sentence that says how that went."""
        from kafka.errors import KafkaError

        try:
            if _within(producer.abort_transaction, self._cluster.timeout_s):
                return "the transaction is aborted"
        except KafkaError:
            pass
        return (
            f"the transaction isn't aborted yet: that happens at the latest after its time-out of {self._timeout_s:g} s"
        )


def _within(call: Callable[[], None], timeout_s: float) -> bool:
    """Whether `call`, which has no time-out of its own, returns in time. Raises its error."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    return not thread.is_alive()
