"""Reads the records to write from a file or standard input: one record a line, or by a template.

Reads the input, and puts the place (file and line) into every error about it. Only one record at a time is in memory,
with the rest of the line in which it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ottla.cli.errors import UsageError, unreadable
from ottla.cli.records import NewRecord
from ottla.cli.template_reader import Mismatch, Reader

Parse = Callable[[bytes], NewRecord]
Complete = Callable[[NewRecord], NewRecord]


class Source(NamedTuple):
    """The input of `ottla produce`. `advance` is called with the number of bytes of each read, for a progress bar."""

    stream: BinaryIO
    file: Path | None
    interactive: bool
    advance: Callable[[int], None]

    def place(self, line: int) -> str:
        """The file and the line, as the beginning of an error message."""
        return f"line {line}" if self.file is None else f"{self.file}, line {line}"

    def read(self, size: int | None = None) -> bytes:
        """The next line, or `size` bytes; fewer at the end of the input."""
        if self.interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        data = self.stream.readline() if size is None else self.stream.read(size)
        if self.interactive and not data:
            print(file=sys.stderr)
        self.advance(len(data))
        return data


@contextmanager
def opened(file: Path | None) -> Iterator[Source]:
    """The file, or standard input for None and `-`."""
    if file is None or str(file) == "-":
        with _watched(sys.stdin.buffer, None) as source:
            yield source
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        remedy = "-f names a file to read; a template is given by --format." if "%" in str(file) else ""
        raise unreadable(file, error, remedy) from error
    with stream, _watched(stream, file) as source:
        yield source


def by_line(source: Source, parse: Parse, complete: Complete) -> Iterator[NewRecord]:
    """Yields a record for each line of the input."""
    number = 0
    while line := source.read():
        number += 1
        try:
            yield complete(parse(line.removesuffix(b"\n").removesuffix(b"\r")))
        except UsageError as error:
            raise UsageError(f"{source.place(number)}: {error.message}", error.remedy) from error


def by_template(source: Source, reader: Reader, complete: Complete) -> Iterator[NewRecord]:
    """Yields the records that the template finds one after the other. The last line may lack its line end."""
    data, at, lines = b"", 0, 1
    while True:
        try:
            found = reader.match(data, at) if at < len(data) else 1
            if not isinstance(found, int):
                yield complete(found.record)
                at = found.end
                continue
            lines += data.count(b"\n", 0, at)
            more = source.read(found if found > 1 else None)
            data, at = data[at:] + more, 0
            if more:
                continue
            if not data:
                return
            if not reader.ends_with_line or data.endswith(b"\n"):
                raise reader.unfinished(data, at)
            data += b"\n"
        except UsageError as error:
            position = error.at if isinstance(error, Mismatch) else at
            line = lines + data.count(b"\n", 0, position)
            raise UsageError(f"{source.place(line)}: {error.message}", error.remedy) from error


@contextmanager
def _watched(stream: BinaryIO, file: Path | None) -> Iterator[Source]:
    """The source, with a progress bar if stderr is a terminal and the input doesn't come from a terminal."""
    interactive = stream.isatty()
    if interactive or not sys.stderr.isatty():
        yield Source(stream, file, interactive, lambda size: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    total = os.fstat(stream.fileno()).st_size if file is not None else None
    columns = (TextColumn("{task.fields[lines]:,} records"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total or None, lines=0)
        seen = [0, 0]

        def advance(size: int) -> None:
            seen[0] += 1
            seen[1] += size
            if seen[0] % 1000 == 1:
                progress.update(task, completed=seen[1], lines=seen[0])

        yield Source(stream, file, interactive, advance)
