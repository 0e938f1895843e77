"""`ottla transactions`: shows transactions and their producers, and ends transactions that their producers leave open.

Each request goes to the broker that can answer it: the list of transactional ids to every broker, a description to the
id's coordinator, and everything about a partition to the partition's leader.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import availability, lookup
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, NotFound, UsageError, nearest, raise_all
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.open_transactions import (
    Coordinated,
    OpenTransaction,
    coordinated_by,
    hanging,
    open_transactions,
    written_before,
)
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.cli.times import duration_ms, moment_text
from ottla.wording import counted, first_named

if TYPE_CHECKING:
    from kafka import TopicPartition
    from kafka.admin import TransactionDescription

    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Transactions of producers, and those that hang.")

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
_ONGOING = "Ongoing"
_OPEN = (_ONGOING, "PrepareCommit", "PrepareAbort")
_ID_NOT_FOUND = 105
_NAMED_MAX = 5


@app.command("list")
@cluster_command
def list_transactions(
    cluster: Cluster,
    output: Output,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only ids in this state (Ongoing, PrepareCommit, …); may be repeated."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only the id that has this producer id; may be repeated."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than", metavar="TIME", help="Only transactions that are open for longer than 90s, 15m, 2h, …."
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Only ids that this matches as a whole.")
    ] = None,
) -> None:
    """List transactional ids."""
    filters: dict[str, Any] = {"state_filters": [_state(name) for name in state or []]}
    filters["producer_id_filters"] = producer_id or []
    if longer_than is not None:
        filters["duration_filter_ms"] = _duration(longer_than, "--longer-than")
    matching = lookup.parse_pattern(pattern) if pattern is not None else None
    if unlisted := availability.leaderless(cluster, [availability.TRANSACTIONS_TOPIC]):
        output.warn(
            f"{counted(len(unlisted), 'partition')} of {availability.TRANSACTIONS_TOPIC} lack a leader, so that their"
            f" transactional ids are not listed: {availability.reason(unlisted)}",
            availability.remedy(unlisted),
        )
    rows = [row for row in _listed(cluster, filters) if matching is None or matching.fullmatch(row["transactional_id"])]
    if longer_than is not None:
        # Kafka counts ids without an open transaction as open since 1970, or since their last transaction began.
        rows = [row for row in rows if row["state"] in _OPEN]
    output.rows(
        rows,
        {
            "transactional_id": "TRANSACTIONAL ID",
            "state": "STATE",
            "producer_id": "PRODUCER ID",
            "coordinator": "COORDINATOR",
        },
        empty="There are no such transactional ids." if any(filters.values()) or pattern else "There are none.",
    )


def _state(name: str) -> str:
    """Kafka's spelling of the state."""
    known = {state.lower(): state for state in STATES}
    if name.lower() not in known:
        raise UsageError(f"there is no state '{name}'", f"Say one of: {', '.join(STATES)}.{nearest(name, STATES)}")
    return known[name.lower()]


def _duration(text: str, option: str) -> int:
    """The time in ms that an option names."""
    found = duration_ms(text) if text[:1].isdecimal() and not text.endswith("ago") else None
    if found is None:
        raise UsageError(f"{option} can't be '{text}'", "Write a time as 90s, 15m, 2h or 7d.")
    return found


def _listed(cluster: Cluster, filters: dict[str, Any]) -> list[dict[str, Any]]:
    """The transactional ids of all brokers. `filters` are those of kafka-python's list_transactions."""
    rows = []
    for broker in sorted(cluster.living()):
        with explained(f"the transactional ids that broker {broker} coordinates"):
            answer = cluster.patiently(partial(cluster.admin.list_transactions, [broker], **filters))
        rows += [
            {
                "transactional_id": listed.transactional_id,
                "state": listed.state.value,
                "producer_id": listed.producer_id,
                "coordinator": broker,
            }
            for listed in answer[broker]
        ]
    return sorted(rows, key=lambda row: str(row["transactional_id"]))


@app.command()
@cluster_command
def describe(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="ID…", help="Which transactional ids.")],
) -> None:
    """Show transactional ids: state, producer, time-out, and the partitions of an open transaction."""
    described = []
    for name in names:
        found = _description(cluster, name)
        described.append(
            {
                "transactional_id": name,
                "state": found.state.value,
                "coordinator": found.coordinator_id,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "timeout_ms": found.transaction_timeout_ms,
                "start_ms": found.transaction_start_time_ms if found.state.value in _OPEN else None,
                "partitions": [
                    {"topic": one.topic, "partition": one.partition} for one in sorted(found.topic_partitions)
                ],
            }
        )
    if output.as_json:
        output.document(described)
        return
    for number, row in enumerate(described):
        began = f"   open since {moment_text(row['start_ms'])}" if row["start_ms"] is not None else ""
        output.title(
            ("\n" if number else "")
            + f"{row['transactional_id']}   {row['state']}   producer {row['producer_id']}, epoch "
            f"{row['producer_epoch']}   coordinator {row['coordinator']}   time-out {row['timeout_ms'] / 1000:g} s"
            + began
        )
        output.rows(
            row["partitions"],
            {"topic": "TOPIC", "partition": "PARTITION"},
            empty="No partition waits for the end of a transaction.",
        )


def _description(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    try:
        with explained(f"transactional id '{transactional_id}'"):
            answer = cluster.patiently(
                lambda: cluster.admin.describe_transactions([transactional_id]),
                check=lambda: availability.check_transactions(cluster, transactional_id),
            )
    except CommandError as error:
        if error.kafka_code != _ID_NOT_FOUND:
            raise
        guess = nearest(transactional_id, (row["transactional_id"] for row in _listed(cluster, {})))
        raise NotFound(error.message, f"{guess} {error.remedy}".strip(), _ID_NOT_FOUND) from error
    description: TransactionDescription = answer[transactional_id]
    return description


@app.command()
@cluster_command
def producers(
    cluster: Cluster,
    output: Output,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="Which partitions.")],
    only_open: Annotated[bool, typer.Option("--open", help="Only producers that have an open transaction.")] = False,
) -> None:
    """Show the producers that partitions' leaders remember, and where their open transactions begin."""
    found = _producers(cluster, lookup.topic_partitions(cluster, topics))
    rows = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence if producer.last_sequence >= 0 else None,
            "last_timestamp": producer.last_timestamp if producer.last_timestamp >= 0 else None,
            "coordinator_epoch": producer.coordinator_epoch if producer.coordinator_epoch >= 0 else None,
            "start_offset": start if (start := producer.current_transaction_start_offset) >= 0 else None,
        }
        for where, active in sorted(found.items())
        for producer in sorted(active, key=lambda producer: int(producer.producer_id))
        if not only_open or producer.current_transaction_start_offset >= 0
    ]
    shown = [row | {"last_write": _moment(row["last_timestamp"])} for row in rows]
    output.rows(
        rows if output.as_json else shown,
        {
            "topic": "TOPIC",
            "partition": "PARTITION",
            "producer_id": "PRODUCER ID",
            "producer_epoch": "EPOCH",
            "last_sequence": "LAST SEQUENCE",
            "last_write": "LAST WRITE",
            "coordinator_epoch": "COORDINATOR EPOCH",
            "start_offset": "OPEN FROM",
        },
        empty="No transaction is open." if only_open else "No producer is remembered.",
    )


def _moment(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else moment_text(timestamp_ms)


def _producers(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """The producers of each partition, from the partitions' leaders."""
    if not partitions:
        return {}
    topics = sorted({one.topic for one in partitions})
    with explained("the producers of " + first_named([f"'{topic}'" for topic in topics], _NAMED_MAX)):
        answer = cluster.patiently(
            lambda: cluster.admin.describe_producers(partitions),
            check=lambda: availability.check_leaders(cluster, partitions),
        )
    return {where: state.active_producers for where, state in answer.items()}


def _coordinated(cluster: Cluster, transactions: Iterable[OpenTransaction]) -> dict[int, Coordinated]:
    """The transactional ids that coordinators know for the producers of these transactions, by producer id. Raises
    CommandError if not every coordinator can be asked."""
    wanted = sorted({one.producer_id for one in transactions})
    if not wanted:
        return {}
    if unknown := availability.leaderless(cluster, [availability.TRANSACTIONS_TOPIC]):
        raise CommandError(
            f"no one can say which transactions hang: {counted(len(unknown), 'partition')} of"
            f" {availability.TRANSACTIONS_TOPIC} lack a leader: {availability.reason(unknown)}",
            availability.remedy(unknown),
        )
    found = {}
    for row in _listed(cluster, {"producer_id_filters": wanted}):
        try:
            description = _description(cluster, row["transactional_id"])
        except NotFound:
            continue  # the id has expired since it was listed
        found[row["producer_id"]] = Coordinated(
            row["transactional_id"], description.state.value, description.topic_partitions
        )
    return found


@app.command("find-hanging")
@cluster_command
def find_hanging(
    cluster: Cluster,
    output: Output,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC[:PARTITIONS]…]", help="Which partitions; all if left out.")
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only transactions whose last record in the partition is older than 90s, 15m, 2h, ….",
        ),
    ] = "15m",
) -> None:
    """Find open transactions that no coordinator will end. They stop consumers that read only committed records."""
    age_ms = _duration(older_than, "--older-than")
    partitions = lookup.topic_partitions(cluster, topics or lookup.topic_names(cluster))
    if not topics and (skipped := availability.leaderless(cluster, {one.topic for one in partitions})):
        output.warn(
            f"{counted(len(skipped), 'partition')} can't be asked: {availability.explained_absence(skipped).message}",
            availability.remedy(skipped),
        )
        absent = {(one.topic, one.partition) for one in skipped}
        partitions = [one for one in partitions if tuple(one) not in absent]
    last_ms = int(time.time() * 1000) - age_ms
    before = written_before(open_transactions(_producers(cluster, partitions)), last_ms)
    coordinated = _coordinated(cluster, before)
    again = [one for one in partitions if tuple(one) in {(each.topic, each.partition) for each in before}]
    after = written_before(open_transactions(_producers(cluster, again)), last_ms)
    rows = [
        {
            **one._asdict(),
            "transactional_id": known.transactional_id if (known := coordinated.get(one.producer_id)) else None,
        }
        for one in hanging(before, coordinated, after)
    ]
    shown = [row | {"last_write": _moment(row["last_timestamp"])} for row in rows]
    output.rows(
        rows if output.as_json else shown,
        {
            "topic": "TOPIC",
            "partition": "PARTITION",
            "start_offset": "OPEN FROM",
            "producer_id": "PRODUCER ID",
            "producer_epoch": "EPOCH",
            "last_write": "LAST WRITE",
            "transactional_id": "TRANSACTIONAL ID",
        },
        empty="No transaction hangs.",
    )
    if rows:
        output.note("`ottla transactions abort TOPIC:PARTITION --start-offset OFFSET` ends one of them.")


@app.command()
@cluster_command
def abort(
    cluster: Cluster,
    output: Output,
    where: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", help="The partition in which it hangs.")],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, metavar="OFFSET", help="The transaction that begins here.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, metavar="N", help="The open transaction of this producer.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Abort a hanging transaction in one partition. A transaction that a coordinator will end is refused."""
    if (start_offset is None) == (producer_id is None):
        raise UsageError("which transaction?", "Give either --start-offset OFFSET or --producer-id N.")
    partitions = lookup.topic_partitions(cluster, [where])
    if len(partitions) != 1 or ":" not in where:
        raise UsageError(f"'{where}' is not one partition", "Write TOPIC:PARTITION, for instance flights:0.")
    found = _one_open(cluster, partitions, start_offset, producer_id)
    _require_hanging(cluster, found)
    confirm(
        f"Abort the transaction of producer {found.producer_id} that is open in {found.name} from offset"
        f" {found.start_offset} on?",
        yes,
        output,
    )
    # While the user was thinking, the transaction may have ended, and the producer's next one may have begun.
    found = _one_open(cluster, partitions, found.start_offset, found.producer_id)
    _write_abort(cluster, partitions[0], found)
    output.done(
        f"The transaction of producer {found.producer_id} in {found.name} is aborted.",
        {name: getattr(found, name) for name in ("topic", "partition", "start_offset", "producer_id")},
    )


def _one_open(
    cluster: Cluster, partitions: list[TopicPartition], start_offset: int | None, producer_id: int | None
) -> OpenTransaction:
    """The open transaction of this start offset and this producer, as far as they are given, in the one partition.
    Raises NotFound."""
    present = open_transactions(_producers(cluster, partitions))
    for one in present:
        if start_offset in (None, one.start_offset) and producer_id in (None, one.producer_id):
            return one
    [(topic, number)] = partitions
    wanted = "that begins at offset " + str(start_offset) if start_offset is not None else f"of producer {producer_id}"
    begins = first_named([f"{one.start_offset} (producer {one.producer_id})" for one in present], _NAMED_MAX)
    raise NotFound(
        f"{topic}:{number} has no open transaction {wanted}",
        f"Open ones begin at: {begins}." if present else "No transaction is open in it.",
    )


def _require_hanging(cluster: Cluster, found: OpenTransaction) -> None:
    """Raises CommandError if a coordinator will end the transaction: a marker in one partition would tear it apart."""
    known = coordinated_by(found, _coordinated(cluster, [found]))
    if known is None:
        return
    remedy = "Its coordinator is writing the markers: wait for them, and look whether all partitions have a leader."
    if known.state == _ONGOING:
        remedy = (
            f"It ends with its producer, or with its time-out (`ottla transactions describe {known.transactional_id}`);"
            f" `ottla transactions terminate {known.transactional_id}` aborts it in all partitions now."
        )
    raise CommandError(
        f"the transaction in {found.name} doesn't hang: it belongs to transactional id '{known.transactional_id}',"
        f" which is in state {known.state}",
        remedy,
    )


def _write_abort(cluster: Cluster, partition: TopicPartition, found: OpenTransaction) -> None:
    from kafka.admin import AbortTransactionSpec

    # A leader takes a marker of the coordinator epoch that it knows. It knows none before a producer's first marker.
    marker = AbortTransactionSpec(partition, found.producer_id, found.producer_epoch, max(found.coordinator_epoch, 0))
    with explained(f"the transaction in {found.name}"):
        cluster.patiently(
            lambda: cluster.admin.abort_transaction(marker),
            repeatable=False,
            check=lambda: availability.check_leaders(cluster, [partition]),
        )


@app.command()
@cluster_command
def terminate(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="ID…", help="Which transactional ids.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Abort the open transactions of transactional ids, in all partitions, and fence their producers."""
    confirm(
        f"Abort the open transactions of {counted(len(names), 'transactional id')}, and fence their producers:"
        f" {', '.join(names)}?",
        yes,
        output,
    )
    failures: list[CommandError] = []
    rows = []
    for name in names:
        try:
            before = _description(cluster, name)  # an id that doesn't exist would be created
            _fence(cluster, name, before.transaction_timeout_ms)
            rows.append({"transactional_id": name, "old_state": before.state.value})
        except CommandError as error:
            failures.append(error)
    if output.as_json:
        output.document(rows)
    else:
        for row in rows:
            print(
                f"The producer of '{row['transactional_id']}' is fenced, and its transaction is ended"
                f" (the state was {row['old_state']})."
            )
    raise_all(failures)


def _fence(cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
    """Takes over the transactional id as its next producer, which aborts the transaction of the present one."""
    with explained(f"transactional id '{transactional_id}'"):
        producer = cluster.producer(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, max_block_ms=cluster.timeout_ms
        )
        try:
            producer.init_transactions()
        finally:
            producer.close(timeout=0)
