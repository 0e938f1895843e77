"""Topics as Spark DataFrames: the data source `ottla`, and pipelines that use it.

Spark finds the source by itself where the package is installed. `register` is for sessions that also want filters on
partition, offset and timestamp pushed down to Kafka's offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes the format `ottla` known to `spark`, with filter pushdown, which this switches on for the session."""
    from .source import PushdownSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PushdownSource)
