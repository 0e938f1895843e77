"""The spec of a pipeline: where rows come from, what is done to them, and where they go. Pure.

A spec is a YAML mapping. Each model here is one of its objects, and says by its fields what the object may hold. The
kind of a source, a step or a sink is the one key that only this kind has: `topic`, `files`, `sql`. `json_schema` is
made from the models, for editors. `parse` refuses a spec with the path of each wrong value in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from .refusals import SpecError, refusals

NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
DDL_OF_TEXT = "value STRING"


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Decoding = Literal["text", "bytes", "json", "connect-json"]
Encoding = Literal["text", "bytes", "json", "connect-json"]


class TopicSource(_Object):
    """Records of topics of the cluster."""

    topic: Annotated[str | tuple[str, ...], Field(description="The topic to read, or a list of topics.")]
    format: Annotated[
        Decoding,
        Field(
            description="How a record's value becomes columns. `text` and `bytes` make one column, `value`. `json` "
            "makes a column of each field of `schema`; `connect-json` reads the envelope of Connect's JsonConverter."
        ),
    ] = "text"
    schema_: Annotated[
        str,
        Field(
            alias="schema",
            description="The columns of a JSON value, as in Spark's CREATE TABLE: `id BIGINT, name STRING`. Without a "
            "schema, a value of `json` is one column `value` of the type VARIANT, and one of `connect-json` is text.",
        ),
    ] = ""
    start: Annotated[
        Literal["earliest", "latest"], Field(description="Where the first run begins. Later runs go on.")
    ] = "earliest"
    rows_per_batch: Annotated[
        int, Field(alias="rowsPerBatch", ge=0, description="At most about so many records in a batch; 0: no limit.")
    ] = 0

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to read."""
        return (self.topic,) if isinstance(self.topic, str) else self.topic


class FileSource(_Object):
    """Files that grow by lines, or files that arrive as a whole."""

    files: Annotated[
        str,
        Field(
            min_length=1,
            description="A file, a directory, or a pattern such as `/var/log/app-*.log`. Lines that are appended "
            "are read as they come; a line is read once it ends with a newline.",
        ),
    ]
    format: Annotated[
        Literal["text", "json", "csv", "parquet"],
        Field(
            description="`text`: a column `value` with each line. `json`: an object in each line. `csv`: the columns "
            "of `schema`, without a line of names. `parquet`: files that arrive whole."
        ),
    ] = "text"
    schema_: Annotated[str, Field(alias="schema", description="The columns of JSON, CSV or Parquet.")] = ""
    bytes_per_batch: Annotated[
        int, Field(alias="bytesPerBatch", gt=0, description="At most about so many bytes of lines in a batch.")
    ] = 64 * 1024 * 1024

    @model_validator(mode="after")
    def _has_a_schema(self) -> FileSource:
        if self.format in ("csv", "parquet", "json") and not self.schema_:
            raise ValueError(f"files of the format {self.format} need a 'schema'")
        if self.format == "text" and self.schema_:
            raise ValueError("lines of text have the one column 'value': the format json or csv has a 'schema'")
        if self.format == "parquet" and "bytes_per_batch" in self.model_fields_set:
            raise ValueError("'bytesPerBatch' is for lines: files of the format parquet are read whole")
        return self


class SqlStep(_Object):
    """A query in Spark's SQL."""

    sql: Annotated[str, Field(min_length=1, description="A SELECT. The rows that come are the table `input`.")]


class FilterStep(_Object):
    """Keeps the rows for which a condition is true."""

    filter: Annotated[str, Field(min_length=1, description="A condition in Spark's SQL, such as `amount > 10`.")]


class SelectStep(_Object):
    """Keeps some columns, in this order; each may be an expression with AS."""

    select: Annotated[tuple[str, ...], Field(min_length=1)]


class DropStep(_Object):
    """Leaves columns out."""

    drop: Annotated[tuple[str, ...], Field(min_length=1)]


class RenameStep(_Object):
    """Gives columns other names: `{old: new}`."""

    rename: Annotated[dict[str, str], Field(min_length=1)]


class CastStep(_Object):
    """Changes the types of columns: `{column: type}`, but for ARRAY, MAP and STRUCT. A value that doesn't fit fails its
    row."""

    cast: Annotated[dict[str, str], Field(min_length=1)]


class MaskStep(_Object):
    """Replaces the characters of text columns, in any script: letters by `x`, digits by `0`. Lengths and other
    characters stay."""

    mask: Annotated[tuple[str, ...], Field(min_length=1)]


class _Within(_Object):
    keys: Annotated[tuple[str, ...], Field(min_length=1, description="The columns that tell rows apart.")]
    by: Annotated[str, Field(description="The column with the time of a row, a TIMESTAMP.")]
    within: Annotated[str, Field(description="How long keys are remembered, such as `10 minutes`.")]


class DedupStep(_Object):
    """Keeps the row of each key that arrives first. Rows that are late by more than `within` are left out."""

    dedup: _Within


class PythonStep(_Object):
    """A function of Python, from a DataFrame to a DataFrame."""

    python: Annotated[
        str, Field(pattern=r"^[\w.]+:[\w.]+$", description="The function's import path: `package.module:function`.")
    ]


class TopicSink(_Object):
    """Records into a topic, each exactly once for consumers of committed records, unless said otherwise."""

    topic: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(pattern=NAME, description="By default the kind and its place in the list.")] = ""
    key: Annotated[
        str,
        Field(
            description="The column that becomes the key; it isn't part of the value then. A tombstone without a value "
            "in this column keeps the key of its record."
        ),
    ] = ""
    format: Annotated[
        Encoding,
        Field(
            description="How columns become a value. `text` and `bytes` need the one column `value`. `json`: an object "
            "without the fields that are null; a lone VARIANT `value` as it is. `connect-json`: the envelope of Kafka "
            "Connect's JsonConverter, with the fields that are null."
        ),
    ] = "json"
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once"


class FilesSink(_Object):
    """Files in a directory: each row once for readers that honour Spark's `_spark_metadata`."""

    files: Annotated[str, Field(min_length=1, description="The directory.")]
    name: Annotated[str, Field(pattern=NAME)] = ""
    format: Literal["parquet", "json", "csv", "text"] = "parquet"
    partition_by: Annotated[
        tuple[str, ...],
        Field(alias="partitionBy", description="Columns that become directories, such as `date=…`."),
    ] = ()


class FileSink(_Object):
    """Lines of one file, each row once: the file is cut back to its last whole batch before a batch comes again."""

    file: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(pattern=NAME)] = ""
    format: Annotated[
        Literal["text", "json"],
        Field(description="`text` needs the one column `value`; `json` writes an object a line."),
    ] = "text"


class ConsoleSink(_Object):
    """Rows on the screen."""

    console: Annotated[int, Field(gt=0, description="At most so many rows of each batch.")]
    name: Annotated[str, Field(pattern=NAME)] = ""


class DeadLetterTopic(_Object):
    """Records that fail go to a topic, as they were, with the headers of Kafka Connect that say why."""

    topic: Annotated[str, Field(min_length=1)]


class DeadLetterTable(_Object):
    """Records that fail go to Parquet files, with columns that say why."""

    table: Annotated[str, Field(min_length=1, description="The directory.")]


class Every(_Object):
    """A batch in each interval, until the pipeline is stopped."""

    every: Annotated[
        str, Field(pattern=r"^\d+ (millisecond|second|minute|hour)s?$", description="Such as `10 seconds`.")
    ]


def kinds(*models: type[BaseModel], word: str = "") -> Discriminator:
    """Tells the kind of an object by the key that only this kind has: the name of the model's first field. `word` is a
    text that may stand in place of an object."""
    by_key = {next(iter(model.model_fields)): model.__name__ for model in models}

    def kind(value: Any) -> str | None:
        if isinstance(value, BaseModel):
            return type(value).__name__
        if word and isinstance(value, str):
            return "Word"
        found = [tag for key, tag in by_key.items() if isinstance(value, Mapping) and key in value]
        return found[0] if found else None

    return Discriminator(
        kind, custom_error_type="kind", custom_error_message="|".join([*by_key, f"'{word}'"] if word else by_key)
    )


Source = Annotated[
    Annotated[TopicSource, Tag("TopicSource")] | Annotated[FileSource, Tag("FileSource")],
    kinds(TopicSource, FileSource),
]
Step = Annotated[
    Annotated[SqlStep, Tag("SqlStep")]
    | Annotated[FilterStep, Tag("FilterStep")]
    | Annotated[SelectStep, Tag("SelectStep")]
    | Annotated[DropStep, Tag("DropStep")]
    | Annotated[RenameStep, Tag("RenameStep")]
    | Annotated[CastStep, Tag("CastStep")]
    | Annotated[MaskStep, Tag("MaskStep")]
    | Annotated[DedupStep, Tag("DedupStep")]
    | Annotated[PythonStep, Tag("PythonStep")],
    kinds(SqlStep, FilterStep, SelectStep, DropStep, RenameStep, CastStep, MaskStep, DedupStep, PythonStep),
]
Sink = Annotated[
    Annotated[TopicSink, Tag("TopicSink")]
    | Annotated[FilesSink, Tag("FilesSink")]
    | Annotated[FileSink, Tag("FileSink")]
    | Annotated[ConsoleSink, Tag("ConsoleSink")],
    kinds(TopicSink, FilesSink, FileSink, ConsoleSink),
]
Errors = Annotated[
    Annotated[Literal["fail"], Tag("Word")]
    | Annotated[DeadLetterTopic, Tag("DeadLetterTopic")]
    | Annotated[DeadLetterTable, Tag("DeadLetterTable")],
    kinds(DeadLetterTopic, DeadLetterTable, word="fail"),
]
Trigger = Annotated[Annotated[Literal["once"], Tag("Word")] | Annotated[Every, Tag("Every")], kinds(Every, word="once")]


class Pipeline(_Object):
    """A pipeline: a source, steps, and one or more sinks."""

    name: Annotated[
        str,
        Field(
            pattern=NAME,
            max_length=63,
            description="Lower-case letters, digits and hyphens. Transactions and positions bear this name.",
        ),
    ]
    source: Source
    steps: tuple[Step, ...] = ()
    sinks: Annotated[tuple[Sink, ...], Field(min_length=1)]
    errors: Annotated[
        Errors,
        Field(description="Where rows go that can't be decoded or cast: `fail` ends the pipeline at the first one."),
    ] = "fail"
    trigger: Annotated[
        Trigger,
        Field(description="`once`: the rows that are there now, in as many batches as needed, and then the end."),
    ] = Every(every="1 second")
    checkpoint: Annotated[
        str,
        Field(
            min_length=1,
            description="The directory with the positions of the pipeline's queries. No other pipeline may have it.",
        ),
    ]
    kafka: Annotated[
        dict[str, str],
        Field(description="Properties of a Kafka client for topics, such as `bootstrap.servers`, `security.protocol`."),
    ] = {}

    @field_validator("kafka", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """YAML reads `true` and `10` as a truth value and a number; a property is a text."""
        if not isinstance(value, Mapping):
            return value
        texts = {True: "true", False: "false"}
        return {
            key: texts[each] if isinstance(each, bool) else str(each) if isinstance(each, int | float) else each
            for key, each in value.items()
        }

    @model_validator(mode="after")
    def _has_names_of_its_own(self) -> Pipeline:
        names = [name for name, _ in self.named_sinks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sinks have the name '{name}'")
            if name == DEAD_LETTERS:
                raise ValueError(f"'{DEAD_LETTERS}' is the name of the query that writes failed rows, not of a sink")
        if len(names) > 1 and any(isinstance(step, DedupStep) for step in self.steps):
            raise ValueError("a pipeline with the step 'dedup' has one sink: each sink's query could keep other rows")
        return self

    @property
    def named_sinks(self) -> list[tuple[str, Sink]]:
        """The sinks with their names. A sink without a name is called by its kind and its place, from 1 on."""
        return [
            (sink.name or f"{next(iter(type(sink).model_fields))}-{place}", sink)
            for place, sink in enumerate(self.sinks, 1)
        ]


DEAD_LETTERS = "dead-letters"


def parse(value: Any, file: str = "") -> Pipeline:
    """Checks a decoded YAML document. Raises SpecError with a line for each wrong value; `file` begins each line."""
    try:
        return Pipeline.model_validate(value)
    except ValidationError as error:
        raise SpecError(refusals(error, Pipeline, file)) from None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec, for editors."""
    schema = Pipeline.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "A pipeline of Ottla"
    return schema
