"""What the pipelines share: topics as DataFrames, the latest value of each key, running a query to its end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.options import OptionError, read_options
from ottla.spark.planning import assigned, open_client

LOOKED_AT = 100
# A person waits for the first sign of life, and a Kubernetes Job is started again.
FIRST_ANSWER_MS = 20_000
STARVED = "to connect back"  # what PythonWorkerFactory says of a Python that didn't start in time
STARVED_MAX = 5  # times in a row

log = logging.getLogger("ottla.spark")


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


def stream(spark: SparkSession, bootstrap: str, topic: str, limit: int, *, headers: bool = False) -> DataFrame:
    """A topic from its beginning on; `limit` offsets a micro-batch, 0 for all there are."""
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", headers)
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


def as_text(value: Column, what: Column, remedy: str) -> Column:
    """Bytes as a string; bytes that are no UTF-8 end the query, which says `what` they are.

    Spark would write these bytes as they are, and a reader of the file might notice the fault only after retention has
    deleted the records from the topic.
    """
    text = value.cast("string")
    refusal = f.raise_error(f.concat(what, f.lit(f" is no text (UTF-8){remedy}")))
    return f.when(value.isNull() | f.is_valid_utf8(text), text).otherwise(refusal.cast("string"))


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


def run(writer: DataStreamWriter, every: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Runs a query over what is there now, or with `every` a micro-batch every so often until it is stopped.

    Spark gives a Python that plans a stream ten seconds to start, which no setting changes, and a busy machine may take
    longer. A query that ends for that reason goes on from its checkpoint, after a longer pause each time.
    """
    triggered = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
    starved = 0
    while True:
        query = triggered.start()
        try:
            query.awaitTermination()
            return
        except KeyboardInterrupt:
            query.stop()
            return
        except StreamingQueryException as error:
            if query.lastProgress is not None:
                starved = 0
            starved += 1
            if STARVED not in str(error) or starved > STARVED_MAX:
                raise
            log.warning("Spark's Python took more than ten seconds to start; starting the query again")
            pause(2.0**starved)
