"""Which changes of a spec are refused, because a query would lose rows or write them twice."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.spark.pipelines.ownership import Note, changed, other_owner, shared, targets_of
from ottla.spark.pipelines.spec import Pipeline, parse


def pipeline(*sinks: dict[str, Any], name: str = "p", checkpoint: str = "c", errors: Any = "fail") -> Pipeline:
    return parse(
        {
            "name": name,
            "source": {"topic": "t"},
            "sinks": list(sinks),
            "checkpoint": checkpoint,
            "errors": errors,
        }
    )


def resolve(place: str) -> str:
    return "/at/" + place.removeprefix("./").rstrip("/")


def after(former: Pipeline, now: Pipeline) -> list[str]:
    """The refusals of a pipeline in the checkpoint of a former one."""
    noted = {sink: Note(former.name, sink, each.text) for sink, each in targets_of(former, resolve).items()}
    return changed(now.name, targets_of(now, resolve), noted, "/at/c")


def test_targets_have_the_names_of_their_sinks() -> None:
    found = targets_of(
        pipeline({"topic": "a"}, {"files": "./d/"}, {"file": "f", "name": "out"}, {"console": 3}), resolve
    )
    assert {name: (each.text, each.exclusive) for name, each in found.items()} == {
        "topic-1": ("topic a", False),
        "files-2": ("files /at/d", True),
        "out": ("file /at/f", True),
        "console-4": ("the console", False),
    }
    letters = [targets_of(pipeline({"console": 1}, errors=each), resolve) for each in ({"topic": "e"}, {"table": "e"})]
    assert [each["dead-letters"].text for each in letters] == ["topic e", "table /at/e"]


def test_two_pipelines_with_one_checkpoint_are_refused() -> None:
    one, other = pipeline({"topic": "a"}), pipeline({"topic": "b"}, name="q", checkpoint="./c/")
    assert shared([one, other], resolve) == [
        "the pipelines p and q have one checkpoint, /at/c: give each a directory of its own"
    ]


def test_two_sinks_with_one_target_are_refused() -> None:
    one = pipeline({"file": "x"}, {"files": "d"}, errors={"table": "e"})
    other = pipeline({"file": "./x"}, {"files": "e"}, name="q", checkpoint="k")
    assert shared([one, other], resolve) == [
        "the sinks p.file-1 and q.file-1 write to one target, /at/x: give each a target of its own",
        "the sinks p.dead-letters and q.files-2 write to one target, /at/e: give each a target of its own",
    ]


def test_a_topic_may_have_several_writers() -> None:
    one = pipeline({"topic": "a"}, {"topic": "a", "name": "again"}, {"console": 1}, errors={"topic": "e"})
    other = pipeline({"topic": "a"}, {"console": 1}, name="q", checkpoint="k", errors={"topic": "e"})
    assert shared([one, other], resolve) == []


@pytest.mark.parametrize(
    ("former", "now"),
    [
        (pipeline({"topic": "a"}), pipeline({"topic": "a"})),
        (pipeline({"topic": "a"}), pipeline({"topic": "a"}, {"topic": "b"}, errors={"topic": "e"})),
        (pipeline({"topic": "a"}, {"topic": "b"}), pipeline({"topic": "a"})),
        (pipeline({"topic": "a"}), pipeline({"topic": "a"}, {"topic": "a", "name": "twice"})),
        (pipeline({"console": 1}), pipeline({"console": 9, "name": "shown"})),
        (pipeline({"topic": "a"}), pipeline({"topic": "b", "name": "new"}, {"topic": "a", "name": "topic-1"})),
    ],
)
def test_changes_that_keep_each_query_are_allowed(former: Pipeline, now: Pipeline) -> None:
    assert after(former, now) == []


def test_a_new_name_of_a_sink_that_has_run_is_refused() -> None:
    """It would be a new query, and write the whole source a second time."""
    assert after(pipeline({"topic": "a"}), pipeline({"topic": "a", "name": "out"})) == [
        "p: topic a was written by the sink 'topic-1', and 'out' would write every row again: `name: topic-1` goes on "
        "where it was. To write every row again, delete /at/c/topic-1"
    ]


def test_a_sink_in_front_of_another_is_refused() -> None:
    """It would take the other one's name, and with it the position."""
    assert after(pipeline({"topic": "a"}), pipeline({"topic": "b"}, {"topic": "a"})) == [
        "p: the sink 'topic-1' wrote to topic a, and would write to topic b now, without the rows before: give the "
        "sink of topic b a `name` of its own, and the sink of topic a, if it stays, `name: topic-1`; or delete "
        "/at/c/topic-1/pipeline.json to go on in topic b from the present position"
    ]


def test_other_dead_letters_are_refused() -> None:
    now = pipeline({"console": 1}, errors={"topic": "f"})
    assert after(pipeline({"console": 1}, errors={"topic": "e"}), now) == [
        "p: dead letters went to topic e, and would go to topic f now: delete /at/c/dead-letters/pipeline.json to go "
        "on in topic f from the present position"
    ]


def test_the_checkpoint_of_another_pipeline_is_refused() -> None:
    assert after(pipeline({"topic": "a"}), pipeline({"topic": "b"}, name="q")) == [
        "q: /at/c is the checkpoint of the pipeline 'p': `name: p` goes on there, and another pipeline needs another "
        "checkpoint"
    ]


def test_only_the_owner_writes() -> None:
    assert other_owner("file /x", "1", "1", "x.batches") is None
    assert other_owner("file /x", "1", "2", "x.batches") == (
        "file /x belongs to another query (id 1), and this query's id is 2: use the checkpoint of that query, or "
        "another target. If you delete x.batches, this query adds its rows to those that are there"
    )
