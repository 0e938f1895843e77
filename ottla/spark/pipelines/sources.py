"""The sources of a pipeline, each as a flow of decoded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from . import line_source
from .decoding import decoded
from .flow import RECORD, RECORD_TYPE, Flow
from .spec import FileSource, Source, TopicSource

Kafka = Mapping[str, str]
"""Properties of a Kafka client."""


def read(spark: SparkSession, source: Source, kafka: Kafka, *, fatal: bool) -> Flow:
    """The rows of the source. If `fatal`, a row that can't be decoded ends the pipeline. Raises ParseException if
    Spark can't parse the schema."""
    if isinstance(source, TopicSource):
        return decoded(Flow(_records(spark, source, kafka), fatal), source.format, source.schema_)
    if source.format == "parquet":
        return Flow(_files(spark, source), fatal)
    return decoded(Flow(_lines(spark, source), fatal), source.format, source.schema_)


def _records(spark: SparkSession, source: TopicSource, kafka: Kafka) -> DataFrame:
    topics = [source.topic] if isinstance(source.topic, str) else source.topic
    reader = spark.readStream.format("ottla").options(**kafka_options(kafka)).option("subscribe", ",".join(topics))
    # Transactions that were aborted aren't rows.
    reader = reader.option("startingOffsets", source.start).option("isolation.level", "read_committed")
    if source.rows_per_batch:
        reader = reader.option("maxOffsetsPerTrigger", source.rows_per_batch)
    return reader.option("includeHeaders", True).load().select(_record(f.col))


def _lines(spark: SparkSession, source: FileSource) -> DataFrame:
    spark.dataSource.register(line_source.LineSource)
    reader = spark.readStream.format(line_source.NAME).option("path", source.files)
    lines = reader.option("bytesPerBatch", source.bytes_per_batch).load()
    there = {"topic": f.col("path"), "offset": f.col("offset"), "value": f.col("value")}
    return lines.select(_record(lambda name: there.get(name, f.lit(None))))


def _files(spark: SparkSession, source: FileSource) -> DataFrame:
    # Spark would skip files that are a week older than the newest one.
    files = spark.readStream.schema(source.schema_).option("maxFileAge", "36500d").parquet(source.files)
    there = {"topic": f.col("_metadata.file_path")}
    return files.select("*", _record(lambda name: there.get(name, f.lit(None))))


def _record(column: Callable[[str], Column]) -> Column:
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return f.struct(*(column(name).alias(name) for name in names)).cast(RECORD_TYPE).alias(RECORD)


def kafka_options(kafka: Kafka) -> dict[str, str]:
    """The properties as options of the format `ottla`."""
    return {f"kafka.{name}": value for name, value in kafka.items()}
