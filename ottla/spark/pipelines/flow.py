"""The rows on their way through a pipeline, and the rows that have failed on this way.

A row has its own columns and the column `_record`, which says where the row came from: the record of a topic, or the
line of a file (`topic` is the file's path then, `offset` the line's first byte). Steps may use `_record`; sinks leave
it out. A row that fails leaves the flow with its record and with a failure: Kafka Connect's words for the stage, the
exception's class and its message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

RECORD = "_record"
FAILURE = "_failure"
RECORD_TYPE = (
    "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,key:binary,value:binary,"
    "headers:array<struct<key:string,value:binary>>>"
)
FAILURE_TYPE = "struct<stage:string,executing:string,exception:string,message:string>"
DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class Flow:
    """The rows of a pipeline after some of its steps. `failed` has the frames of the rows that failed before, with the
    columns `_record` and `_failure`. If `fatal`, the first row that fails ends the pipeline instead."""

    rows: DataFrame
    fatal: bool = False
    failed: tuple[DataFrame, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The rows' own columns."""
        return [name for name in self.rows.columns if name != RECORD]

    def checked(self, rows: DataFrame, failure: Column) -> Flow:
        """The flow with `rows` in place of its rows, without those for which `failure` isn't null. `rows` has the
        columns of the result and the columns that `failure` needs."""
        judged = rows.withColumn(FAILURE, failure)
        record = _record_with_value(rows)
        if self.fatal:
            ended = f.raise_error(f.concat(f.col(FAILURE)["message"], _where(record))).cast("boolean")
            return self.through(judged.where(f.when(f.col(FAILURE).isNull(), True).otherwise(ended)).drop(FAILURE))
        failed = judged.where(f.col(FAILURE).isNotNull()).select(record.alias(RECORD), FAILURE)
        good = judged.where(f.col(FAILURE).isNull()).drop(FAILURE)
        return replace(self, rows=good, failed=(*self.failed, failed))

    def through(self, rows: DataFrame) -> Flow:
        """The flow with the rows that a step without failures has made."""
        return replace(self, rows=rows)

    @property
    def all_failed(self) -> DataFrame | None:
        """The failed rows of all steps as one frame; None if no step lets rows fail."""
        if not self.failed:
            return None
        first, *others = self.failed
        for other in others:
            first = first.unionByName(other)
        return first


def failure(stage: str, executing: str, message: Column) -> Column:
    """The failure of a row. `stage` is one of Kafka Connect's stages, `executing` the class that Connect would name."""
    return f.struct(
        f.lit(stage).alias("stage"),
        f.lit(executing).alias("executing"),
        f.lit(DATA_EXCEPTION).alias("exception"),
        message.alias("message"),
    ).cast(FAILURE_TYPE)


def no_failure() -> Column:
    """The failure of a row that hasn't failed."""
    return f.lit(None).cast(FAILURE_TYPE)


def shown(text: Column) -> Column:
    """The beginning of a text, for a message."""
    return f.substring(text, 1, _SHOWN_CHARACTERS)


def _where(record: Column) -> Column:
    """The record's place, as the end of a message."""
    partition = f.coalesce(f.concat(f.lit("-"), record["partition"].cast("string")), f.lit(""))
    offset = f.coalesce(f.concat(f.lit(", offset "), record["offset"].cast("string")), f.lit(""))
    return f.coalesce(f.concat(f.lit(" ("), record["topic"], partition, offset, f.lit(")")), f.lit(""))


def _record_with_value(rows: DataFrame) -> Column:
    """The record of each row. If a step (SQL, Python) has left `_record` out, or if the row is one of Parquet, whose
    record has neither offset nor value, the record's value is the row itself as JSON."""
    own = [name for name in rows.columns if name != RECORD]
    record = f.col(RECORD) if RECORD in rows.columns else f.lit(None).cast(RECORD_TYPE)
    names = ("topic", "partition", "offset", "timestamp", "key")
    kept = [record[name].alias(name) for name in names]
    value = f.to_json(f.struct(*(f.col(f"`{name}`") for name in own))).cast("binary").alias("value")
    made = f.struct(*kept, value, record["headers"].alias("headers"))
    return f.when(record["offset"].isNotNull(), record).otherwise(made)
