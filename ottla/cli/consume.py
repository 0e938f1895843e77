"""`ottla consume`: records of topics as lines or JSON, from a position or as a member of a group.

Made for pipes: each fetched batch is written and flushed at once, a reader that has gone away ends the run even while
no record comes, and Ctrl-C and SIGTERM are quiet. A group's offsets are committed only after their records have been
written out, so that a record may be printed twice after a crash but never skipped.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from ottla.cli import availability, damage, lookup, records
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, ExitCode, NotFound, UsageError, nearest
from ottla.cli.options import cluster_command
from ottla.cli.output import Output, reader_gone
from ottla.cli.silence import Silence
from ottla.cli.times import FORMS, parse_moment

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

    from ottla.cli.connection import Cluster

_POLL_MS = 250
_BATCH_RECORDS = 2000
_ISOLATION = ("read_uncommitted", "read_committed")


class _Limits(NamedTuple):
    """When a run ends by itself; None: never."""

    records: int | None
    idle_s: float | None
    ends: dict[TopicPartition, int] | None


@cluster_command
def consume(
    cluster: Cluster,
    output: Output,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC[:PARTITIONS]…]", help="Which topics.")] = None,
    topic_pattern: Annotated[
        str | None, typer.Option("--topic-pattern", metavar="REGEX", help="All topics whose whole name matches.")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest record.")] = False,
    offset: Annotated[
        str | None, typer.Option("--offset", metavar="N|-N", help="Start at this offset; -N: so many before the end.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="MOMENT", help=f"Start with the first record at or after: {FORMS}."),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="0,2-4", help="Only these partitions of every topic.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Read as a member of this group and commit what was printed.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, metavar="N", help="End after so many records.")
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="End at the record that is the last one now.")
    ] = False,
    idle: Annotated[
        float | None, typer.Option("--idle", min=0.1, metavar="SECONDS", help="End when no record came for so long.")
    ] = None,
    show: Annotated[
        list[str] | None,
        typer.Option(
            "--show", "-s", metavar="key,headers,…", help=f"Print before the value: {', '.join(records.SHOWN)}, all."
        ),
    ] = None,
    separator: Annotated[str, typer.Option("--separator", metavar="TEXT", help="Between what is printed.")] = "\\t",
    null_marker: Annotated[str, typer.Option("--null-marker", metavar="TEXT", help="Printed for null.")] = "null",
    isolation: Annotated[
        str, typer.Option("--isolation", metavar="|".join(_ISOLATION), help="Which records of transactions to read.")
    ] = _ISOLATION[0],
) -> None:
    """Print records as they come. Without a position it starts with what is written from now on."""
    if bool(topics) == (topic_pattern is not None):
        raise UsageError("which topics?", "Name topics, or give --topic-pattern REGEX.")
    if isolation not in _ISOLATION:
        raise UsageError(f"--isolation can't be '{isolation}'", f"Say one of: {', '.join(_ISOLATION)}.")
    if sum([from_beginning, offset is not None, timestamp is not None]) > 1:
        raise UsageError("more than one position is given", "Give one of --from-beginning, --offset, --timestamp.")
    if group is not None:
        _check_group_alone(offset, timestamp, partition, until_end, topics or [])
    writer = _json_line if output.as_json else records.line_writer(_shown(show), separator, null_marker)
    settings = {
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest" if from_beginning else "latest",
        "isolation_level": isolation,
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": 4 * 1024 * 1024,
        "request_timeout_ms": max(cluster.timeout_ms, 1000),
    }
    if group is not None:
        settings |= {"session_timeout_ms": 30_000, "request_timeout_ms": max(cluster.timeout_ms, 60_000)}
    ends = None
    if group is None:
        partitions = _partitions(cluster, topics, topic_pattern, partition)
        starts, ends = _positions(cluster, partitions, from_beginning, offset, timestamp)
        if until_end and all(starts[one] >= ends[one] for one in partitions):
            return
    else:
        if topics:
            lookup.describe_topics(cluster, topics)
        availability.check_coordinator(cluster, group)
    consumer = cluster.consumer(**settings)
    try:
        signal.signal(signal.SIGTERM, _terminated)
        if group is None:
            consumer.assign(list(starts))
            for one, start in starts.items():
                consumer.seek(one, start)
        else:
            consumer.subscribe(topics=topics or (), pattern=f"^(?:{topic_pattern})$" if topic_pattern else None)
        if sys.stdout.isatty() and not (from_beginning or offset or timestamp):
            output.note("Waiting for new records (--from-beginning shows the old ones, too); Ctrl-C ends.")
        with explained("reading"):
            limits = _Limits(max_messages, idle, ends if until_end else None)
            silence = Silence(cluster, output, consumer, group, ends=max_messages is not None or until_end)
            commit = None if group is None else _committing(cluster, consumer, group)
            _print_all(cluster, consumer, writer, limits, silence, commit)
    finally:
        consumer.close(autocommit=False, timeout_ms=2000)


def _check_group_alone(
    offset: str | None, timestamp: str | None, partition: str | None, until_end: bool, topics: list[str]
) -> None:
    """Raises UsageError for an option that a group's member can't have."""
    for option, given in (("--offset", offset), ("--timestamp", timestamp)):
        if given is not None:
            raise UsageError(
                f"{option} and --group don't go together: a group goes on where it has committed",
                "Move the group first (`ottla groups reset-offsets`), or leave out --group.",
            )
    if partition is not None or any(":" in name for name in topics):
        raise UsageError(
            "partitions and --group don't go together: the group shares the partitions out among its members",
            "Leave out one of them.",
        )
    if until_end:
        raise UsageError(
            "--until-end and --group don't go together: which partitions end is known only to the whole group",
            "Say --idle SECONDS or --max-messages N, or leave out --group.",
        )


def _print_all(
    cluster: Cluster,
    consumer: KafkaConsumer,
    writer: Any,
    limits: _Limits,
    silence: Silence,
    commit: Callable[[], None] | None,
) -> None:
    """Until a limit is reached; `commit` is called when what came is printed."""
    stdout = sys.stdout.buffer
    gone = reader_gone()
    printed = 0
    remaining = dict(limits.ends or {})
    while True:
        wanted = _BATCH_RECORDS if limits.records is None else min(_BATCH_RECORDS, limits.records - printed)
        batches = _polled(cluster, consumer, wanted)
        for partition, batch in batches.items():
            if limits.ends is not None:
                # What came after the end that was seen at the start isn't part of this run.
                batch = [record for record in batch if record.offset < limits.ends[partition]]
            stdout.write(b"".join(map(writer, batch)))
            printed += len(batch)
        if batches:
            stdout.flush()
            silence.broken()
            if commit is not None:
                commit()
        if limits.records is not None and printed >= limits.records:
            return
        if limits.ends is not None:
            # By position, not by record: the last offsets may be empty or hold transaction markers.
            remaining = {one: end for one, end in remaining.items() if consumer.position(one) < end}
            if not remaining:
                return
        if limits.idle_s is not None and time.monotonic() - silence.since >= limits.idle_s:
            silence.check()
            return
        if not batches:
            silence.goes_on()
        if gone():
            raise BrokenPipeError


def _polled(cluster: Cluster, consumer: KafkaConsumer, wanted: int) -> Any:
    """The next records by partition. Raises CommandError with the place of a batch that can't be read."""
    try:
        return consumer.poll(timeout_ms=_POLL_MS, max_records=wanted)
    except Exception as error:
        place = damage.located(cluster, consumer, error) if damage.of_records(error) else None
        if place is None:
            raise
        raise place from error


def _committing(cluster: Cluster, consumer: KafkaConsumer, group: str) -> Callable[[], None]:
    """A function that commits what was read."""
    from kafka.errors import KafkaTimeoutError

    def commit() -> None:
        try:
            consumer.commit(timeout_ms=cluster.timeout_ms)
        except KafkaTimeoutError:
            availability.check_coordinator(cluster, group)
            raise

    return commit


def _partitions(
    cluster: Cluster, topics: list[str] | None, pattern: str | None, partition: str | None
) -> list[TopicPartition]:
    if pattern is not None:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"'{pattern}' is not a regular expression: {error}") from None
        names = [name for name in lookup.topic_names(cluster) if compiled.fullmatch(name) and not name.startswith("__")]
        if not names:
            raise NotFound(f"no topic matches '{pattern}'", "`ottla topics list` shows them all.")
    else:
        names = list(topics or [])
    if partition is not None:
        lookup.parse_partitions(partition)
        if any(":" in name for name in names):
            raise UsageError("partitions are given twice", "Give either TOPIC:PARTITIONS or --partition.")
        names = [f"{name}:{partition}" for name in names]
    return lookup.topic_partitions(cluster, names)


def _positions(
    cluster: Cluster, partitions: list[TopicPartition], from_beginning: bool, offset: str | None, timestamp: str | None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where each partition is read from, and where it ends at this moment."""
    ends = lookup.end_offsets(cluster, partitions)
    if from_beginning or offset == "earliest":
        return lookup.end_offsets(cluster, partitions, earliest=True), ends
    if timestamp is not None:
        from kafka.admin import OffsetTimestamp

        moment = OffsetTimestamp(parse_moment(timestamp, int(time.time() * 1000)))
        found = lookup.offsets_at(cluster, partitions, moment)
        return {one: at if at >= 0 else ends[one] for one, at in found.items()}, ends
    if offset is None or offset == "latest":
        return ends, ends
    try:
        number = int(offset)
    except ValueError:
        raise UsageError(f"'{offset}' is not an offset", "Give a number, -N, earliest or latest.") from None
    starts = lookup.end_offsets(cluster, partitions, earliest=True)
    if number < 0:
        return {one: max(starts[one], ends[one] + number) for one in partitions}, ends
    for one in partitions:
        if not starts[one] <= number <= ends[one]:
            raise CommandError(
                f"{one.topic}:{one.partition} has no offset {number}",
                _extent(starts[one], ends[one]),
                ExitCode.not_found,
                1,
            )
    return dict.fromkeys(partitions, number), ends


def _extent(start: int, end: int) -> str:
    """What offsets a partition has, for a person."""
    if start == end:
        return f"It is empty; the next record gets {end}."
    return f"It has {start} to {end - 1}; the next record gets {end}."


def _shown(show: list[str] | None) -> list[str]:
    names = [name.strip() for text in show or [] for name in text.split(",")]
    for name in names:
        if name not in (*records.SHOWN, "all"):
            choices = (*records.SHOWN, "all")
            raise UsageError(
                f"--show doesn't know '{name}'", f"Say any of: {', '.join(choices)}.{nearest(name, choices)}"
            )
    return list(records.SHOWN) if "all" in names else names


def _json_line(record: Any) -> bytes:
    return json.dumps(records.to_json(record), ensure_ascii=False).encode() + b"\n"


def _terminated(signum: int, frame: object) -> NoReturn:
    raise SystemExit(ExitCode.terminated)
