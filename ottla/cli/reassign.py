"""`ottla reassign`: move replicas between brokers, by plans with as few moves as possible."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import lookup, moves
from ottla.cli.errors import CommandError, ExitCode, UsageError
from ottla.cli.help import App
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.placement import PartitionName, Replicas

app = App(no_args_is_help=True, help="Move replicas between brokers.")

_LOOK_S = 0.5

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A plan, in the form of kafka-reassign-partitions.")]
ThrottleOption = Annotated[
    int | None,
    typer.Option(
        "--throttle", min=1, metavar="BYTES", help="At most this number of bytes a second to or from a broker."
    ),
]
_COLUMNS = {"topic": "TOPIC", "partition": "PARTITION", "from": "FROM", "to": "TO"}


@app.command()
@cluster_command
def plan(
    cluster: Cluster,
    output: Output,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only these topics; may be repeated.")] = None,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", help="Use these brokers only; may be repeated.")
    ] = None,
    without: Annotated[
        list[int] | None, typer.Option("--without", metavar="BROKER", help="Don't use these brokers; may be repeated.")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the plan to a file.")] = None,
) -> None:
    """Find the fewest moves that spread replicas and leaders evenly over brokers and racks; nothing is moved yet."""
    if topic:
        lookup.describe_topics(cluster, topic)
    present, planned = moves.plan(cluster, topic, broker, without or ())
    document = moves.to_file(moves.Plan(planned, {}))
    if out is not None:
        moves.write_file(document, out)
    if output.as_json:
        output.document(document)
        return
    output.rows(_rows(present, planned), _COLUMNS, empty="Nothing to move: all is spread evenly over the brokers.")
    if planned:
        copied = sum(len(set(replicas).difference(present[name])) for name, replicas in planned.items())
        rest = (
            f"Begin: ottla reassign execute {out}"
            if out is not None
            else "Keep the plan: ottla reassign plan --out FILE"
        )
        output.note(f"{counted(copied, 'replica')} to copy, {counted(len(planned), 'partition')} to change. {rest}")


@app.command()
@cluster_command
def execute(
    cluster: Cluster,
    output: Output,
    file: FileArgument,
    throttle: ThrottleOption = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0, metavar="SECONDS", help="Wait up to this time for the moves to end."),
    ] = None,
) -> None:
    """Begin the moves of a plan. `ottla reassign status FILE` shows their progress, and ends the throttle."""
    planned, directories = moves.from_file(file)
    present = moves.assignments(cluster)
    _check_known(present, planned)
    if throttle is not None:
        moves.throttle(cluster, present, planned, throttle)
    moves.move_directories(cluster, {at: path for at, path in directories.items() if at[1] in present[at[0]]})
    if coming := [at for at in directories if at[1] not in present[at[0]]]:
        (topic, index), broker = min(coming)
        output.warn(
            f"broker {broker}, not the plan, chooses the log directory of its new replica of {topic}-{index}",
            "Execute the plan again once the broker has the replicas.",
        )
    moves.begin(cluster, planned)
    if wait is None:
        output.done(f"{counted(len(planned), 'move')} begun.", {"begun": len(planned)})
        return
    wait_for(cluster, planned, wait)
    moves.unthrottle(cluster, {name[0] for name in planned})
    output.done(f"{counted(len(planned), 'move')} done.", {"begun": len(planned), "done": True})


@app.command()
@cluster_command
def status(
    cluster: Cluster,
    output: Output,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="The plan that was begun; all moves if left out.")
    ] = None,
) -> None:
    """Show the moves under way; with a plan, also its finished moves. After the last move the throttle is removed."""
    active = moves.under_way(cluster)
    if file is None:
        rows = [
            {
                "topic": name[0],
                "partition": name[1],
                "replicas": move["replicas"],
                "adding": move["adding_replicas"],
                "removing": move["removing_replicas"],
            }
            for name, move in active.items()
        ]
        columns = {"topic": "TOPIC", "partition": "PARTITION", "replicas": "REPLICAS"}
        output.rows(rows, columns | {"adding": "ADDING", "removing": "REMOVING"}, empty="Nothing is being moved.")
        return
    planned = moves.from_file(file).replicas
    present = moves.assignments(cluster)
    states = [
        {"topic": name[0], "partition": name[1], "to": list(replicas), "state": _state(name, replicas, present, active)}
        for name, replicas in sorted(planned.items())
    ]
    ended = all(row["state"] != "moving" for row in states)
    if ended:
        moves.unthrottle(cluster, {name[0] for name in planned if name in present})
    output.rows(states, {"topic": "TOPIC", "partition": "PARTITION", "to": "TO", "state": "STATE"})
    if ended:
        output.note("No move of the plan is under way any more; the throttle, if there was one, is off.")


@app.command()
@cluster_command
def cancel(
    cluster: Cluster,
    output: Output,
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="The plan whose moves are to be undone.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All moves that are under way.")] = False,
) -> None:
    """Undo moves that are under way: each partition gets back the replicas that it had."""
    if (file is None) == (not everything):
        raise UsageError("which moves?", "Name the file of a plan, or say --all.")
    active = moves.under_way(cluster)
    names = sorted(active if file is None else set(moves.from_file(file).replicas).intersection(active))
    if names:
        moves.begin(cluster, dict.fromkeys(names))
    moves.unthrottle(cluster, {name[0] for name in names})
    output.done(
        f"{counted(len(names), 'move')} undone." if names else "Nothing is being moved.",
        {"undone": [{"topic": name[0], "partition": name[1]} for name in names]},
    )


def wait_for(cluster: Cluster, planned: moves.Moves, seconds: float) -> None:
    """Waits until none of the moves is under way. Raises CommandError if that takes longer than the given time."""
    deadline = time.monotonic() + seconds
    with progress(len(planned)) as show:
        while left := set(moves.under_way(cluster)).intersection(planned):
            show(len(planned) - len(left))
            if time.monotonic() > deadline:
                raise CommandError(
                    f"{counted(len(left), 'move')} not finished after {seconds:g} s",
                    "The moves continue; `ottla reassign status` shows their progress.",
                    ExitCode.timed_out,
                )
            time.sleep(_LOOK_S)


@contextmanager
def progress(count: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr, if that is a terminal. Yields a function that sets how many of `count` moves are
    done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("Copying replicas"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=count)
        yield lambda done: progress.update(task, completed=done)


def _check_known(present: moves.Moves, planned: moves.Moves) -> None:
    missing = sorted(set(planned).difference(present))
    if missing:
        raise CommandError(
            f"there is no partition {missing[0][0]}-{missing[0][1]}", "Make a new plan.", ExitCode.not_found
        )


def _rows(present: moves.Moves, planned: moves.Moves) -> list[dict[str, Any]]:
    return [
        {"topic": name[0], "partition": name[1], "from": list(present[name]), "to": list(replicas)}
        for name, replicas in sorted(planned.items())
    ]


def _state(
    name: PartitionName, replicas: Replicas, present: moves.Moves, active: dict[PartitionName, dict[str, list[int]]]
) -> str:
    if name not in present:
        return "no such partition"
    if present[name] != replicas:
        return "moving elsewhere" if name in active else "not moved"
    return "moving" if name in active else "done"
