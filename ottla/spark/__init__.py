"""Topics as Spark DataFrames: the data source `ottla`, and pipelines that use it.

Where this package is installed, Spark finds the data source without any call. `register` also turns filter pushdown on:
filters on partition, offset and timestamp then become bounds of the offsets that a read fetches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Registers the format `ottla` with filter pushdown in `spark`, and turns on the session's setting for pushdown."""
    from .source import PushdownSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PushdownSource)
