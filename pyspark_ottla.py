"""Lets Spark find the data source `ottla`: Spark imports every module called pyspark_* and uses its `DefaultSource`."""

from ottla.spark.source import DefaultSource

__all__ = ["DefaultSource"]
