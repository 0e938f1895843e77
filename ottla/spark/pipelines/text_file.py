"""Lines of one file, written once for each batch, whatever happens between two writes. No Spark.

A ledger beside the file has the number of the last batch, and the file's length before it. A batch is written in three
steps: the ledger is replaced by one with the batch's number and the file's present length; the lines are appended; the
file is flushed to disk. If a batch comes again (Spark repeats a batch whose end it didn't note), the file is first cut
to the length in the ledger. A batch that is older than the ledger's was written whole before the later one, and is left
out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

LEDGER_SUFFIX = ".batches"


class LedgerError(Exception):
    """The ledger doesn't belong to this query, or not to the file."""


class TextFile:
    """A file to which one query appends its batches."""

    def __init__(self, path: Path, query: str) -> None:
        """`query` names the query, and stays the same over restarts."""
        self._path = path
        self._ledger = path.with_name(path.name + LEDGER_SUFFIX)
        self._query = query

    def write(self, batch: int, lines: Iterable[str]) -> None:
        """Appends a batch's lines. Raises LedgerError, and OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        noted = self._noted()
        size = self._path.stat().st_size if self._path.exists() else 0
        if noted is not None:
            last, length = noted
            if batch < last:
                return
            if size < length:
                raise LedgerError(f"{self._path} has {size} bytes, and had {length}: it was truncated or replaced")
            if batch == last:
                size = length
        self._note(batch, size)
        with open(self._path, "ab") as file:
            file.truncate(size)
            file.writelines(line.encode() + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _noted(self) -> tuple[int, int] | None:
        """The last batch, and the file's length before it."""
        try:
            noted = json.loads(self._ledger.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LedgerError(f"{self._ledger} is no ledger: {error}") from error
        if noted["query"] != self._query:
            raise LedgerError(
                f"{self._path} belongs to another query ({noted['query']}): a pipeline with a new checkpoint or "
                f"another name needs another file, or the deletion of {self._ledger.name}"
            )
        return noted["batch"], noted["length"]

    def _note(self, batch: int, length: int) -> None:
        new = self._ledger.with_name(self._ledger.name + ".new")
        with open(new, "w") as file:
            json.dump({"query": self._query, "batch": batch, "length": length}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._ledger)
        directory = os.open(self._ledger.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
