"""The state that a query left in its checkpoint: its last batch, and the position after it. Without Spark.

Source: Spark's OffsetSeqLog and CommitLog, version 1: a file for each batch, whose first line is `v1`; in `offsets` the
second line is metadata, and each further line is the position of one source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class QueryState(NamedTuple):
    """The last batch that a query has ended; −1 if it has ended none. `begun` is the last batch that it has begun.
    `positions` has, for each source, the position after the last ended batch, as the source writes it. `ended_ms` is
    the time at which the last batch ended, in ms since 1970; 0 if none has."""

    begun: int
    ended: int
    positions: tuple[Any, ...]
    ended_ms: int


def query_state(checkpoint: Path) -> QueryState | None:
    """The state in a checkpoint directory; None if no query has begun there. Raises OSError, and ValueError if the
    files aren't of the known version."""
    begun, ended = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
    if begun < 0:
        return None
    if ended < 0:
        return QueryState(begun, -1, (), 0)
    at = (checkpoint / "commits" / str(ended)).stat().st_mtime
    offsets = checkpoint / "offsets" / str(ended)
    return QueryState(begun, ended, _positions(offsets) if offsets.exists() else (), int(at * 1000))


def _last(log: Path) -> int:
    batches = [int(file.name) for file in log.iterdir() if file.name.isdigit()] if log.is_dir() else []
    return max(batches, default=-1)


def _positions(file: Path) -> tuple[Any, ...]:
    version, _, *lines = file.read_text().splitlines()
    if version != "v1":
        raise ValueError(f"{file} has the version {version}, and only v1 is known")
    return tuple(json.loads(line) if line != "-" else None for line in lines)
