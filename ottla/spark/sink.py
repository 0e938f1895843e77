"""The batch and streaming writers that are at least once. The driver checks the columns, and tasks write the rows.

If Spark runs a task or a micro-batch again, its rows are written again; `ottla.spark.exactly_once` has the writers that
prevent it. The rules for columns are those of Spark's KafkaWriter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .options import OptionError, WriteOptions
from .planning import open_client
from .writing import Writer, topic_partitions

log = logging.getLogger("ottla.spark")
_TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}


class Written(WriterCommitMessage):
    """The number of a task's rows that brokers acknowledged."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("ottla").mode("append")`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows."""
        return _write(self.options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("ottla")`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows."""
        return _write(self.options, iterator)


def checked(options: WriteOptions, schema: StructType) -> WriteOptions:
    """Returns `options` if rows of `schema` can be written with them, and logs their warnings. Otherwise raises
    OptionError."""
    for warning in options.warnings:
        log.warning("%s", warning)
    types = {field.name: field.dataType.simpleString() for field in schema}
    if "value" not in types:
        raise OptionError(f"a column 'value' is needed; the columns are {', '.join(types) or 'none'}")
    if options.topic is None and "topic" not in types:
        raise OptionError("no topic to write to: set the option topic, or add a column 'topic'")
    for name, kinds in _TYPES.items():
        if name in types and types[name] not in kinds:
            raise OptionError(f"column '{name}' is {types[name]}: it must be {' or '.join(kinds)}; cast it")
    if options.topic is not None:
        with open_client(options.properties) as client:
            topic_partitions(client, options.topic)
    return options


def _write(options: WriteOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    with Writer(options.properties, options.topic) as writer:
        for rows in batches:
            writer.write(rows)
        writer.flush()
        return Written(writer.rows_acknowledged)
