"""Writes a topic to files: Parquet or JSON lines, in a directory for each date.

    python -m ottla.spark.jobs.sink --bootstrap localhost:9092 --topic flights \\
        --path /data/flights --checkpoint /data/state

Keys, values and headers are written as text. With `--values bytes` they are written as bytes, which are base64 in JSON
lines. If bytes aren't valid UTF-8 and are to be written as text, the pipeline fails: its message has the topic,
partition and offset of the record.

A reader that uses Spark's list of files, `_spark_metadata`, finds each record exactly once. Spark's own readers use
this list. Other readers may also find the files of a micro-batch that failed and was written again.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.spark.options import OptionError
from ottla.spark.session import spark_session

from .arguments import Bootstrap, Checkpoint, Every, Limit, Topic
from .frames import as_text, check_topics, run, stream
from .lines import one_line_errors

FORMATS = ("parquet", "json")
VALUES = ("text", "bytes")


@one_line_errors
def main(
    bootstrap: Bootstrap,
    topic: Topic,
    path: Annotated[str, typer.Option(help="Directory to write to.")],
    checkpoint: Checkpoint,
    format: Annotated[str, typer.Option(help="Format of the files: parquet or json.")] = "parquet",
    values: Annotated[str, typer.Option(help="How keys, values and headers are written: text or bytes.")] = "text",
    every: Every = "",
    limit: Limit = 0,
) -> None:
    """Writes a topic to files, partitioned by the records' date."""
    if format not in FORMATS:
        raise OptionError(f"--format is '{format}': it must be parquet or json")
    if values not in VALUES:
        raise OptionError(f"--values is '{values}': it must be text or bytes")
    check_topics(bootstrap, topic)
    spark = spark_session("ottla-sink")
    sink(spark, bootstrap, topic, path, checkpoint, format=format, values=values, every=every, limit=limit)


def sink(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    path: str,
    checkpoint: str,
    *,
    format: str = "parquet",
    values: str = "text",
    every: str = "",
    limit: int = 0,
) -> None:
    """Writes the topic to files in the directory `path`, from the position in the directory `checkpoint` on."""
    records = rows(stream(spark, bootstrap, topic, limit, headers=True), values)
    writer = records.writeStream.format(format).partitionBy("date")
    run(writer.option("path", path).option("checkpointLocation", checkpoint), every)


def rows(records: DataFrame, values: str = "text") -> DataFrame:
    """The rows of the files, of a read with the column `headers`.

    Columns: key, value and headers as text or bytes (`values`), topic, partition, offset, timestamp, and the
    timestamp's date in the session's time zone, which is UTC.
    """
    where = ("topic", "partition", "offset", "timestamp", f.to_date("timestamp").alias("date"))
    if values == "bytes":
        return records.select("key", "value", "headers", *where)
    headers = f.transform("headers", lambda each: f.struct(each.key.alias("key"), _text(each.value, "header's value")))
    return records.select(_text(f.col("key"), "key"), _text(f.col("value"), "value"), headers.alias("headers"), *where)


def _text(column: Column, name: str) -> Column:
    what = f.concat(f.lit(f"the {name} at offset "), "offset", f.lit(" of "), "topic", f.lit("-"), "partition")
    return as_text(column, what, "; --values bytes writes it as it is").alias(name.rpartition(" ")[2])


if __name__ == "__main__":
    typer.run(main)
