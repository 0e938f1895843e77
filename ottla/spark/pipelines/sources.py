"""The sources of a pipeline, each as a flow of decoded rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.net.names import EARLIEST
from ottla.spark.options import kafka_options, read_options
from ottla.spark.planning import assigned, open_client, resolve
from ottla.spark.positions import Position, from_json

from . import line_source
from .decoding import decoded
from .flow import RECORD, RECORD_TYPE, Flow
from .spec import FileSource, Source, TopicSource

Kafka = Mapping[str, str]
"""Properties of a Kafka client."""


def read(spark: SparkSession, source: Source, kafka: Kafka, *, start: str, fatal: bool) -> Flow:
    """The rows of the source. `start` has the offsets at which a new query begins, as JSON; if it is empty, the source
    says where. If `fatal`, a row that can't be decoded ends the pipeline. Raises ParseException if Spark can't parse
    the schema."""
    if isinstance(source, TopicSource):
        return decoded(
            Flow(_records(spark, source, kafka, start or source.start), fatal), source.format, source.schema_
        )
    if source.format == "parquet":
        return Flow(_files(spark, source), fatal)
    return decoded(Flow(_lines(spark, source), fatal), source.format, source.schema_)


def start_at(source: Source, kafka: Kafka, noted: Mapping[str, Mapping[str, int]] | None) -> str:
    """The offsets at which all queries of a pipeline begin under `start: latest`, as JSON; empty if the source begins
    elsewhere.

    Each query would find ends of its own: a record between two of them would reach one query and not the other.
    `noted` has the offsets that an earlier run found; partitions that it didn't know begin at their earliest offset.
    Raises OptionError, and ConnectionError if no broker answers.
    """
    if not isinstance(source, TopicSource) or source.start != "latest":
        return ""
    options = read_options({**records_options(source, kafka), "startingOffsets": "latest"}, streaming=True)
    with open_client(options.properties) as client:
        partitions, _ = assigned(client, options.subscription)
        if noted is None:
            found = resolve(client, partitions, options.starting, options, starting=True)
        else:
            known = from_json(noted).offsets
            found = {each: known.get(each, EARLIEST) for each in partitions}
    return json.dumps(Position(found, {}).json())


def records_options(source: TopicSource, kafka: Kafka) -> dict[str, str]:
    """The options of the data source that say which records are read. Records of aborted transactions are never rows,
    whatever the client's properties say."""
    committed = {**kafka, "isolation.level": "read_committed"}
    return {**kafka_options(committed), "subscribe": ",".join(source.topics)}


def _records(spark: SparkSession, source: TopicSource, kafka: Kafka, start: str) -> DataFrame:
    reader = spark.readStream.format("ottla").options(**records_options(source, kafka))
    reader = reader.option("startingOffsets", start)
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
