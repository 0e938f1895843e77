"""The sinks of a pipeline: each is a streaming query of its own, with its own checkpoint and its own guarantee.

| sink | guarantee | by which mechanism |
|---|---|---|
| `topic` | exactly once for consumers of committed records | transactions (docs/spark.md) |
| `files` | exactly once for readers of Spark's `_spark_metadata` | Spark's file sink |
| `file` | exactly once | a ledger beside the file (`text_file`) |
| `console` | at least once | |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.exactly_once import query_id_in
from ottla.spark.options import kafka_options
from ottla.wording import counted

from .encoding import encoded
from .flow import FAILURE, RECORD
from .paths import resolved
from .sources import Kafka
from .spec import ConsoleSink, DeadLetterTable, DeadLetterTopic, FileSink, FilesSink, Sink, TopicSink
from .text_file import TextFile

_HEADERS = "__connect.errors."


def written(rows: DataFrame, sink: Sink, kafka: Kafka, query: str, checkpoint: str, where: str) -> DataStreamWriter:
    """The query's writer. `query` is its name, `checkpoint` its directory, `where` the sink's path in the spec. Raises
    SpecError if the columns don't fit the sink."""
    columns = rows.drop(RECORD)
    if isinstance(sink, TopicSink):
        records = encoded(rows, sink.format, sink.key, where)
        return _topic(records, sink.topic, kafka, query, exactly_once=sink.guarantee == "exactly-once")
    if isinstance(sink, FilesSink):
        writer = columns.writeStream.queryName(query).format(sink.format).option("path", sink.files)
        return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
    if isinstance(sink, FileSink):
        lines = encoded(rows, sink.format, "", where).select(f.coalesce("value", f.lit("null")).alias("value"))
        return rows_each_batch(lines, query, partial(_append, Path(resolved(sink.file)), checkpoint))
    assert isinstance(sink, ConsoleSink)
    return rows_each_batch(columns, query, partial(_show, query, sink.console))


def dead_letters(
    failed: DataFrame, errors: DeadLetterTopic | DeadLetterTable, kafka: Kafka, query: str, pipeline: str
) -> DataStreamWriter:
    """The writer of the rows that failed."""
    if isinstance(errors, DeadLetterTopic):
        return _topic(_letters(failed, pipeline), errors.topic, kafka, query, exactly_once=True)
    rows = failed.select(f"{RECORD}.*", f"{FAILURE}.stage", f"{FAILURE}.exception", f"{FAILURE}.message")
    return rows.writeStream.queryName(query).format("parquet").option("path", errors.table)


def _topic(records: DataFrame, topic: str, kafka: Kafka, query: str, *, exactly_once: bool) -> DataStreamWriter:
    writer = records.writeStream.format("ottla").queryName(query).options(**kafka_options(kafka))
    return writer.option("topic", topic).option("ottla.exactlyOnce", exactly_once)


def _letters(failed: DataFrame, pipeline: str) -> DataFrame:
    """Records as they were, with the headers that Kafka Connect's DeadLetterQueueReporter adds to its own."""
    record, why = f.col(RECORD), f.col(FAILURE)
    told = {
        "topic": record["topic"],
        "partition": record["partition"].cast("string"),
        "offset": record["offset"].cast("string"),
        "connector.name": f.lit(pipeline),
        "task.id": f.lit("0"),
        "stage": why["stage"],
        "class.name": why["executing"],
        "exception.class.name": why["exception"],
        "exception.message": why["message"],
    }
    added = [
        f.struct(f.lit(_HEADERS + name).alias("key"), value.cast("binary").alias("value"))
        for name, value in told.items()
    ]
    none = f.array().cast("array<struct<key:string,value:binary>>")
    headers = f.concat(f.coalesce(record["headers"], none), f.array(*added))
    return failed.select(record["key"].alias("key"), record["value"].alias("value"), headers.alias("headers"))


def rows_each_batch(rows: DataFrame, query: str, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """A writer that calls `write(rows, number)` on the driver for each batch."""
    return rows.writeStream.queryName(query).foreachBatch(write)


def _append(path: Path, checkpoint: str, rows: DataFrame, batch: int) -> None:
    TextFile(path, query_id_in(checkpoint) or "").write(batch, (row.value for row in rows.toLocalIterator()))


def _show(query: str, most: int, rows: DataFrame, batch: int) -> None:
    """Prints the first rows, and takes all of them: a step with state has its state committed only if each of its tasks
    was carried out, and a row that ends the pipeline may come behind the rows that are shown."""
    count = 0
    for count, row in enumerate(rows.toLocalIterator(), 1):
        if count == 1:
            print(f"{query}, batch {batch}:")
        if count <= most:
            print("  " + ", ".join(f"{name}={value}" for name, value in row.asDict().items()))
    if count > most:
        print(f"  … and {counted(count - most, 'more row')}", flush=True)
