"""The data source `ottla` as Spark sees it: schema, batch reader, and where streams and writes begin.

Two classes, because Spark fails a query whose reader defines `pushFilters` while
`spark.sql.python.filterPushdown.enabled` is off, as it is by default: Spark finds `DefaultSource` by itself (module
`pyspark_ottla`), which must therefore not define it; `ottla.spark.register` turns the setting on and registers
`PushdownSource`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from . import offsets
from .options import OptionError, ReadOptions, read_options, wants_headers, write_options
from .planning import batch_ranges, open_client
from .pushdown import Bounds, push
from .schema import COLUMNS, HEADERS, arrow_schema, ddl
from .task import TaskRanges

log = logging.getLogger("ottla.spark")


class DefaultSource(DataSource):
    """`spark.read.format("ottla")` with the options and the schema of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ottla"

    def schema(self) -> str:
        """Kafka's columns, with headers where includeHeaders is true."""
        return ddl(wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of the columns in `schema`."""
        return BatchReader(read_options(self.options, streaming=False), checked_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming reader of the columns in `schema`."""
        from .stream import StreamReader

        return StreamReader(read_options(self.options, streaming=True), checked_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer of rows with the columns in `schema`."""
        from .sink import BatchWriter, checked

        if overwrite:
            raise OptionError("a topic can't be overwritten: write with mode append")
        return BatchWriter(checked(write_options(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming writer; in complete mode each result is appended, as Spark's Kafka sink does."""
        from .sink import StreamWriter, checked

        return StreamWriter(checked(write_options(self.options), schema))


class PushdownSource(DefaultSource):
    """The same source, whose batch reader takes filters."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of the columns in `schema` that takes filters."""
        return PushdownReader(read_options(self.options, streaming=False), checked_schema(schema))


class BatchReader(DataSourceReader):
    """Plans a batch read on the driver and carries it out in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.spark_schema = schema
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read, as they are now. Errors in options and topics are raised here, before any task."""
        for warning in self.options.warnings:
            log.warning("%s", warning)
        with open_client(self.options.properties) as client:
            ranges, topic_ids = batch_ranges(client, self.options, self.bounds)
        planned = offsets.tasks(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [TaskRanges(each, topic_ids) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        from .reading import read_task

        return read_task(partition, self.options, arrow_schema(self.spark_schema))


class PushdownReader(BatchReader):
    """A batch reader that cuts the ranges by filters on partition, offset and timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes what can be said in offsets, and returns the filters that Spark must still evaluate."""
        self.bounds, rest = push(filters)
        return rest


def checked_schema(schema: StructType) -> StructType:
    """`schema` if it consists of Kafka's columns with their types. Raises OptionError."""
    known = {name: kind.replace(": ", ":").replace(", ", ",") for name, kind in (*COLUMNS, HEADERS)}
    for field in schema:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            raise OptionError(f"column {field.name} {kind} is none of the source's, which are {ddl(True)}")
    return schema
