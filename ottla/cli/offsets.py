"""`ottla offsets` and `ottla delete-records`: show partitions' first and end offsets, and delete the oldest records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import lookup
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, UsageError
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.cli.times import FORMS, parse_moment
from ottla.wording import counted

if TYPE_CHECKING:
    from kafka import TopicPartition

    from ottla.cli.connection import Cluster

_POLICY_VIOLATION = 44
_SPECS = {"earliest": "EARLIEST", "latest": "LATEST", "max-timestamp": "MAX_TIMESTAMP"}


@cluster_command
def offsets(
    cluster: Cluster,
    output: Output,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC[:PARTITIONS]…]", help="Which partitions; all if left out.")
    ] = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="MOMENT", help=f"Also the offset at: earliest, latest, max-timestamp, or {FORMS}."
        ),
    ] = None,
) -> None:
    """Show the first and the end offset of partitions, and how many offsets lie between."""
    partitions = lookup.topic_partitions(
        cluster, topics or [name for name in lookup.topic_names(cluster) if not name.startswith("__")]
    )
    starts = lookup.end_offsets(cluster, partitions, earliest=True)
    ends = lookup.end_offsets(cluster, partitions)
    at = lookup.offsets_at(cluster, partitions, _moment(time_)) if time_ else {}
    rows = []
    for partition in sorted(partitions):
        row: dict[str, Any] = {
            "topic": partition.topic,
            "partition": partition.partition,
            "start_offset": starts[partition],
            "end_offset": ends[partition],
            "count": ends[partition] - starts[partition],
        }
        if time_:
            row["offset"] = at[partition] if at[partition] >= 0 else None
        rows.append(row)
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start_offset": "START",
        "end_offset": "END",
        "count": "OFFSETS",
    }
    output.rows(rows, columns | ({"offset": "AT"} if time_ else {}), empty="There are no topics.")


def _moment(text: str) -> Any:
    from kafka.admin import OffsetSpec, OffsetTimestamp

    if text in _SPECS:
        return OffsetSpec[_SPECS[text]]
    return OffsetTimestamp(parse_moment(text, int(time.time() * 1000)))


@cluster_command
def delete_records(
    cluster: Cluster,
    output: Output,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="Which partitions.")],
    before: Annotated[
        int | None, typer.Option("--before", min=0, metavar="OFFSET", help="Delete the records below this offset.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Delete all present records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete the oldest records of partitions."""
    if (before is None) == (not every):
        raise UsageError("which records?", "Give either --before OFFSET or --all.")
    partitions = lookup.topic_partitions(cluster, topics)
    starts = lookup.end_offsets(cluster, partitions, earliest=True)
    ends = lookup.end_offsets(cluster, partitions)
    target: dict[TopicPartition, int] = {}
    for partition in partitions:
        target[partition] = ends[partition] if before is None else before
        if target[partition] > ends[partition]:
            raise CommandError(
                f"{partition.topic}:{partition.partition} ends at offset {ends[partition]}, which is before {before}",
                "`ottla offsets` shows where partitions begin and end.",
            )
    count = sum(max(0, target[partition] - starts[partition]) for partition in partitions)
    confirm(f"Delete {counted(count, 'offset')} of {counted(len(partitions), 'partition')}?", yes, output)
    named = f"the records of {', '.join(topics)}"
    try:
        with explained(named):
            answer = cluster.admin.delete_records(target, timeout_ms=cluster.timeout_ms)
    except CommandError as error:
        # If several partitions are refused, the client's error has no code, but its text has the names of the errors.
        if error.kafka_code != _POLICY_VIOLATION and "PolicyViolationError" not in str(error.__cause__):
            raise
        raise CommandError(
            f"{named} can't be deleted: a topic here is only compacted",
            "`ottla topics describe` shows cleanup.policy. Records can be deleted if that setting has 'delete', too.",
            kafka_code=_POLICY_VIOLATION,
        ) from error
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "start_offset": answer[partition]["low_watermark"],
            "deleted": max(0, answer[partition]["low_watermark"] - starts[partition]),
        }
        for partition in sorted(partitions)
    ]
    output.rows(rows, {"topic": "TOPIC", "partition": "PARTITION", "start_offset": "NEW START", "deleted": "DELETED"})


def confirm(question: str, yes: bool, output: Output) -> None:
    """Asks the user before something that can't be undone. A script (no terminal, or --json) has to pass --yes."""
    import sys

    if yes:
        return
    if output.as_json or not sys.stdin.isatty():
        raise UsageError("this can't be undone, and there is no terminal for a confirmation", "Say --yes.")
    if not typer.confirm(question, err=True):
        raise CommandError("not confirmed: nothing was changed")
