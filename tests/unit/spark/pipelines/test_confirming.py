"""Refusals of transactions in the words of pipelines, and their answers on the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.net.names import Transaction, TransactionalIdState
from ottla.spark import decisions
from ottla.spark.decisions import Decision, Refused, TaskWritten
from ottla.spark.pipelines.confirming import confirmations, in_words_of_pipelines

LOST = Transaction("task", 5, 0)
LAST = Decision("old", 17, 3, (LOST,), completed=False)


def refusal(step: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        step()
    return in_words_of_pipelines(str(refused.value), "flights.out")


def test_another_checkpoint() -> None:
    told = refusal(lambda: decisions.check_owner(LAST, "new", ""))
    assert told.endswith(
        "Use the other checkpoint, or another `name` of the sink, or allow the replacement once by the option "
        "--confirm 'flights.out=replace old'"
    )
    assert told.startswith("another checkpoint has written under this sink's name")


def test_other_rows() -> None:
    begun = decisions.Begun(Transaction("driver", 1, 0), LAST)
    told = refusal(lambda: list(decisions.finish(begun, 17, [TaskWritten("old", 17, 0, 4, None)], False, "")))
    assert told.endswith("set the option --confirm 'flights.out=skip 17'")


def test_a_checkpoint_that_was_set_back() -> None:
    assert refusal(lambda: decisions.is_written(LAST, "old", 3, "")).endswith("with a `start` of its own")


@pytest.mark.parametrize("remembered", [True, False])
def test_lost_transactions(remembered: bool) -> None:
    known = {"task": TransactionalIdState("CompleteAbort", 5, 0)} if remembered else {}
    told = in_words_of_pipelines(decisions._lost(LAST, [LOST], known), "flights.out")
    assert "'flights.out=skip 17'" in told
    assert "'flights.out=rewrite 17'" in told
    assert "ottla.exactlyOnce" not in told


def test_confirmations_find_their_queries() -> None:
    queries = ["a.out", "b.out", "b.topic-2"]
    assert confirmations(["a.out=skip 17", " topic-2 = rewrite 3"], queries) == {
        "a.out": "skip 17",
        "b.topic-2": "rewrite 3",
    }
    for given, told in [
        ("skip 17", "doesn't have the form <pipeline>.<sink>=<text>"),
        ("a.out=", "doesn't have the form"),
        ("nope=skip 1", "no sink 'nope' writes transactions; those that do are: a.out, b.out, b.topic-2"),
        ("out=skip 1", "'out' is a sink of several pipelines: say one of a.out, b.out"),
    ]:
        with pytest.raises(ValueError, match=told):
            confirmations([given], queries)
