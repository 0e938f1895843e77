"""`ottla consume`: records of topics as lines or JSON, from a position or as a member of a group.

The command is meant for pipes. Each fetched batch is written and flushed immediately. The run ends when the reader of
the output has closed the pipe, even while no record comes. Ctrl-C and SIGTERM print no error. A group's offsets are
committed only after their records have been written out. So after a crash a record may be printed twice, but none is
skipped.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ottla.cli import availability, damage, lookup, positions, ranges, records, template
from ottla.cli.connection import explained
from ottla.cli.errors import UsageError, end_by_signal, nearest
from ottla.cli.options import cluster_command
from ottla.cli.output import Output, reader_gone
from ottla.cli.silence import Silence
from ottla.cli.times import FORMS, parse_moment

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

    from ottla.cli.connection import Cluster

_POLL_MS = 250
_BATCH_RECORDS = 2000


class _Limits(NamedTuple):
    """The limits at which a run ends by itself. None means no limit."""

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
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="START[:END]",
            help=f"Where to start: {ranges.START_FORMS}. The end is exclusive: {ranges.END_FORMS}.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="MOMENT", help=f"Start with the first record at or after: {FORMS}."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="MOMENT|N",
            help="End before the first record at or after this moment, or before this offset.",
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="0,2-4", help="Only these partitions of every topic.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this group and commit the offsets of printed records."),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, metavar="N", help="End after this number of records.")
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="End at the record that is the last one when the command starts.")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option("--idle", min=0.1, metavar="SECONDS", help="End when no record has come for this time."),
    ] = None,
    show: Annotated[
        list[str] | None,
        typer.Option(
            "--show", "-s", metavar="key,headers,…", help=f"Print before the value: {', '.join(records.SHOWN)}, all."
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option("--separator", metavar="TEXT", help="Text between printed fields.", show_default="\\t"),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEMPLATE",
            help="Print records by this template, for instance '%k %s\\n': %k key, %s value, %h headers, %t topic, "
            "%p partition, %o offset, %T timestamp, %K %S lengths.",
        ),
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option(
            "--null-marker",
            metavar="TEXT",
            help="Text that is printed for null.",
            show_default="null; with --format nothing",
        ),
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            metavar="|".join(lookup.ISOLATIONS),
            help="read_committed leaves out the records of aborted transactions, and ends before those of open ones.",
        ),
    ] = lookup.READ_UNCOMMITTED,
) -> None:
    """Print records as they come. Without a position it starts with records that are written from now on."""
    if bool(topics) == (topic_pattern is not None):
        raise UsageError("which topics?", "Name topics, or give --topic-pattern REGEX.")
    if topic_pattern is not None:
        lookup.parse_pattern(topic_pattern)
    if isolation not in lookup.ISOLATIONS:
        raise UsageError(f"--isolation can't be '{isolation}'", f"Say one of: {', '.join(lookup.ISOLATIONS)}.")
    if group is not None:
        _check_group_alone(offset, timestamp, until, partition, until_end, topics or [])
    wanted = _range(from_beginning, offset, timestamp, until)
    writer = _writer(output, format_, show, separator, null_marker)
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
        now = lookup.end_offsets(cluster, partitions, isolation=isolation)
        starts = positions.starts(cluster, partitions, wanted.start, now, isolation)
        end = ranges.LATEST if wanted.end is None and until_end else wanted.end
        if end is not None:
            ends = positions.ends(cluster, output, partitions, end, now, isolation)
            starts = {one: start for one, start in starts.items() if start < ends[one]}
            ends = {one: ends[one] for one in starts}
            if not starts:
                return
    else:
        if topics:
            lookup.describe_topics(cluster, topics)
        availability.check_coordinator(cluster, group)
    consumer = cluster.consumer(**settings)
    try:
        signal.signal(signal.SIGTERM, end_by_signal)
        if group is None:
            consumer.assign(list(starts))
            for one, start in starts.items():
                consumer.seek(one, start)
        else:
            consumer.subscribe(topics=topics or (), pattern=f"^(?:{topic_pattern})$" if topic_pattern else None)
        if sys.stdout.isatty() and not (from_beginning or offset or timestamp):
            output.note("Waiting for new records (--from-beginning shows the old ones, too); Ctrl-C ends.")
        with explained("the topics to read"):
            limits = _Limits(max_messages, idle, ends)
            silence = Silence(cluster, output, consumer, group, ends=max_messages is not None or ends is not None)
            commit = None if group is None else _committing(cluster, consumer, group)
            _print_all(cluster, consumer, writer, limits, silence, commit)
    finally:
        consumer.close(autocommit=False, timeout_ms=2000)


def _check_group_alone(
    offset: str | None,
    timestamp: str | None,
    until: str | None,
    partition: str | None,
    until_end: bool,
    topics: list[str],
) -> None:
    """Raises UsageError for an option that doesn't go together with --group."""
    for option, given in (("--offset", offset), ("--timestamp", timestamp)):
        if given is not None:
            raise UsageError(
                f"{option} and --group don't go together: a group continues at its committed offsets",
                "Move the group first (`ottla groups reset-offsets`), or leave out --group.",
            )
    if partition is not None or any(":" in name for name in topics):
        raise UsageError(
            "partitions and --group don't go together: the group shares the partitions out among its members",
            "Leave out one of them.",
        )
    for option, asked in (("--until-end", until_end), ("--until", until is not None)):
        if asked:
            raise UsageError(
                f"{option} and --group don't go together: a member of a group reads only some of the partitions",
                "Say --idle SECONDS or --max-messages N, or leave out --group.",
            )


def _range(from_beginning: bool, offset: str | None, timestamp: str | None, until: str | None) -> ranges.Range:
    """The range of records that the options name."""
    if sum([from_beginning, offset is not None, timestamp is not None]) > 1:
        raise UsageError("more than one position is given", "Give one of --from-beginning, --offset, --timestamp.")
    now_ms = int(time.time() * 1000)
    start: ranges.Start = ranges.LATEST
    end: ranges.End | None = None
    if from_beginning:
        start = ranges.EARLIEST
    elif offset is not None:
        start, end = ranges.parse_range(offset, now_ms)
    elif timestamp is not None:
        start = ranges.Moment(parse_moment(timestamp, now_ms))
    if until is None:
        return ranges.Range(start, end)
    if end is not None:
        raise UsageError("--offset and --until both give an end", "Leave one of them out.")
    if start == ranges.LATEST:
        raise UsageError("--until without a start reads nothing", "Say --from-beginning, --offset or --timestamp, too.")
    return ranges.Range(start, ranges.parse_end(until, now_ms))


def _writer(
    output: Output, format_: str | None, show: list[str] | None, separator: str | None, null_marker: str | None
) -> Callable[[Any], bytes]:
    """A function from a record to the bytes that are printed for it."""
    if format_ is None:
        if output.as_json:
            return _json_line
        default = ("\\t" if separator is None else separator, "null" if null_marker is None else null_marker)
        return records.line_writer(_shown(show), *default)
    for option, given in (("--json", output.as_json), ("--show", show), ("--separator", separator is not None)):
        if given:
            raise UsageError(
                f"{option} and --format are both given",
                "The template of --format determines everything that is printed.",
            )
    if format_ == "json":
        raise UsageError("--format takes a template", "Say --json for JSON.")
    return template.writer(format_, (null_marker or "").encode())


def _print_all(
    cluster: Cluster,
    consumer: KafkaConsumer,
    writer: Any,
    limits: _Limits,
    silence: Silence,
    commit: Callable[[], None] | None,
) -> None:
    """Prints records until a limit is reached. `commit` is called after each batch of records is printed."""
    stdout = sys.stdout.buffer
    gone = reader_gone()
    printed = 0
    remaining = dict(limits.ends or {})
    while True:
        wanted = _BATCH_RECORDS if limits.records is None else min(_BATCH_RECORDS, limits.records - printed)
        batches = _polled(cluster, consumer, wanted)
        for partition, batch in batches.items():
            if limits.ends is not None:
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
            # The position decides, not the last record: the last offsets may be empty or hold transaction markers.
            reached = [one for one, end in remaining.items() if consumer.position(one) >= end]
            for one in reached:
                del remaining[one]
            if not remaining:
                return
            consumer.pause(*reached)
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
    """A function that commits the offsets of the records that were read."""
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
    names = list(topics or []) if pattern is None else lookup.matching_topics(cluster, pattern)
    if partition is not None:
        lookup.parse_partitions(partition)
        if any(":" in name for name in names):
            raise UsageError("partitions are given twice", "Give either TOPIC:PARTITIONS or --partition.")
        names = [f"{name}:{partition}" for name in names]
    return lookup.topic_partitions(cluster, names)


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
