"""If Spark's Python worker didn't start in time, the query is started again. After any other error it isn't."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from ottla.spark.jobs.frames import STARVED_MAX, Stopped, run, run_all

LATE = "org.apache.spark.SparkException: Python worker failed to connect back."


class Queries:
    """A DataStreamWriter whose queries end with the given results in turn: an error's text, or None for success."""

    def __init__(self, *ends: str | None, progress: Any = None) -> None:
        self.ends = list(ends)
        self.lastProgress = progress
        self.started = self.stopped = 0
        self.name = "p.out"

    def trigger(self, **_: Any) -> Queries:
        return self

    def start(self) -> Queries:
        self.started += 1
        return self

    def awaitTermination(self, timeout: int) -> bool:
        if (end := self.ends.pop(0)) is not None:
            raise StreamingQueryException(end)
        return True

    def stop(self) -> None:
        self.stopped += 1


def test_a_starved_query_goes_on_after_longer_and_longer_pauses() -> None:
    queries, pauses = Queries(LATE, LATE, None), []
    run(queries, "", pauses.append)  # type: ignore[arg-type]
    assert (queries.started, pauses) == (3, [2.0, 4.0])


def test_a_query_that_never_starts_is_given_up() -> None:
    queries = Queries(*[LATE] * 20)
    with pytest.raises(StreamingQueryException, match="connect back"):
        run(queries, "1 second", lambda _: None)  # type: ignore[arg-type]
    assert queries.started == STARVED_MAX + 1


def test_a_query_that_got_on_between_is_not_given_up() -> None:
    queries = Queries(*[LATE] * 20, None, progress=object())
    run(queries, "", lambda _: None)  # type: ignore[arg-type]
    assert queries.started == 21


def test_any_other_end_is_an_end() -> None:
    queries = Queries("DataLoss: t-0 has offsets 5 to 9", None)
    with pytest.raises(StreamingQueryException, match="DataLoss"):
        run(queries, "", lambda _: None)  # type: ignore[arg-type]
    assert queries.started == 1


def test_the_others_are_stopped_when_one_fails() -> None:
    fails, runs = Queries("DataLoss: t-0 has offsets 5 to 9"), Queries()
    runs.awaitTermination = lambda timeout: False  # type: ignore[method-assign]
    with pytest.raises(StreamingQueryException, match="DataLoss"):
        run_all([(runs, ""), (fails, "")])  # type: ignore[list-item]
    assert runs.stopped == 1


def test_a_query_that_was_stopped_from_outside_is_no_success() -> None:
    """Spark stops a query without an error if another one starts from its checkpoint."""
    with pytest.raises(Stopped, match=r"the query p\.out was stopped from outside"):
        run(Queries(None), "1 second", lambda _: None)  # type: ignore[arg-type]
