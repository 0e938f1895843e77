"""The files by which queries know their checkpoints and targets again; `ownership` has the rules.

| file | content |
|---|---|
| `<checkpoint>/<sink>/pipeline.json` | the query's pipeline, sink and target |
| `<checkpoint>/<sink>/metadata` | the query's id; Spark's own file, which Spark leaves as it is if it is there |
| `<checkpoint>/start.json` | the offsets at which the pipeline began, under `start: latest` |
| `<directory>/_owner.json` | the id of the query that owns a directory of files or a table |

The ledger of a `file` sink has the id of its query, too (`text_file`). Only directories of this machine's file system
have notes. A checkpoint elsewhere is enough for a topic, whose transactions know the query.

Source: Spark's StreamMetadata, which reads a query's id from the checkpoint, and draws one if there is none.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from ottla.spark.exactly_once import query_id_in

from .durable_files import create
from .ownership import NOTE, Note, Target, changed, other_owner, targets_of
from .paths import local_path, resolved
from .refusals import SpecError
from .spec import Pipeline, TopicSource
from .text_file import LedgerError, TextFile

START = "start.json"
OWNER = "_owner.json"  # Spark doesn't read files whose names begin with an underscore
SPARKS_LOG = "_spark_metadata"


def compare(pipeline: Pipeline) -> None:
    """Compares a pipeline with the notes in its checkpoint and its targets, and writes nothing. Raises SpecError with a
    line for each query that may not start, and OSError."""
    targets = targets_of(pipeline, resolved)
    lines = _elsewhere(pipeline, targets)
    checkpoint = local_path(pipeline.checkpoint)
    if checkpoint is not None and not lines:
        lines = changed(pipeline.name, targets, _noted(checkpoint), resolved(pipeline.checkpoint))
    if checkpoint is not None and not lines:
        for name, target in targets.items():
            # A query without an id is new: nothing can belong to it.
            query_id = query_id_in(str(checkpoint / name)) or "new"
            if target.exclusive and (refused := _refused(target, query_id)):
                lines.append(f"{pipeline.name}.{name}: {refused}")
    if lines:
        raise SpecError(lines)


def _elsewhere(pipeline: Pipeline, targets: Mapping[str, Target]) -> list[str]:
    lines = [
        f"{pipeline.name}.{name}: {target.text} isn't on this machine's file system, where the target's owner is noted"
        for name, target in targets.items()
        if target.exclusive and local_path(target.place) is None
    ]
    if local_path(pipeline.checkpoint) is not None:
        return lines
    needing = [name for name, target in targets.items() if target.exclusive]
    if isinstance(pipeline.source, TopicSource) and pipeline.source.start == "latest":
        needing.append("start: latest")
    return lines + [
        f"{pipeline.name}: {need} needs a checkpoint on this machine's file system, and {pipeline.checkpoint} isn't"
        for need in needing
    ]


def _refused(target: Target, query_id: str) -> str | None:
    """Why the query may not write to an exclusive target; None if it may."""
    place = Path(target.place)
    try:
        if target.kind == "file":
            return TextFile(place, query_id).refused()
        if (place / OWNER).exists():
            owner = str(json.loads((place / OWNER).read_text())["query"])
        elif (place / SPARKS_LOG).exists():
            owner = ""
        else:
            return None
    except LedgerError as error:
        return str(error)
    except (ValueError, TypeError, KeyError) as error:
        return f"{place / OWNER} is no note of a query: {error}"
    return other_owner(target.text, owner, query_id, f"{SPARKS_LOG} and {OWNER} in it")


def note(pipeline: Pipeline, start: str) -> None:
    """Writes the notes of all queries of a pipeline before they start. `start` has the offsets at which the pipeline
    begins, as JSON; it is empty if there is nothing to keep. Raises OSError, and SpecError if a target got an owner
    after `compare`."""
    checkpoint = local_path(pipeline.checkpoint)
    if checkpoint is None:
        return
    for name, target in targets_of(pipeline, resolved).items():
        folder = checkpoint / name
        folder.mkdir(parents=True, exist_ok=True)
        create(folder / "metadata", {"id": str(uuid.uuid4())})
        query_id = query_id_in(str(folder))
        assert query_id is not None
        if target.exclusive:
            _claim(target, query_id, f"{pipeline.name}.{name}", known=(folder / NOTE).exists())
        # The note comes after the claim: a note says that the target was claimed.
        create(folder / NOTE, Note(pipeline.name, name, target.text)._asdict())
    if start:
        create(checkpoint / START, json.loads(start))


def _claim(target: Target, query_id: str, query: str, *, known: bool) -> None:
    place = Path(target.place)
    if target.kind == "file":
        try:
            TextFile(place, query_id).claim(known=known)
        except LedgerError as error:
            raise SpecError([f"{query}: {error}"]) from error
        return
    place.mkdir(parents=True, exist_ok=True)
    create(place / OWNER, {"query": query_id})
    if refused := _refused(target, query_id):
        raise SpecError([f"{query}: {refused}"])


def start_noted(checkpoint: str) -> dict[str, dict[str, int]] | None:
    """The offsets at which a pipeline began; None if there is no note of them."""
    path = local_path(checkpoint)
    if path is None or not (path / START).exists():
        return None
    found: dict[str, dict[str, int]] = json.loads((path / START).read_text())
    return found


def _noted(checkpoint: Path) -> dict[str, Note]:
    found = {}
    for file in sorted(checkpoint.glob(f"*/{NOTE}")):
        try:
            found[file.parent.name] = Note(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise SpecError([f"{file} is no note of a query: {error}"]) from error
    return found
