"""Counts a topic's JSON records in windows of event time, by key, and writes the counts to a second topic.

    python -m ottla.spark.jobs.window_counts --bootstrap localhost:9092 --topic flights --into hourly \\
        --time time_hour --key carrier --average dep_delay --checkpoint /data/state

Whenever the count of a window changes, it is written again under the same key, `<key>|<window's start>`. So the second
topic should be compacted. A late record, whose window ended before the watermark, isn't counted.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ottla.spark.session import spark_session

from .arguments import Bootstrap, Checkpoint, Every, Into, Limit, Topic
from .frames import append, check_fields, check_topics, field, run, stream
from .lines import one_line_errors

Time = Annotated[str, typer.Option(help="The JSON field with the event's time; by default the record's timestamp.")]
Key = Annotated[str, typer.Option(help="The JSON field to count by; by default the record's key.")]
Average = Annotated[str, typer.Option(help="A JSON field whose mean is computed, too.")]


@one_line_errors
def main(
    bootstrap: Bootstrap,
    topic: Topic,
    into: Into,
    checkpoint: Checkpoint,
    time: Time = "",
    key: Key = "",
    average: Average = "",
    window: Annotated[str, typer.Option(help="Length of the windows.")] = "1 hour",
    watermark: Annotated[str, typer.Option(help="Records that are later than this aren't counted.")] = "1 day",
    every: Every = "",
    limit: Limit = 0,
) -> None:
    """Counts a topic's records in windows of event time."""
    check_topics(bootstrap, topic, into)
    spark = spark_session("ottla-window-counts")
    check_fields(spark, bootstrap, topic, [name for name in (time, key, average) if name])
    records = stream(spark, bootstrap, topic, limit)
    counted = counts(records, time=time, key=key, average=average, window=window, watermark=watermark)
    write(counted, bootstrap, into, checkpoint, every)


def counts(
    records: DataFrame,
    *,
    time: str = "",
    key: str = "",
    average: str = "",
    window: str = "1 hour",
    watermark: str = "1 day",
) -> DataFrame:
    """A row for each window and key, with the columns `start`, `key` and `count`.

    `time`, `key` and `average` are JSON fields of the records' values. By default, the time is the record's timestamp,
    and the key is the record's key. With `average`, there are also the columns `mean`, the mean of that field, and
    `present`, the number of records in which it isn't null.
    """
    events = records.select(
        (f.to_timestamp(field("value", time)) if time else f.col("timestamp")).alias("time"),
        (field("value", key) if key else f.col("key").cast("string")).alias("key"),
        (field("value", average).cast("double") if average else f.lit(None).cast("double")).alias("number"),
    )
    columns = [f.count(f.lit(1)).alias("count")]
    if average:
        columns += [f.count("number").alias("present"), f.avg("number").alias("mean")]
    grouped = events.withWatermark("time", watermark).groupBy(f.window("time", window), "key").agg(*columns)
    return grouped.select(f.col("window.start").alias("start"), *[name for name in grouped.columns if name != "window"])


def write(counted: DataFrame, bootstrap: str, into: str, checkpoint: str, every: str = "") -> None:
    """Runs the query of `counts`, and writes its rows to the topic `into` as JSON objects."""
    start = f.date_format("start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    record = counted.select(
        f.concat_ws("|", "key", start).alias("key"),
        f.to_json(f.struct(start.alias("start"), *[name for name in counted.columns if name != "start"])).alias(
            "value"
        ),
    )
    writer = record.writeStream.outputMode("update").foreachBatch(lambda rows, _: append(rows, bootstrap, into))
    run(writer.option("checkpointLocation", checkpoint), every)


if __name__ == "__main__":
    typer.run(main)
