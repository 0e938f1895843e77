"""What the pipelines share: topics as DataFrames, the latest value of each key, running a query to its end."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.options import OptionError, read_options
from ottla.spark.planning import assigned, open_client

LOOKED_AT = 100
# A person waits for the first sign of life, and a Kubernetes Job is started again.
FIRST_ANSWER_MS = 20_000


def check_topics(bootstrap: str, *topics: str) -> None:
    """Raises OptionError for a topic that doesn't exist, Unreachable when no broker answers in FIRST_ANSWER_MS.

    Asked before Spark starts: it takes a second instead of ten, and nothing of Spark's is around the answer.
    """
    names = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)}
    options = read_options(names | {"kafka.default.api.timeout.ms": str(FIRST_ANSWER_MS)}, streaming=False)
    with open_client(options.properties) as client:
        assigned(client, options.subscription)


def batch(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Everything that is in a topic now."""
    return spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


def stream(spark: SparkSession, bootstrap: str, topic: str, limit: int) -> DataFrame:
    """A topic from its beginning on; `limit` offsets a micro-batch, 0 for all there are."""
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    return (reader.option("maxOffsetsPerTrigger", limit) if limit else reader).load()


def latest_by_key(frame: DataFrame) -> DataFrame:
    """The table that a topic stands for: each key's last value, without the keys whose last value is null.

    Records of one key are in one partition, so their offsets tell which is last.
    """
    last = (
        frame.where("key IS NOT NULL")
        .groupBy("key")
        .agg(f.max_by(f.struct("value", "timestamp"), "offset").alias("last"))
    )
    return last.select("key", "last.value", "last.timestamp").where("value IS NOT NULL")


def field(column: str, name: str) -> Column:
    """A field of a JSON object, as a string; null where it isn't there."""
    if not name.replace("_", "").replace(".", "").isalnum():
        raise OptionError(f"'{name}' is no name of a JSON field")
    return f.get_json_object(f.col(column).cast("string"), f"$.{name}")


def check_fields(spark: SparkSession, bootstrap: str, topic: str, names: list[str]) -> None:
    """Raises OptionError for a field that none of the first records has; a field that is null somewhere is one.

    A pipeline would otherwise take a misspelt name for values that are all missing, and write nothing.
    """
    first = [_object(row.value) for row in batch(spark, bootstrap, topic).select("value").take(LOOKED_AT)]
    for name in names:
        if first and not any(_has(each, name.split(".")) for each in first):
            there = sorted({key for each in first for key in each})
            raise OptionError(
                f"no field '{name}' in the first {len(first)} records of topic '{topic}'; "
                + (f"their fields are {', '.join(there)}" if there else "they are no JSON objects")
            )


def _object(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _has(found: Any, path: list[str]) -> bool:
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return False
        found = found[name]
    return True


def append(frame: DataFrame, bootstrap: str, topic: str) -> None:
    """Writes a DataFrame's keys and values to a topic. Streams in update mode need it inside `foreachBatch`.

    Spark refuses update mode for sinks written in Python.
    """
    frame.write.format("ottla").mode("append").options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).save()


def run(writer: DataStreamWriter, every: str) -> None:
    """Runs a query over what is there now, or with `every` a micro-batch every so often until it is stopped."""
    query = (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
