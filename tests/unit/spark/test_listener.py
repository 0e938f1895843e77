"""The lag that a listener computes from Spark's progress reports, in classic Spark and in Spark Connect."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, SourceProgress

from ottla.net.names import TopicPartition
from ottla.spark.listener import LagListener

END = {"a": {"0": 5, "1": 10}, "b": {"0": 0}, "a:AAAAAAAAAAAAAAAAAAAAAQ": {}}
LATEST = {"a": {"0": 9, "1": 10}, "b": {"0": 2}, "a:AAAAAAAAAAAAAAAAAAAAAQ": {}}
LAG = {TopicPartition("a", 0): 4, TopicPartition("a", 1): 0, TopicPartition("b", 0): 2}


def progress(*offsets: tuple[Any, Any]) -> QueryProgressEvent:
    sources = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in offsets]
    return cast(QueryProgressEvent, SimpleNamespace(progress=SimpleNamespace(name="q", id="1", sources=sources)))


@pytest.mark.parametrize("written", [json.dumps, str, lambda offsets: offsets], ids=["JSON", "Python's text", "read"])
def test_lag_in_every_shape_that_spark_hands_it_over(written: Any) -> None:
    """Before the fix, the listener reported nothing under Spark Connect of 4.2, where offsets are the text that `str`
    makes of a dictionary.
    """
    seen: list[Any] = []
    listener = LagListener(lambda query, lag: seen.append((query, lag)))
    listener.onQueryProgress(progress((written(END), written(LATEST))))
    assert seen == [("q", LAG)]
    assert listener.latest["q"] == LAG


def test_what_progress_has_no_room_for() -> None:
    listener = LagListener()
    listener.onQueryProgress(progress((json.dumps(END), json.dumps(LATEST)), ("7", "9"), ("null", None)))
    (source,) = listener.sources["q"]
    assert source.description == "ottla[a, b]"
    assert source.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": "2.0",
    }


def test_progress_as_connect_sends_it() -> None:
    content = {"description": "x", "numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    offsets = {"startOffset": None, "endOffset": END, "latestOffset": LATEST}
    source = SourceProgress.fromJson(content | offsets)
    listener = LagListener()
    listener.onQueryProgress(progress((source.endOffset, source.latestOffset)))
    assert listener.latest["q"] == LAG


@pytest.mark.parametrize("offsets", [("nonsense", "nonsense"), ("{", "{"), (None, None), ("5", "5"), ("[1]", "[2]")])
def test_offsets_of_other_sources_are_passed_over(offsets: tuple[Any, Any]) -> None:
    listener = LagListener(lambda query, lag: pytest.fail("the offsets of another source were reported"))
    listener.onQueryProgress(progress(offsets))
    assert listener.latest == {}
