"""The data source `ottla` as Spark sees it: schema, batch reader, and where streams and writes begin.

Two classes, because Spark fails a query whose reader defines `pushFilters` while
`spark.sql.python.filterPushdown.enabled` is off, as it is by default: Spark finds `DefaultSource` by itself (module
`pyspark_ottla`), which must therefore not define it; `ottla.spark.register` turns the setting on and registers
`PushdownSource`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from . import offsets
from .options import OptionError, ReadOptions, read_names, read_options
from .planning import batch_ranges, open_client
from .schema import COLUMNS, HEADERS, ddl

log = logging.getLogger("ottla.spark")


class DefaultSource(DataSource):
    """`spark.read.format("ottla")` with the options and the schema of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ottla"

    def schema(self) -> str:
        """Kafka's columns, with headers where includeHeaders is true."""
        return ddl(read_names(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of the columns in `schema`."""
        return BatchReader(read_options(self.options, streaming=False), checked_schema(schema))


class BatchReader(DataSourceReader):
    """Plans a batch read on the driver and carries it out in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.spark_schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read, as they are now. Errors in options and topics are raised here, before any task."""
        from .reading import RangePartition

        for warning in self.options.warnings:
            log.warning("%s", warning)
        with open_client(self.options.properties) as client:
            ranges = batch_ranges(client, self.options)
        pieces = offsets.split(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [RangePartition.of(each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        from .reading import read_range

        return read_range(partition, self.options, arrow_schema(self.spark_schema))


def checked_schema(schema: StructType) -> StructType:
    """`schema` if it consists of Kafka's columns with their types. Raises OptionError."""
    known = {name: kind.replace(": ", ":").replace(", ", ",") for name, kind in (*COLUMNS, HEADERS)}
    for field in schema:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            raise OptionError(f"column {field.name} {kind} is none of the source's, which are {ddl(True)}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects record batches to have."""
    return to_arrow_schema(schema, timezone="UTC")
