"""The data source `ottla-lines`: files that grow by lines as a streaming DataFrame, each line once across restarts.

The query's position is in Spark's checkpoint (`growing.Position`). The files have to be at the same paths on each
machine that runs a task: on one machine, or on storage that all of them mount.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from . import growing
from .growing import FileRange, Position, position_of

NAME = "ottla-lines"
ROWS_PER_BATCH = 10_000
EVERYTHING = 1 << 62
Encoded = dict[str, list[int | str]]
"""A position as Spark's checkpoint has it, in JSON."""
_SCHEMA = pa.schema([("path", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])


class _Part(InputPartition):
    def __init__(self, part: FileRange) -> None:
        super().__init__(tuple(part))
        self.part = part


class LineSource(DataSource):
    """Options: `path`, a file, a directory or a pattern; `bytesPerBatch`, about how many bytes a batch has."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """The file of a line, the line's first byte, and the line without its newline."""
        return "path STRING, offset BIGINT, value BINARY"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader from the beginning of each file."""
        return LineReader(self.options["path"], int(self.options["bytesPerBatch"]))


class LineReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of one query. Its methods run on the driver; only `read` runs in tasks."""

    def __init__(self, pattern: str, bytes_per_batch: int) -> None:
        self._pattern = pattern
        self._bytes_per_batch = bytes_per_batch
        self._target: Position | None = None

    def initialOffset(self) -> Position:
        """The position at which a query without a checkpoint begins."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """About how many bytes a batch has."""
        return ReadMaxBytes(self._bytes_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Makes the present ends of the files the end of the query."""
        self._target = growing.ahead({}, growing.matching(self._pattern), EVERYTHING)

    def latestOffset(self, start: Encoded, limit: ReadLimit) -> Position:
        """The end of the batch that begins at `start`. Raises FileReplaced."""
        most = EVERYTHING if isinstance(limit, ReadAllAvailable) else self._bytes_per_batch
        return growing.ahead(position_of(start), growing.matching(self._pattern), most, self._target)

    def partitions(self, start: Encoded, end: Encoded) -> Sequence[InputPartition]:
        """A task for each file with new lines."""
        return [_Part(each) for each in growing.ranges(position_of(start), position_of(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The lines of one file, in Arrow record batches. Raises FileReplaced."""
        assert isinstance(partition, _Part)
        path, rows = partition.part.path, list[tuple[int, bytes]]()
        for row in growing.lines(partition.part):
            rows.append(row)
            if len(rows) == ROWS_PER_BATCH:
                yield _batch(path, rows)
                rows = []
        if rows:
            yield _batch(path, rows)

    def commit(self, end: Encoded) -> None:
        """Does nothing: Spark's checkpoint has the query's position."""

    def stop(self) -> None:
        """Does nothing: no file is open between two batches."""


def _batch(path: str, rows: list[tuple[int, bytes]]) -> pa.RecordBatch:
    offsets, values = zip(*rows, strict=True)
    columns = [pa.array([path] * len(rows), pa.string()), pa.array(offsets, pa.int64()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
