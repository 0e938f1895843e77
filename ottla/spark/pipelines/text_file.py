"""Lines of one file, written once for each batch, whatever happens between two writes. No Spark.

A ledger beside the file has the id of the query that owns the file, the number of the last batch, and the file's
lengths before and after this batch. A batch is written in four steps: the ledger is replaced by one with the batch's
number and the file's present length; the lines are appended; the file is flushed to disk; the ledger is replaced by one
with the length after the batch, too. A process holds a lock of the file meanwhile.

1. If the last batch comes again (Spark repeats a batch whose end it didn't note), the file is first cut to the length
   before it.
2. An older batch was written whole before the last one, and is left out.
3. The first batch may have any number: a query may go on in another file. Every other batch must be the next one.
   A gap means that the ledger or the checkpoint was set back.
4. After a whole batch, the file's length must be the ledger's: otherwise another program has cut or extended the file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .durable_files import create, replace, sync_directory
from .ownership import other_owner

LEDGER_SUFFIX = ".batches"


class LedgerError(Exception):
    """The ledger doesn't belong to this query, or not to the file."""


class _Ledger(NamedTuple):
    """`batch` is None before the first batch. `after` is None while the batch is written."""

    query: str
    batch: int | None
    before: int
    after: int | None


class TextFile:
    """A file to which one query appends its batches."""

    def __init__(self, path: Path, query_id: str) -> None:
        """`query_id` is that of the query's checkpoint: it stays the same over restarts."""
        self._path = path
        self._ledger = path.with_name(path.name + LEDGER_SUFFIX)
        self._query_id = query_id

    def refused(self) -> str | None:
        """Why the query may not write to the file; None if it may. Raises LedgerError and OSError."""
        noted = self._noted()
        if noted is None:
            return None
        return other_owner(f"file {self._path}", noted.query, self._query_id, self._ledger.name)

    def claim(self, *, known: bool) -> None:
        """Makes the query the owner of the file; what the file has already stays. `known` tells that the query has
        claimed the file before. Raises LedgerError if the file has another owner or lost its ledger, and OSError."""
        if known and not self._ledger.exists():
            raise self._lost()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as file:
            sync_directory(self._path.parent)
            length = os.fstat(file.fileno()).st_size
            create(self._ledger, _Ledger(self._query_id, None, length, length)._asdict())
        if refused := self.refused():
            raise LedgerError(refused)

    def write(self, batch: int, lines: Iterable[str]) -> None:
        """Appends a batch's lines, and takes all lines in any case. The file has to be claimed. Raises LedgerError, and
        OSError."""
        with self._locked() as file:
            if refused := self.refused():
                raise LedgerError(refused)
            before = self._length_before(batch, os.fstat(file.fileno()).st_size)
            if before is None:
                deque(lines, maxlen=0)
                return
            replace(self._ledger, _Ledger(self._query_id, batch, before, None)._asdict())
            file.truncate(before)
            file.writelines(line.encode() + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
            after = os.fstat(file.fileno()).st_size
            replace(self._ledger, _Ledger(self._query_id, batch, before, after)._asdict())

    def _length_before(self, batch: int, size: int) -> int | None:
        """The length to which the file is cut before the batch is appended; None if the batch is in the file."""
        noted = self._noted()
        if noted is None:
            raise self._lost()
        if noted.batch is None:
            return size
        if batch < noted.batch:
            return None
        if size < noted.before or (noted.after is not None and size != noted.after):
            length = noted.before if noted.after is None else noted.after
            raise LedgerError(
                f"{self._path} has {size} bytes, and had {length} after its last batch: another program has changed "
                f"it. Restore the file, or write to another one"
            )
        if batch == noted.batch:
            return noted.before
        if batch > noted.batch + 1 or noted.after is None:
            raise LedgerError(
                f"{self._path} has the batches to {noted.batch - (noted.after is None)}, and batch {batch} comes: the "
                "file or the checkpoint was set back. Restore both to one state, or write to another file from "
                "another checkpoint"
            )
        return noted.after

    def _lost(self) -> LedgerError:
        return LedgerError(
            f"{self._ledger} was deleted: without it, nothing tells which batches {self._path} has. Restore it, or "
            "write to another file"
        )

    def _noted(self) -> _Ledger | None:
        try:
            return _Ledger(**json.loads(self._ledger.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LedgerError(f"{self._ledger} is no ledger: {error}") from error

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        with open(self._path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LedgerError(f"another process writes to {self._path} at this moment") from error
            yield file
