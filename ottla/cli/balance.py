"""`ottla balance`: level the brokers' measured loads by moves of replicas that copy as few bytes as possible.

`ottla reassign plan` gives brokers the same number of replicas; `ottla balance` considers each replica's load. A plan
is a file in the format of `kafka-reassign-partitions`, so Kafka's tool can execute it, too. Only the plan is kept
between two runs. The cluster itself shows which moves are done, so the same command can continue an interrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import elections, lookup, moves
from ottla.cli.availability import brokers_text
from ottla.cli.errors import CommandError, ExitCode, UsageError
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.cli.reassign import ThrottleOption, progress
from ottla.wording import counted, size_text

if TYPE_CHECKING:
    from ottla.balance.loads import Band, Goal
    from ottla.balance.measured import Measured
    from ottla.cli.connection import Cluster
    from ottla.placement import PartitionName

app = App(no_args_is_help=True, help="Balance the brokers' loads: disk, CPU, replicas, leaders.")

_LOOK_S = 0.5
_GIVEN_UP_S = 5.0  # if no copy is under way for this time, the move to the planned directory has failed

GoalOption = Annotated[
    list[str] | None,
    typer.Option("--goal", metavar="GOAL", help="Only racks, replicas, disk, cpu or leaders; may be repeated."),
]
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Move only these topics; may be repeated.")
]
WithoutOption = Annotated[
    list[int] | None,
    typer.Option("--without", metavar="BROKER", help="Move all replicas off this broker; may be repeated."),
]
WindowOption = Annotated[
    float, typer.Option("--window", min=0.1, metavar="SECONDS", help="How long traffic and CPU are measured.")
]
ToleranceOption = Annotated[
    float,
    typer.Option(
        "--tolerance", min=1, max=100, metavar="PERCENT", help="How far a broker's load may be from its share."
    ),
]
_NOTHING = "Nothing to move: the brokers are in balance, or no move would help."
_COLUMNS = {"topic": "TOPIC", "partition": "PARTITION", "from": "FROM", "to": "TO", "copied": "COPIED"}


@app.command()
@cluster_command
def status(
    cluster: Cluster,
    output: Output,
    goal: GoalOption = None,
    window: WindowOption = 10.0,
    tolerance: ToleranceOption = 10.0,
) -> None:
    """Show each broker's loads, and which of these loads are out of balance."""
    from ottla.balance.loads import levelled
    from ottla.cli.measuring import measure

    goals = _goals(goal)
    measured = measure(cluster, window)
    plan = levelled(measured.partitions, measured.brokers.values(), goals, (), tolerance / 100, measured.slack)
    rows = [_broker_row(broker, measured, plan.before) for broker in sorted(measured.brokers)]
    moving = len(moves.under_way(cluster))
    if output.as_json:
        output.document({"brokers": rows, "moving": moving})
        return
    for row in rows:
        for each in row["out_of_balance"]:
            row[f"{each}_text"] += " *"
    columns = {"broker": "BROKER", "rack": "RACK", "disk_text": "DISK", "filled": "FILLED", "cpu_text": "CPU"}
    columns |= {"traffic": "TRAFFIC", "replicas_text": "REPLICAS", "leaders_text": "LEADERS"}
    output.rows(rows, columns)
    if any(row["out_of_balance"] for row in rows):
        output.note("* out of balance. Find the moves: ottla balance plan --out FILE")
    else:
        output.note("The brokers are in balance.")
    if moving:
        output.note(f"{counted(moving, 'partition')} being moved: ottla reassign status")
    _say_what_is_unknown(output, measured)


@app.command()
@cluster_command
def plan(
    cluster: Cluster,
    output: Output,
    goal: GoalOption = None,
    topic: TopicOption = None,
    without: WithoutOption = None,
    window: WindowOption = 10.0,
    tolerance: ToleranceOption = 10.0,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the plan to a file.")] = None,
) -> None:
    """Measure the brokers' loads, and find the moves that balance them; nothing is moved yet."""
    planned, rows, effects = _planned(cluster, output, goal, topic, without, window, tolerance)
    document = moves.to_file(planned)
    if out is not None and rows:
        moves.write_file(document, out)
    if output.as_json:
        output.document({**document, "effects": effects})
        return
    output.rows(rows, _COLUMNS, empty=_NOTHING if out is None else f"{_NOTHING} No file was written.")
    if rows:
        output.title("")
        output.rows(effects, {"goal": "GOAL", "before": "BEFORE", "after": "AFTER", "outside": "STILL OUTSIDE"})
        output.note(_summary(rows) + f" Begin: ottla balance run {out or 'FILE (--out FILE keeps this plan)'}")


@app.command()
@cluster_command
def run(
    cluster: Cluster,
    output: Output,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="The file of a plan. By default a plan is made now.")
    ] = None,
    goal: GoalOption = None,
    topic: TopicOption = None,
    without: WithoutOption = None,
    window: WindowOption = 10.0,
    tolerance: ToleranceOption = 10.0,
    throttle: ThrottleOption = None,
    at_once: Annotated[
        int,
        typer.Option(
            "--at-once", min=1, metavar="PARTITIONS", help="Move up to this number of partitions at the same time."
        ),
    ] = 20,
    wait: Annotated[
        float | None, typer.Option("--wait", min=0, metavar="SECONDS", help="Give up after this time.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Carry out a plan, a few partitions at a time. If a run was interrupted, the same command continues it."""
    if file is not None:
        if goal or topic or without:
            raise UsageError(
                "a plan's file already says which replicas move", "Leave out FILE, or --goal, --topic and --without."
            )
        planned = moves.from_file(file)
    else:
        planned, rows, _ = _planned(cluster, output, goal, topic, without, window, tolerance)
        if not rows:
            output.done(_NOTHING, {"moved": 0})
            return
        output.note(_summary(rows))
        if not output.as_json:
            confirm("Move them?", yes, output)
    moved = _carry_out(cluster, output, planned, throttle, at_once, wait)
    output.done(f"{counted(moved, 'partition')} moved.", {"moved": moved})


def _planned(
    cluster: Cluster,
    output: Output,
    goal: list[str] | None,
    topic: list[str] | None,
    without: list[int] | None,
    window: float,
    tolerance: float,
) -> tuple[moves.Plan, list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures the brokers' loads. Returns (the plan, an output row for each move, an output row for each goal)."""
    from ottla.balance.loads import levelled
    from ottla.cli.measuring import measure

    goals = _goals(goal)
    if topic:
        lookup.describe_topics(cluster, topic)
    measured = measure(cluster, window)
    holders = {broker for each in measured.partitions.values() for broker in each.replicas}
    unknown = sorted(set(without or ()).difference(measured.brokers, holders))
    if unknown:
        raise UsageError(f"there is no broker {unknown[0]}", "`ottla brokers list` shows all brokers.")
    if away := sorted(holders.difference(measured.brokers, without or ())):
        raise CommandError(
            f"broker {away[0]} is away, and all its replicas would be copied to other brokers",
            f"Start the broker. If it will not come back, say --without {away[0]}.",
        )
    brokers = [broker for broker in measured.brokers.values() if broker.id not in (without or ())]
    if not brokers:
        raise UsageError("no broker would be left", "Name fewer brokers with --without.")
    found = levelled(measured.partitions, brokers, goals, topic or None, tolerance / 100, measured.slack)
    directories = _directories(measured, found.targets, topic, tolerance / 100) if "disk" in goals else {}
    _say_what_is_unknown(output, measured)
    present = {name: partition.replicas for name, partition in measured.partitions.items()}
    rows = []
    for name, target in sorted(found.targets.items()):
        copies = len(set(target).difference(present[name]))
        size = measured.partitions[name].size_bytes
        rows.append(_move_row(name, list(present[name]), list(target), size * copies))
    for (name, broker), path in sorted(directories.items()):
        placed = measured.placed[broker][name]
        rows.append(_move_row(name, f"{broker}:{placed.directory}", f"{broker}:{path}", placed.size_bytes))
    effects = [_effect(each, found.before[each], found.after[each]) for each in found.before]
    targets = {name: present[name] for name, _ in directories} | found.targets
    return moves.Plan(targets, directories), rows, effects


def _move_row(name: PartitionName, before: object, after: object, size_bytes: float) -> dict[str, Any]:
    copied = {"copied": size_text(int(size_bytes)), "bytes": int(size_bytes)}
    return {"topic": name[0], "partition": name[1], "from": before, "to": after, **copied}


def _directories(
    measured: Measured,
    targets: Mapping[PartitionName, object],
    topics: list[str] | None,
    tolerance: float,
) -> dict[moves.ReplicaName, str]:
    """The new log directories of replicas that stay on their broker."""
    from ottla.balance.directories import levelled_directories
    from ottla.balance.loads import Goal

    found = {}
    slack = measured.slack[Goal.disk]
    for broker, capacities in measured.capacities.items():
        if len(capacities) > 1:
            held = measured.placed[broker]
            movable = {
                name
                for name in held
                if name in measured.partitions and name not in targets and (not topics or name[0] in topics)
            }
            for name, path in levelled_directories(capacities, held, tolerance, movable, slack).items():
                found[name, broker] = path
    return found


def _goals(names: list[str] | None) -> list[Goal]:
    from ottla.balance.loads import Goal

    known = [goal.value for goal in Goal]
    for name in names or ():
        if name not in known:
            raise UsageError(f"'{name}' is no goal", f"Goals are {', '.join(known)}.")
    return [goal for goal in Goal if not names or goal.value in names]


def _broker_row(broker: int, measured: Measured, bands: Mapping[Goal, Mapping[int, Band]]) -> dict[str, Any]:
    held = measured.placed.get(broker, {})
    disk = sum(one.size_bytes for one in held.values())
    capacity = measured.brokers[broker].capacity_bytes
    led = [each for each in measured.partitions.values() if each.replicas and each.replicas[0] == broker]
    followed = [each for each in measured.partitions.values() if broker in each.replicas[1:]]
    traffic = sum(each.leading for each in led) + sum(each.following for each in followed)
    cores = measured.cores.get(broker)
    outside = [goal.value for goal, band in bands.items() if not band[broker].holds]
    return {
        "broker": broker,
        "rack": measured.brokers[broker].rack,
        "disk_bytes": int(disk),
        "capacity_bytes": None if capacity is None else int(capacity),
        "cores": None if cores is None else round(cores, 3),
        "traffic_bytes_per_second": int(traffic),
        "replicas": len(led) + len(followed),
        "leaders": len(led),
        "out_of_balance": outside,
        "disk_text": size_text(int(disk)),
        "filled": "-" if not capacity else f"{100 * disk / capacity:.0f}%",
        "cpu_text": "-" if cores is None else f"{100 * cores:.0f}%",
        "traffic": f"{size_text(int(traffic))}/s",
        "replicas_text": str(len(led) + len(followed)),
        "leaders_text": str(len(led)),
    }


def _effect(goal: Goal, before: Mapping[int, Band], after: Mapping[int, Band]) -> dict[str, Any]:
    """A row for one goal: the brokers' smallest and greatest load in percent of the average, before and after the
    plan."""

    def spread(bands: Mapping[int, Band]) -> str:
        loads = [band.load for band in bands.values()]
        mean = sum(loads) / len(loads)
        return f"{100 * min(loads) / mean:.0f}% to {100 * max(loads) / mean:.0f}%" if mean else "nothing measured"

    outside = [broker for broker, band in after.items() if not band.holds]
    return {"goal": goal.value, "before": spread(before), "after": spread(after), "outside": outside}


def _summary(rows: list[dict[str, Any]]) -> str:
    return f"{counted(len(rows), 'move')}, {size_text(sum(row['bytes'] for row in rows))} to copy."


def _say_what_is_unknown(output: Output, measured: Measured) -> None:
    silent = set(measured.brokers).difference(measured.cores)
    if silent:
        output.warn(
            f"{brokers_text(silent)} silent about CPU time, so that it counts as 0",
            "Apache Kafka's brokers don't report CPU time, and brokers that are away can't.",
        )


def _carry_out(
    cluster: Cluster, output: Output, planned: moves.Plan, throttle: int | None, at_once: int, wait: float | None
) -> int:
    """Moves each replica that isn't where the plan wants it, `at_once` partitions at a time, and waits for all moves.

    Returns the number of partitions whose replicas were changed, plus the number of replicas that changed their log
    directory.
    """
    present = moves.assignments(cluster)
    gone = sorted(set(planned.replicas).difference(present))
    if gone:
        output.warn(f"there is no partition {gone[0][0]}-{gone[0][1]} any more", "The rest of the plan is carried out.")
    wanted = {name: replicas for name, replicas in planned.replicas.items() if name in present}
    left = {name: replicas for name, replicas in wanted.items() if present[name] != replicas}
    deadline = None if wait is None else time.monotonic() + wait
    changed = len(left)
    with progress(len(wanted)) as show:
        while True:
            active = moves.under_way(cluster)
            ours = set(active).intersection(wanted)
            show(len(wanted) - len(left) - len(ours))
            begun = dict(sorted(left.items())[: max(0, at_once - len(active))])
            if begun:
                if throttle is not None:
                    moves.throttle(cluster, present, begun, throttle)
                moves.begin(cluster, begun)
                left = {name: replicas for name, replicas in left.items() if name not in begun}
            elif not left and not ours:
                break
            _check_time(deadline, len(left) + len(ours))
            time.sleep(_LOOK_S)
    _let_the_first_lead(cluster, wanted)
    moved = moves.move_directories(cluster, {at: path for at, path in planned.directories.items() if at[0] in present})
    _wait_for_directories(cluster, planned, deadline)
    moves.unthrottle(cluster, {name[0] for name in wanted})
    return changed + moved


def _wait_for_directories(cluster: Cluster, planned: moves.Plan, deadline: float | None) -> None:
    """Waits for copies between log directories. Raises CommandError if a broker has given up a copy."""
    given_up_at: dict[moves.ReplicaName, float] = {}
    while left := moves.directories_to_go(cluster, planned.directories):
        now = time.monotonic()
        given_up_at = {at: given_up_at.get(at, now) for at, copying in left.items() if not copying}
        for (name, broker), since in given_up_at.items():
            if now - since > _GIVEN_UP_S:
                raise CommandError(
                    f"broker {broker} has given up the copy of {name[0]}-{name[1]} to another log directory",
                    "The broker's log says why. To try again, run the same command with the plan's FILE.",
                )
        _check_time(deadline, len(left))
        time.sleep(_LOOK_S)


def _check_time(deadline: float | None, left: int) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise CommandError(
            f"{counted(left, 'partition')} not moved within the given time",
            "Moves that have begun continue. For the others, run the same command with the plan's FILE.",
            ExitCode.timed_out,
        )


def _let_the_first_lead(cluster: Cluster, wanted: moves.Moves) -> None:
    """Elects the first replica of each partition, because a new order of replicas alone doesn't change the leader."""
    partitions: dict[str, list[int]] = {}
    for topic, index in sorted(wanted):
        partitions.setdefault(topic, []).append(index)
    if not partitions:
        return
    _, failures = elections.elect(cluster, partitions)
    if failures:
        raise failures[0]
