"""Functions that several pipelines use: topics as DataFrames, the table of a topic, and running a query to its end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.options import OptionError, kafka_options, read_options
from ottla.spark.planning import assigned, open_client

LOOKED_AT = 100
# Shorter than a client's default: a user waits for the first answer, and Kubernetes restarts a Job that fails.
FIRST_ANSWER_MS = 20_000
STARVED = "to connect back"  # in the message of Spark's PythonWorkerFactory if a Python process didn't start in time
LOOK_S = 1  # how long one query is waited for before the others are looked at
STARVED_MAX = 5  # restarts of a query without progress between them

log = logging.getLogger("ottla.spark")


def check_topics(kafka: str | Mapping[str, str], *topics: str) -> None:
    """Raises OptionError if a topic doesn't exist, and Unreachable if no broker answers within FIRST_ANSWER_MS. `kafka`
    is the address of brokers, or all properties of a Kafka client.

    A pipeline calls it before it starts Spark. So the error comes after one second instead of ten, and isn't within a
    stack trace of Spark.
    """
    properties = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
    names = {"kafka.default.api.timeout.ms": str(FIRST_ANSWER_MS), "subscribe": ",".join(topics)}
    options = read_options(names | kafka_options(properties), streaming=False)
    with open_client(options.properties) as client:
        assigned(client, options.subscription)


def batch(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """A DataFrame of all records that a topic has now."""
    return spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


def stream(spark: SparkSession, bootstrap: str, topic: str, limit: int, *, headers: bool = False) -> DataFrame:
    """A streaming DataFrame of a topic from its beginning. A micro-batch has about `limit` offsets; 0 means no limit.

    With `headers`, it has the column `headers` too.
    """
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", headers)
    return (reader.option("maxOffsetsPerTrigger", limit) if limit else reader).load()


def latest_by_key(frame: DataFrame) -> DataFrame:
    """The table of a topic: each key with its latest value and that value's timestamp. Keys whose latest value is null
    are left out.

    All records of a key must be in one partition: the latest record is the one with the highest offset.
    """
    last = (
        frame.where("key IS NOT NULL")
        .groupBy("key")
        .agg(f.max_by(f.struct("value", "timestamp"), "offset").alias("last"))
    )
    return last.select("key", "last.value", "last.timestamp").where("value IS NOT NULL")


def as_text(value: Column, what: Column, remedy: str) -> Column:
    """Bytes as a string. If bytes aren't valid UTF-8, the query fails with a message made of `what` and `remedy`.

    Spark itself would write these bytes to a file unchanged. A reader of the file might notice the fault only after
    retention has deleted the records from the topic.
    """
    text = value.cast("string")
    refusal = f.raise_error(f.concat(what, f.lit(f" is no text (UTF-8){remedy}")))
    return f.when(value.isNull() | f.is_valid_utf8(text), text).otherwise(refusal.cast("string"))


def field(column: str, name: str) -> Column:
    """A field of the JSON object in a column, as a string. It is null if the object lacks the field.

    `name` may be a path with dots. Raises OptionError if it has other characters than letters, digits, _ and dots.
    """
    if not name.replace("_", "").replace(".", "").isalnum():
        raise OptionError(f"'{name}' isn't the name of a JSON field: letters, digits, _ and dots are allowed")
    return f.get_json_object(f.col(column).cast("string"), f"$.{name}")


def check_fields(spark: SparkSession, bootstrap: str, topic: str, names: list[str]) -> None:
    """Raises OptionError if none of the topic's first LOOKED_AT records has one of these JSON fields.

    A record whose field is null has the field. If the topic is empty, there is no error. Without this check, a pipeline
    would treat the field of a misspelt name as missing in every record, and write nothing.
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
    """Appends the rows of a batch DataFrame to a topic.

    A stream in update mode calls it in `foreachBatch`, because Spark refuses update mode for sinks written in Python.
    """
    frame.write.format("ottla").mode("append").options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).save()


def run(writer: DataStreamWriter, every: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Runs one query, as `run_all` does."""
    run_all([(writer, every)], pause)


def run_all(writers: Iterable[tuple[DataStreamWriter, str]], pause: Callable[[float], None] = time.sleep) -> None:
    """Runs queries until each has read all records that its topic has now.

    A query's text is an interval such as `10 seconds`: the query runs a micro-batch in each interval until Ctrl-C. The
    text is empty if the query shall end.

    A Python process plans a stream. Spark gives it ten seconds to start, which no setting changes, and on a busy
    machine it may take longer. A query that fails for this reason is started again from its checkpoint, after a pause
    that doubles each time. After STARVED_MAX such restarts without a micro-batch between them, the error is raised. Any
    other error of a query is raised without a restart. A query with an interval may also end without an error, because
    something else has stopped it: Spark does so when another query starts from the same checkpoint. This raises
    Stopped. When an error is raised, the other queries are stopped.
    """
    running: list[_Restarted] = []
    try:
        for writer, every in writers:
            running.append(_Restarted(writer, every, pause))
        while running:
            running = [each for each in running if not each.ended(LOOK_S)]
    except KeyboardInterrupt:
        pass
    finally:
        for each in running:
            each.stop()


class Stopped(Exception):
    """A query that should run until Ctrl-C was stopped by something else."""


class _Restarted:
    """A query that is started again if Spark's Python didn't start in time."""

    def __init__(self, writer: DataStreamWriter, every: str, pause: Callable[[float], None]) -> None:
        self._writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
        self._endless = bool(every)
        self._pause = pause
        self._starved = 0
        self._query = self._writer.start()

    def ended(self, seconds: int) -> bool:
        """Whether the query has ended, after a wait of at most so many seconds. Raises StreamingQueryException, and
        Stopped."""
        try:
            if not self._query.awaitTermination(seconds):
                return False
            if self._endless:
                raise Stopped(
                    f"the query {self._query.name} was stopped from outside: another query may have started from its "
                    "checkpoint"
                )
            return True
        except StreamingQueryException as error:
            if self._query.lastProgress is not None:
                self._starved = 0
            self._starved += 1
            if STARVED not in str(error) or self._starved > STARVED_MAX:
                raise
        log.warning("Spark's Python took more than ten seconds to start; starting the query again")
        self._pause(2.0**self._starved)
        self._query = self._writer.start()
        return False

    def stop(self) -> None:
        """Stops the query if it runs."""
        self._query.stop()
