"""Writes the table of a topic, which has the latest value of each key, to Parquet files or to the screen.

    python -m ottla.spark.jobs.compact_table --bootstrap localhost:9092 --topic hourly --path /data/hourly

The topic needn't be compacted. A key whose latest value is null isn't in the table.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from ottla.spark.session import spark_session

from .arguments import Bootstrap, Topic
from .frames import as_text, batch, check_topics, latest_by_key
from .lines import one_line_errors

SHOWN = 20


@one_line_errors
def main(
    bootstrap: Bootstrap,
    topic: Topic,
    path: Annotated[
        str, typer.Option(help="Directory for Parquet files, which are replaced; without it the first rows are shown.")
    ] = "",
) -> None:
    """Writes or shows the latest value of each key."""
    check_topics(bootstrap, topic)
    spark = spark_session("ottla-compact-table")
    text = [as_text(f.col(name), f.lit(f"a {name} of topic '{topic}'"), "").alias(name) for name in ("key", "value")]
    table = latest_by_key(batch(spark, bootstrap, topic)).select(*text, "timestamp")
    if path:
        table.write.mode("overwrite").parquet(path)
        print(f"{spark.read.parquet(path).count():,} keys written to {path}")
        return
    shown = Table("key", "value", title=f"{topic}: {table.count():,} keys, the first {SHOWN}")
    for row in table.orderBy("key").limit(SHOWN).collect():
        shown.add_row(row.key, row.value)
    Console().print(shown)


if __name__ == "__main__":
    typer.run(main)
