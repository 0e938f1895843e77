"""Writes files to a topic: rows of CSV and Parquet files as JSON objects, JSON lines unchanged.

    python -m ottla.spark.jobs.load --bootstrap localhost:9092 --topic flights --key carrier flights.csv

It runs in one process, without Spark. Rows of one key keep their order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import pandas
import pyarrow as pa
import typer
from pyarrow import csv, parquet
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ottla.spark.options import OptionError, write_options
from ottla.spark.writing import Writer

from .lines import one_line_errors

ROWS = 20_000
FORMATS = ("csv", "jsonl", "parquet")


class Rows(NamedTuple):
    """Consecutive rows of a file, with the columns `value` and, if a key was asked for, `key`.

    `done` is the part of the file, from 0 to 1, that has been read with these rows.
    """

    rows: pa.RecordBatch
    done: float


@one_line_errors
def main(
    files: Annotated[list[Path], typer.Argument(help="CSV, JSON lines (.jsonl, .json) or Parquet files.")],
    bootstrap: Annotated[str, typer.Option(help="A broker's host:port, or several separated by commas.")],
    topic: Annotated[str, typer.Option(help="The topic to write to; it must exist.")],
    key: Annotated[str | None, typer.Option(help="The column whose values become the records' keys.")] = None,
    rate: Annotated[int, typer.Option(help="Greatest number of rows a second; 0 for no limit.", min=0)] = 0,
    compression: Annotated[str, typer.Option(help="Codec of the batches: none, gzip, snappy, lz4 or zstd.")] = "none",
) -> None:
    """Writes the rows of files to a topic."""
    rows = load(files, bootstrap, topic, key=key, rate=rate, compression=compression)
    print(f"{rows:,} rows written to topic {topic}")


def load(
    files: list[Path],
    bootstrap: str,
    topic: str,
    *,
    key: str | None = None,
    rate: int = 0,
    compression: str = "none",
    console: Console | None = None,
) -> int:
    """Writes all rows of the files, and returns the number of rows that brokers acknowledged.

    `rate` is the greatest number of rows a second; 0 means no limit. Raises OptionError, for example for a missing file
    or column.
    """
    for path in files:
        if not path.is_file():
            raise OptionError(f"there is no file {path}")
        file_format(path)
    options = write_options(
        {"kafka.bootstrap.servers": bootstrap, "kafka.compression.type": compression, "topic": topic}, streaming=False
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with (
        Progress(*columns, console=console or Console(file=sys.stderr)) as progress,
        Writer(options.properties, topic) as writer,
    ):
        sent = 0
        for path in files:
            task = progress.add_task(path.name, total=None)
            before = sent
            for rows, done in read_file(path, key):
                writer.write(rows)
                sent += rows.num_rows
                known = sent - before
                progress.update(task, completed=known, total=max(known, round(known / done)) if done else None)
                if rate:
                    time.sleep(max(0.0, sent / rate - (time.monotonic() - started)))
            progress.update(task, completed=sent - before, total=sent - before)
        writer.flush()
        return writer.rows_acknowledged


def file_format(path: Path) -> str:
    """The file's format by its name: csv, jsonl or parquet. Raises OptionError for any other name."""
    suffix = path.suffix.lower().lstrip(".")
    suffix = {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)
    if suffix not in FORMATS:
        raise OptionError(f"{path}: can't tell the format by this name; .csv, .jsonl and .parquet are known")
    return suffix


def read_file(path: Path, key: str | None) -> Iterator[Rows]:
    """Reads a file's rows in blocks: ROWS rows of a Parquet file, 2 MiB of a CSV file, or 4 MiB of JSON lines."""
    kind = file_format(path)
    if kind == "jsonl":
        yield from _read_lines(path, key)
        return
    total_rows = 0
    if kind == "parquet":
        file = parquet.ParquetFile(path)
        total_rows = file.metadata.num_rows
        batches = file.iter_batches(ROWS)
    else:
        source = path.open("rb")
        batches = csv.open_csv(source, csv.ReadOptions(block_size=2 << 20))
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        done = rows / max(total_rows, 1) if kind == "parquet" else source.tell() / max(os.path.getsize(path), 1)
        yield Rows(_as_json(path, batch.to_pandas(), key), min(done, 1.0))


def _as_json(path: Path, frame: pandas.DataFrame, key: str | None) -> pa.RecordBatch:
    if key is not None and key not in frame.columns:
        raise OptionError(f"{path} has no column '{key}'; its columns are {', '.join(map(str, frame.columns))}")
    lines = frame.to_json(orient="records", lines=True, date_format="iso").splitlines()
    columns = {"value": pa.array(lines, pa.string())}
    if key is not None:
        columns["key"] = pa.array([None if pandas.isna(each) else str(each) for each in frame[key]], pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _read_lines(path: Path, key: str | None) -> Iterator[Rows]:
    size = max(os.path.getsize(path), 1)
    with path.open("rb") as source:
        position = 0
        while lines := source.readlines(4 << 20):
            position += sum(map(len, lines))
            values = [line.rstrip(b"\r\n") for line in lines if line.strip()]
            columns = {"value": pa.array(values, pa.binary())}
            if key is not None:
                columns["key"] = pa.array([_key_of(path, value, key) for value in values], pa.string())
            yield Rows(pa.RecordBatch.from_pydict(columns), position / size)


def _key_of(path: Path, value: bytes, key: str) -> str | None:
    try:
        found = json.loads(value)[key]
    except (ValueError, KeyError, TypeError):
        raise OptionError(f"{path}: this line isn't a JSON object with the field '{key}': {value[:80]!r}") from None
    return None if found is None else str(found)


if __name__ == "__main__":
    typer.run(main)
