"""`ottla adopt`: turns the topics in Apache Kafka 4's log directories into topics of Ottla. The topics keep their ids.

No record is copied or changed. Where the log directories lack a fact that Ottla needs, `adopt` chooses a value by which
no record can be lost:
- Kafka keeps topic settings in its metadata log, which `adopt` doesn't read. So retention is off for the adopted topics
  until a user sets it.
- Each partition's first leader is the replica with the most complete log, in a leader epoch above Kafka's, because
  leader epochs must never decrease.
- New producer ids begin far above the ids that Kafka handed out, because a reused producer id would make new records
  look like duplicates.

Transactions go on: `__transaction_state` is in Kafka's format. A transaction that Kafka has left open is ended by its
producer, or aborted by its time-out. An open transaction that is in none of the adopted ids would never end. So `adopt`
refuses logs with such transactions, unless the user passes --expose-uncommitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.errors import CommandError, Failures, UsageError, unreadable
from ottla.cli.options import output_command
from ottla.cli.output import Output
from ottla.cli.topics import parse_settings
from ottla.wording import size_text

if TYPE_CHECKING:
    from ottla.broker.log.adopt import Adoptable
    from ottla.cli.adoption import Adoption


@output_command
def adopt(
    output: Output,
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…", help="All log directories of one Kafka broker, or of several brokers of a cluster."
        ),
    ],
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="PATH", help="File of the metadata store; by default in the first directory."),
    ] = None,
    node_id: Annotated[
        int | None, typer.Option("--node-id", min=0, help="The broker's id; by default each directory names its own.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of every adopted topic; may be repeated."),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Let partitions that are in no directory begin empty.")
    ] = False,
    expose_uncommitted: Annotated[
        bool,
        typer.Option("--expose-uncommitted", help="Adopt open transactions that no transactional id will end."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be adopted.")] = False,
) -> None:
    """Turn the log directories of stopped Kafka brokers into Ottla's. Kafka must not use them afterwards."""
    from ottla.cli.adoption import Directory, adoption_of
    from ottla.uuids import uuid_text

    settings = parse_settings(config)
    found = []
    for directory in directories:
        content = _surveyed(directory.absolute())
        broker = content.node_id if node_id is None else node_id
        if broker is None:
            problems = [CommandError(problem) for problem in content.problems]
            raise Failures([*problems, UsageError(f"{directory} names no broker id", "Say --node-id.")])
        found.append(Directory(broker, content))
    adoption = adoption_of(found, allow_missing=allow_missing, allow_hanging=expose_uncommitted)
    path = store.absolute() if store is not None else directories[0].absolute() / "metadata.sqlite"
    level = None
    if not dry_run:
        from ottla.cli.adoption_store import write

        level = write(adoption, path, settings)
    rows = [
        {
            "name": topic.name,
            "topic_id": uuid_text(topic.topic_id),
            "partitions": topic.count,
            "size_bytes": topic.size_bytes,
            "adopted": not dry_run,
        }
        for topic in adoption.topics
    ]
    for row in rows if not output.as_json else ():
        row["size"] = size_text(int(str(row["size_bytes"])))
    columns = {"name": "TOPIC", "partitions": "PARTITIONS", "size": "SIZE", "topic_id": "ID"}
    output.rows(rows, columns, empty="The log directories have no topics.")
    if level is None:
        output.note("Nothing is changed.")
    else:
        for note in _notes(adoption, path, level):
            output.note(note)


def _notes(adoption: Adoption, path: Path, level: int) -> Iterator[str]:
    """What an administrator has to know after an adoption into the store at `path`, in a cluster with this `level` of
    `transaction.version`."""
    from ottla.metadata.features import OFF

    if not all(each.content.stopped_cleanly for each in adoption.directories):
        yield "Kafka was not stopped cleanly: the brokers' first start recovers the logs."
    yield (
        "Retention is off for these topics. "
        "To turn it on: ottla topics alter NAME --reset retention.ms --reset retention.bytes"
    )
    if adoption.ids and level == OFF:
        yield (
            "The cluster has transaction.version 0, at which no producer of a transactional id can begin. To raise it:"
            " kafka-features.sh upgrade --feature transaction.version=2"
        )
    brokers = adoption.brokers
    if len(brokers) > 1:
        yield (
            f"Partitions get leaders when all of these brokers run: {', '.join(map(str, brokers))}."
            " If one will never start: ottla metadata go-without"
        )
    for broker in brokers:
        dirs = ",".join(each.content.path for each in adoption.directories if each.broker == broker)
        values = {"node.id": broker, "log.dirs": dirs, "ottla.metadata.store": f"embedded:{path}"}
        yield " ".join(["Start: ottla broker", *(f"--set {name}={value}" for name, value in values.items())])


def _surveyed(directory: Path) -> Adoptable:
    from ottla.broker.log.adopt import survey
    from ottla.broker.log.disk import RealDisk

    try:
        return survey(RealDisk(), str(directory))
    except BlockingIOError as error:
        raise CommandError(f"a broker uses {directory}", "Stop it cleanly first.") from error
    except OSError as error:
        raise unreadable(directory, error) from error
