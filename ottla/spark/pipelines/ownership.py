"""Which query of which pipeline writes a target, and the refusals if another one would. Pure; `notes` has the files.

1. The checkpoint of each query has a note of the query's pipeline, its sink, and its target. A sink's name may come
   from its place in the spec, so a change of the spec can give a checkpoint to another sink, or a target to a new
   checkpoint. The first loses rows of the new target, the second writes every row again.
2. A topic knows the query that writes it by transactions. A file, a directory of files and a table of dead letters know
   only the numbers of batches, which a new checkpoint begins again at 0: its first batches would pass for written. So
   each of these exclusive targets has the id of the query that owns it.
3. Pipelines that are loaded together, and sinks of one pipeline, may not share a checkpoint or an exclusive target:
   there are no notes yet when both start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from .spec import DEAD_LETTERS, ConsoleSink, DeadLetterTable, DeadLetterTopic, Pipeline, TopicSink

Resolve = Callable[[str], str]
"""Gives a path in a spec its one form: two paths to one directory become equal."""


class Target(NamedTuple):
    """Where a query writes. `kind` is the key in the spec: topic, files, file, console or table. `place` is the topic's
    name or the resolved path, and empty for the console."""

    kind: str
    place: str

    @property
    def exclusive(self) -> bool:
        """Whether only one query may write here, ever."""
        return self.kind in ("file", "files", "table")

    @property
    def text(self) -> str:
        """The target in a note and in a sentence."""
        return f"{self.kind} {self.place}" if self.place else f"the {self.kind}"


class Note(NamedTuple):
    """What the checkpoint of a query says about the query. `target` is the target's text."""

    pipeline: str
    sink: str
    target: str


def targets_of(pipeline: Pipeline, resolve: Resolve) -> dict[str, Target]:
    """The targets of the pipeline's queries by the sinks' names."""
    found = {}
    for name, sink in pipeline.named_sinks:
        kind = next(iter(type(sink).model_fields))
        if isinstance(sink, ConsoleSink):
            found[name] = Target(kind, "")
        else:
            value = str(getattr(sink, kind))
            found[name] = Target(kind, value if isinstance(sink, TopicSink) else resolve(value))
    if isinstance(pipeline.errors, DeadLetterTopic):
        found[DEAD_LETTERS] = Target("topic", pipeline.errors.topic)
    elif isinstance(pipeline.errors, DeadLetterTable):
        found[DEAD_LETTERS] = Target("table", resolve(pipeline.errors.table))
    return found


def shared(pipelines: Sequence[Pipeline], resolve: Resolve) -> list[str]:
    """A line for each checkpoint and each exclusive target that pipelines, or sinks of one pipeline, have in common."""
    checkpoints = [(each.name, resolve(each.checkpoint)) for each in pipelines]
    places = [
        (f"{each.name}.{sink}", target.place)
        for each in pipelines
        for sink, target in targets_of(each, resolve).items()
        if target.exclusive
    ]
    return [
        f"the pipelines {users} have one checkpoint, {place}: give each a directory of its own"
        for users, place in _repeated(checkpoints)
    ] + [
        f"the sinks {users} write to one target, {place}: give each a target of its own"
        for users, place in _repeated(places)
    ]


def _repeated(places: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The places that several users have, each with its users."""
    users: dict[str, list[str]] = {}
    for user, place in places:
        users.setdefault(place, []).append(user)
    return [(" and ".join(names), place) for place, names in users.items() if len(names) > 1]


def changed(pipeline: str, targets: Mapping[str, Target], noted: Mapping[str, Note], checkpoint: str) -> list[str]:
    """A line for each query that doesn't fit the notes in the pipeline's checkpoint. `noted` has them by the sinks'
    names; `checkpoint` is the directory's path."""
    foreign = sorted({note.pipeline for note in noted.values()} - {pipeline})
    if foreign:
        return [
            f"{pipeline}: {checkpoint} is the checkpoint of the pipeline '{foreign[0]}': `name: {foreign[0]}` goes on "
            "there, and another pipeline needs another checkpoint"
        ]
    lines = []
    for sink, target in targets.items():
        if sink in noted:
            if noted[sink].target != target.text:
                lines.append(_other_target(pipeline, sink, target, noted[sink].target, checkpoint))
            continue
        former = next((name for name in noted if name not in targets and noted[name].target == target.text), None)
        if former is not None and former != DEAD_LETTERS and target.kind != "console":
            lines.append(
                f"{pipeline}: {target.text} was written by the sink '{former}', and '{sink}' would write every row "
                f"again: `name: {former}` goes on where it was. To write every row again, delete {checkpoint}/{former}"
            )
    return lines


def _other_target(pipeline: str, sink: str, target: Target, former: str, checkpoint: str) -> str:
    away = f"delete {checkpoint}/{sink}/{NOTE} to go on in {target.text} from the present position"
    if sink == DEAD_LETTERS:
        return f"{pipeline}: dead letters went to {former}, and would go to {target.text} now: {away}"
    return (
        f"{pipeline}: the sink '{sink}' wrote to {former}, and would write to {target.text} now, without the rows "
        f"before: give the sink of {target.text} a `name` of its own, and the sink of {former}, if it stays, `name: "
        f"{sink}`; or {away}"
    )


NOTE = "pipeline.json"
"""The file in a query's checkpoint with the query's note."""


def other_owner(target: str, owner: str, query_id: str, traces: str) -> str | None:
    """Why the query may not write to the target; None if it may. `owner` is the id of the query that the target
    belongs to. `traces` names the files by which the target knows that query."""
    if owner == query_id:
        return None
    return (
        f"{target} belongs to another query (id {owner or 'unknown'}), and this query's id is {query_id}: use the "
        f"checkpoint of that query, or another target. If you delete {traces}, this query adds its rows to those "
        "that are there"
    )
