"""The data source `ottla`: the classes that Spark calls for its schema, its batch reader, its streams and its writers.

There are two classes of the source, because a query fails if its reader defines `pushFilters` and Spark's setting
`spark.sql.python.filterPushdown.enabled` is off, which is the default:

- `DefaultSource` doesn't define `pushFilters`. Spark finds it without any call, in the module `pyspark_ottla`.
- `PushdownSource` does. `ottla.spark.register` registers it, and turns the setting on.
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
    """The format `ottla`, with the options and the schema of Spark's Kafka source, without filter pushdown."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ottla"

    def schema(self) -> str:
        """The columns of Spark's Kafka source as a DDL string, with `headers` if the option includeHeaders is true."""
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
        from .exactly_once import TransactionalBatchWriter
        from .sink import BatchWriter, checked

        if overwrite:
            raise OptionError("a topic can't be overwritten: write with mode append")
        options = checked(write_options(self.options, streaming=False), schema)
        return BatchWriter(options) if options.exactly_once is None else TransactionalBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming writer of rows with the columns in `schema`.

        In complete mode (`overwrite`), each result is appended to the topic, as by Spark's Kafka sink.
        """
        from .exactly_once import ExactlyOnceStreamWriter
        from .sink import StreamWriter, checked

        options = checked(write_options(self.options, streaming=True), schema)
        if options.exactly_once is None:
            return StreamWriter(options)
        return ExactlyOnceStreamWriter(options, options.exactly_once)


class PushdownSource(DefaultSource):
    """The format `ottla` with filter pushdown in batch reads."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of the columns in `schema`, to which Spark pushes filters down."""
        return PushdownReader(read_options(self.options, streaming=False), checked_schema(schema))


class BatchReader(DataSourceReader):
    """Plans a batch read on the driver, and reads its ranges of offsets in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.spark_schema = schema
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, with the ranges of offsets that each of them reads. Resolves the bounds at the time of the call.

        Raises OptionError before any task starts, and DataLoss under failOnDataLoss.
        """
        for warning in self.options.warnings:
            log.warning("%s", warning)
        with open_client(self.options.properties) as client:
            ranges, topic_ids = batch_ranges(client, self.options, self.bounds)
        planned = offsets.tasks(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [TaskRanges(each, topic_ids) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in Arrow record batches."""
        from .reading import read_task

        return read_task(partition, self.options, arrow_schema(self.spark_schema))


class PushdownReader(BatchReader):
    """A batch reader that narrows its ranges of offsets by filters on partition, offset and timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Turns filters into bounds of the offsets, and returns the filters that Spark must still evaluate."""
        self.bounds, rest = push(filters)
        return rest


def checked_schema(schema: StructType) -> StructType:
    """Returns `schema` if it has only columns of Spark's Kafka source, with their types. Raises OptionError."""
    known = {name: kind.replace(": ", ":").replace(", ", ",") for name, kind in (*COLUMNS, HEADERS)}
    for field in schema:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            raise OptionError(f"column {field.name} {kind} isn't a column of this source, which has {ddl(True)}")
    return schema
