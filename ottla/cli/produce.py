"""`ottla produce`: records from lines, from JSON, or from the command line.

A run reads and sends records, and waits for their acknowledgements in order. At most `_UNACKNOWLEDGED_MAX` records wait
for their acknowledgements at a time, so that a file of any size needs little memory. The first failure ends the run;
its error says how many records are known to be written. With a transactional id all records of a run are one
transaction.
"""

from __future__ import annotations

import operator
import signal
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import availability, lookup, record_source, records
from ottla.cli.connection import explained, sentence
from ottla.cli.errors import CommandError, NotFound, UsageError, end_by_signal, nearest
from ottla.cli.one_transaction import OneTransaction
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.cli.template_reader import Reader
from ottla.cli.times import FORMS, parse_moment
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

_UNACKNOWLEDGED_MAX = 20_000
_LONG_WAIT_S = 4.0
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_FORMATS = ("lines", "json")
_ACKS: dict[str, Any] = {"all": "all", "-1": "all", "1": 1, "0": 0}


@cluster_command
def produce(
    cluster: Cluster,
    output: Output,
    topic: Annotated[str, typer.Argument(help="Which topic; it must exist, unless --create is given.")],
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read this file instead of standard input.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", "-v", help="Write one record with this value; read nothing.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Text between key and value in each line."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record; may be repeated."),
    ] = None,
    header_separator: Annotated[
        str | None,
        typer.Option(
            "--header-separator", metavar="TEXT", help="Text between the headers (a:1,b:2) and the rest of each line."
        ),
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="Text that stands for null as a key or value.")
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="lines|json|TEMPLATE",
            help="json: one object a line, as `consume --json` prints; a template: for instance '%k:%s\\n' "
            "(%k key, %s value, %h headers, %T timestamp, %p partition, %K %S lengths). -f means --file, not --format.",
        ),
    ] = "lines",
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="MOMENT",
            help=f"The timestamp of records that have none of their own, instead of now: {FORMS}.",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Write to this partition.")] = None,
    acks: Annotated[
        str,
        typer.Option(
            "--acks", metavar="all|1|0", help="Which replicas must have a record before it counts as written."
        ),
    ] = "all",
    codec: Annotated[str, typer.Option("--codec", "-z", metavar="|".join(_CODECS), help="Compress batches.")] = "none",
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it doesn't exist.")] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="Write all records in one transaction of this id: readers of committed records get all or none.",
        ),
    ] = None,
    transaction_timeout: Annotated[
        float,
        typer.Option(
            "--transaction-timeout",
            min=0.001,
            metavar="SECONDS",
            help="Abort the transaction if it is open for longer, from the first record on.",
        ),
    ] = 60.0,
) -> None:
    """Write records: one per line of standard input, of a file, or the one in --value."""
    _check_choices(acks, codec)
    transaction = None
    if transactional_id is not None:
        _check_transactional(transactional_id, acks)
        transaction = OneTransaction(cluster, output, transactional_id, transaction_timeout)
    if value is not None and file is not None:
        raise UsageError("--value and --file are both given", "Leave one of them out.")
    if value is not None and format_ != "lines":
        raise UsageError("--value and --format are both given: --value is not read by a format", "Leave one out.")
    marker = null_marker.encode() if null_marker is not None else None
    constants = records.Constants(
        key=records.nullable(key.encode(), marker) if key is not None else None,
        headers=[records.parse_header(text) for text in header or []],
        partition=partition,
        timestamp_ms=parse_moment(timestamp, int(time.time() * 1000)) if timestamp is not None else None,
    )
    reader = _template(format_, marker, constants, key_separator, header_separator)
    lines = records.LineFormat(key_separator, header_separator, marker)
    partitions = _count_partitions(cluster, topic, create)
    if partition is not None and partition >= partitions:
        raise lookup.no_partition(topic, partition, partitions)

    def complete(record: records.NewRecord) -> records.NewRecord:
        if record.partition is not None and record.partition >= partitions:
            error = lookup.no_partition(topic, record.partition, partitions)
            raise UsageError(error.message, error.remedy)
        return constants.complete(record)

    if value is not None:
        single = records.NewRecord(None, records.nullable(value.encode(), marker), [], None, None)
        run = _Run(cluster, output, topic, acks, codec, transaction, prompt_delivery=True)
        run.send_all([constants.complete(single)])
    else:
        with record_source.opened(file) as source:
            if source.interactive:
                output.note("One record per line; Ctrl-D ends.")
            run = _Run(cluster, output, topic, acks, codec, transaction, prompt_delivery=source.interactive)
            if reader is None:
                parse = records.parse_json if format_ == "json" else lines.parse
                run.send_all(record_source.by_line(source, parse, complete))
            else:
                run.send_all(record_source.by_template(source, reader, complete))
    atomically = " in one transaction" if transaction is not None else ""
    output.done(f"{counted(run.written, 'record')} written to {topic}{atomically}.", run.summary())


def _check_choices(acks: str, codec: str) -> None:
    for given, known, option in ((acks, tuple(_ACKS), "--acks"), (codec, _CODECS, "--codec")):
        if given not in known:
            raise UsageError(f"{option} can't be '{given}'", f"Say one of: {', '.join(known)}.{nearest(given, known)}")


def _check_transactional(transactional_id: str, acks: str) -> None:
    if not transactional_id:
        raise UsageError("the transactional id is empty", "Say --transactional-id ID.")
    if _ACKS[acks] != "all":
        raise UsageError(f"--transactional-id and --acks {acks} don't go together", "Leave out one of them.")


def _template(
    format_: str,
    marker: bytes | None,
    constants: records.Constants,
    key_separator: str | None,
    header_separator: str | None,
) -> Reader | None:
    """The reader for the template in --format; None if --format isn't a template.

    Raises UsageError if an option gives a part of records that the template reads, too.
    """
    if format_ in _FORMATS:
        return None
    if "%" not in format_:
        raise UsageError(
            f"--format can't be '{format_}'",
            f"Say one of: {', '.join(_FORMATS)}, or a template such as '%k:%s\\n'.{nearest(format_, _FORMATS)}",
        )
    reader = Reader(format_, marker)
    for option, given, field in (
        ("--key-separator", key_separator is not None, ""),
        ("--header-separator", header_separator is not None, ""),
        ("--key", constants.key is not None, "k"),
        ("--partition", constants.partition is not None, "p"),
        ("--timestamp", constants.timestamp_ms is not None, "T"),
    ):
        if given and (not field or field in reader.names):
            what = f"%{field}" if field else "a template"
            raise UsageError(f"{option} and {what} are both given", "Leave one of them out.")
    return reader


def _count_partitions(cluster: Cluster, topic: str, create: bool) -> int:
    try:
        return len(lookup.topic_partitions(cluster, [topic]))
    except NotFound:
        if not create:
            raise
    with explained(f"creating topic '{topic}'"):
        cluster.admin.create_topics([topic], timeout_ms=cluster.timeout_ms)
        cluster.admin.wait_for_topics([topic], timeout_ms=cluster.timeout_ms)
    return len(lookup.topic_partitions(cluster, [topic]))


class _Run:
    """One producer, with its sent and its acknowledged records."""

    def __init__(
        self,
        cluster: Cluster,
        output: Output,
        topic: str,
        acks: str,
        codec: str,
        transaction: OneTransaction | None,
        *,
        prompt_delivery: bool,
    ) -> None:
        self.topic = topic
        self.written = 0
        self._cluster = cluster
        self._output = output
        self._transaction = transaction
        self._warned = False
        self._all_replicas = _ACKS[acks] == "all"
        self._size_bytes = 0
        self._offsets: dict[int, list[int]] = {}
        self._prompt_delivery = prompt_delivery
        self._timeout_s = cluster.timeout_s * 2 + 1
        self._waiting: deque[Any] = deque()
        self._producer = cluster.producer(
            acks=_ACKS[acks],
            enable_idempotence=self._all_replicas,
            compression_type=None if codec == "none" else codec,
            linger_ms=0 if prompt_delivery else 5,
            batch_size=128 * 1024,
            # The client doesn't limit records: the broker refuses too large ones, by the topic's max.message.bytes.
            max_request_size=512 * 1024 * 1024,
            max_block_ms=cluster.timeout_ms,
            # Values are sent in a tuple, because the client refuses a record whose key and value are both None.
            value_serializer=operator.itemgetter(0),
            delivery_timeout_ms=cluster.timeout_ms * 2,
            allow_auto_create_topics=False,
            **(transaction.settings if transaction is not None else {}),
        )

    def send_all(self, new_records: Iterable[records.NewRecord]) -> None:
        """Sends all records and waits until each is acknowledged. Raises an error for the first failure."""
        from kafka.errors import KafkaError

        try:
            if self._transaction is None:
                self._send_and_settle(new_records)
            else:
                signal.signal(signal.SIGTERM, end_by_signal)  # without an exception nothing would abort the transaction
                with self._transaction.around(self._producer, self._acknowledged):
                    self._send_and_settle(new_records)
        finally:
            try:
                self._producer.close(timeout=0 if self._waiting else self._timeout_s)
            except KafkaError:
                # Otherwise the producer's finalizer would close it again, wait in vain and print a stack trace.
                self._producer._closed = True

    def _send_and_settle(self, new_records: Iterable[records.NewRecord]) -> None:
        from kafka.errors import KafkaError

        try:
            try:
                for record in new_records:
                    self._send(record)
                    while self._waiting and (self._waiting[0].is_done or len(self._waiting) > self._limit):
                        self._settle()
            except UsageError as error:
                self._settle_all()
                raise CommandError(
                    f"{error.message} ({counted(self.written, 'record')} written)", error.remedy
                ) from error
            self._settle_all()
        except KafkaError as error:
            raise self._explained(error) from error

    def _settle_all(self) -> None:
        while self._waiting:
            self._settle()

    def _acknowledged(self) -> int:
        """How many records are written, also those whose acknowledgement the run hasn't looked at yet."""
        return self.written + sum(1 for future in self._waiting if future.succeeded())

    @property
    def _limit(self) -> int:
        return 0 if self._prompt_delivery else _UNACKNOWLEDGED_MAX

    def summary(self) -> dict[str, Any]:
        """The number of records that were written, and their offsets (-1 if acks=0 leaves them unknown)."""
        return {
            "topic": self.topic,
            "transactional_id": self._transaction.transactional_id if self._transaction is not None else None,
            "records": self.written,
            "size_bytes": self._size_bytes,
            "partitions": [
                {"partition": partition, "first_offset": first, "last_offset": last}
                for partition, (first, last) in sorted(self._offsets.items())
            ],
        }

    def _send(self, record: records.NewRecord) -> None:
        future = self._producer.send(
            self.topic,
            value=(record.value,),
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
        )
        self._size_bytes += len(record.key or b"") + len(record.value or b"")
        self._waiting.append(future)

    def _settle(self) -> None:
        from kafka.errors import KafkaError

        try:
            self._warn_of_a_long_wait()
            metadata = self._waiting[0].get(timeout=self._timeout_s)
        except KafkaError as error:
            reason = self._explained(error)
            reason.message += f" (record {self.written + 1}; {self.written} written before it)"
            raise reason from error
        self._waiting.popleft()
        self.written += 1
        span = self._offsets.setdefault(metadata.partition, [metadata.offset, metadata.offset])
        span[1] = metadata.offset

    def _warn_of_a_long_wait(self) -> None:
        """Warns once in a run, while the client still retries, and says why a record isn't acknowledged."""
        from kafka.errors import KafkaTimeoutError

        if self._warned:
            return
        try:
            self._waiting[0].get(timeout=min(_LONG_WAIT_S, self._timeout_s / 2))
        except KafkaTimeoutError:
            self._warned = True
            try:
                availability.check_writable(self._cluster, self.topic, all_replicas=self._all_replicas)
            except CommandError as reason:
                self._output.warn(reason.message, reason.remedy)

    def _explained(self, error: BaseException) -> CommandError:
        """The error for a record that wasn't written. After its retries the client reports only a time-out, so
        this method asks the cluster for the cause."""
        from kafka.errors import KafkaTimeoutError

        if self._transaction is not None and (about := self._transaction.explained(error)) is not None:
            return about
        if isinstance(error, KafkaTimeoutError):
            try:
                availability.check_writable(self._cluster, self.topic, all_replicas=self._all_replicas)
            except CommandError as reason:
                return reason
        return sentence(error, f"topic '{self.topic}'")
