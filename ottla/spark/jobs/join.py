"""Joins a stream with a table: adds to each record of one topic the latest value that a second topic has for its key.

    python -m ottla.spark.jobs.join --bootstrap localhost:9092 --topic flights --table airlines --into named \\
        --checkpoint /data/state

A record matches if its key has the same bytes in both topics. The table is read again for each micro-batch. A record of
the target topic has the stream's key and the value {"value": …, "table": …}; `table` is null if the table doesn't have
the key.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.spark.session import spark_session

from .arguments import Bootstrap, Checkpoint, Every, Into, Limit, Topic
from .frames import append, as_text, batch, check_topics, latest_by_key, run, stream
from .lines import one_line_errors


@one_line_errors
def main(
    bootstrap: Bootstrap,
    topic: Topic,
    table: Annotated[str, typer.Option(help="The topic whose latest values are the table.")],
    into: Into,
    checkpoint: Checkpoint,
    every: Every = "",
    limit: Limit = 0,
) -> None:
    """Joins a stream with a table, by key."""
    check_topics(bootstrap, topic, table, into)
    join(spark_session("ottla-join"), bootstrap, topic, table, into, checkpoint, every=every, limit=limit)


def join(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    table: str,
    into: str,
    checkpoint: str,
    *,
    every: str = "",
    limit: int = 0,
) -> None:
    """Reads the stream `topic`, joins it with the table of the topic `table`, and writes the result to `into`."""

    def write(records: DataFrame, _: int) -> None:
        known = latest_by_key(batch(records.sparkSession, bootstrap, table)).select(
            "key", f.col("value").alias("known")
        )
        joined = records.select("key", "value").join(known, "key", "left")
        value = f.to_json(f.struct(_text("value"), _text("known").alias("table")), {"ignoreNullFields": "false"})
        append(joined.select("key", value.alias("value")), bootstrap, into)

    writer = stream(spark, bootstrap, topic, limit).writeStream.foreachBatch(write)
    run(writer.option("checkpointLocation", checkpoint), every)


def _text(name: str) -> Column:
    return as_text(f.col(name), f.lit(f"a {name}"), "").alias(name)


if __name__ == "__main__":
    typer.run(main)
