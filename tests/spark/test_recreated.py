"""A topic that is deleted and created anew during a stream or a planned read, on a real broker, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from ottla.spark.planning import DataLoss
from ottla.spark.source import DefaultSource
from tests.spark.topics import Topics

SCHEMA = StructType([StructField("value", BinaryType())])
ALL = ReadAllAvailable()


def source(bootstrap: str, topic: str, **options: str) -> DefaultSource:
    return DefaultSource({"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options})


def values(reader: Any, tasks: Any) -> list[bytes]:
    return [value for task in tasks for rows in reader.read(task) for value in rows.column("value").to_pylist()]


@pytest.mark.parametrize("count", [40, 250])
def test_under_a_checkpoint(bootstrap: str, topics: Topics, count: int) -> None:
    """The checkpoint is at offset 100 of the old topic, and the new topic has 40 or 250 records.

    Before the fix, the stream skipped the first 100 records of the new topic, or all 40.
    """
    topic = topics.create(1)
    topics.fill(topic, 0, 100)
    first = source(bootstrap, topic, startingOffsets="earliest").streamReader(SCHEMA)
    end = first.latestOffset(first.initialOffset(), ALL)
    first.stop()
    topics.recreate(topic)
    topics.fill(topic, 0, count, first=1000)
    strict = source(bootstrap, topic).streamReader(SCHEMA)
    with pytest.raises(DataLoss, match="was deleted and created anew"):
        strict.latestOffset(end, ALL)
    strict.stop()
    reader = source(bootstrap, topic, failOnDataLoss="false").streamReader(SCHEMA)
    again = reader.latestOffset(end, ALL)
    assert values(reader, reader.partitions(end, again)) == [b"0:%d" % (1000 + index) for index in range(count)]
    assert reader.latestOffset(again, ALL) == again
    reader.stop()


@pytest.mark.parametrize("loss", ["true", "false"])
def test_between_planning_and_reading(bootstrap: str, topics: Topics, loss: str) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 30)
    reader = source(bootstrap, topic, failOnDataLoss=loss).reader(SCHEMA)
    tasks = reader.partitions()
    topics.recreate(topic)
    topics.fill(topic, 0, 30, first=500)
    if loss == "false":
        assert values(reader, tasks) == []
        return
    with pytest.raises(DataLoss, match=r"offsets 0 to 30 of .* was deleted and created anew"):
        values(reader, tasks)
