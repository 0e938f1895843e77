"""The name by which Spark finds the data source `ottla`: it imports every module called pyspark_* and asks for this."""

from ottla.spark.source import DefaultSource

__all__ = ["DefaultSource"]
