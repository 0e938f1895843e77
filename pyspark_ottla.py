"""Lets Spark find the data source `ottla`: Spark imports each module named pyspark_* and registers `DefaultSource`."""

from ottla.spark.source import DefaultSource

__all__ = ["DefaultSource"]
