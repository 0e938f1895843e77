"""A topic to files: Parquet or JSON lines, in a directory for each date.

    python -m ottla.spark.jobs.sink --bootstrap localhost:9092 --topic flights \\
        --path /data/flights --checkpoint /data/state

Each record is in the files exactly once for readers that honour Spark's `_spark_metadata`, as Spark does; others
may see files of a micro-batch that failed and was written again.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.spark.options import OptionError
from ottla.spark.session import spark_session

from .arguments import Bootstrap, Checkpoint, Every, Limit, Topic
from .frames import check_topics, run, stream
from .lines import one_line_errors

FORMATS = ("parquet", "json")


@one_line_errors
def main(
    bootstrap: Bootstrap,
    topic: Topic,
    path: Annotated[str, typer.Option(help="Directory to write to.")],
    checkpoint: Checkpoint,
    format: Annotated[str, typer.Option(help="parquet or json.")] = "parquet",
    every: Every = "",
    limit: Limit = 0,
) -> None:
    """Writes a topic to files, partitioned by the records' date."""
    if format not in FORMATS:
        raise OptionError(f"--format is '{format}': it must be parquet or json")
    check_topics(bootstrap, topic)
    sink(spark_session("ottla-sink"), bootstrap, topic, path, checkpoint, format=format, every=every, limit=limit)


def sink(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    path: str,
    checkpoint: str,
    *,
    format: str = "parquet",
    every: str = "",
    limit: int = 0,
) -> None:
    """Runs the pipeline."""
    writer = rows(stream(spark, bootstrap, topic, limit)).writeStream.format(format).partitionBy("date")
    run(writer.option("path", path).option("checkpointLocation", checkpoint), every)


def rows(records: DataFrame) -> DataFrame:
    """Keys and values as strings, where they come from, and the date (UTC) of their timestamp."""
    text = [f.col(name).cast("string").alias(name) for name in ("key", "value")]
    return records.select(*text, "topic", "partition", "offset", "timestamp", f.to_date("timestamp").alias("date"))


if __name__ == "__main__":
    typer.run(main)
