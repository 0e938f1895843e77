"""`ottla adopt`: turns the topics in Apache Kafka 4's log directories into topics of Ottla. The topics keep their ids.

No record is copied or changed. Where the log directories lack a fact that Ottla needs, `adopt` chooses a value by which
no record can be lost:
- Kafka keeps topic settings in its metadata log, which `adopt` doesn't read. So retention is off for the adopted topics
  until a user sets it.
- Each partition's state starts with the last leader epoch of its log, because leader epochs must never decrease.
- New producer ids begin far above the ids that Kafka handed out, because a reused producer id would make new records
  look like duplicates.

Consumers that read committed records only don't see the records of aborted transactions in adopted logs either. Until
Ottla has transactions, nobody can end a transaction that Kafka has left open. So `adopt` refuses logs with open
transactions, unless the user passes --expose-uncommitted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.errors import CommandError, Failures, UsageError, unreadable
from ottla.cli.options import output_command
from ottla.cli.output import Output
from ottla.cli.topics import parse_settings
from ottla.wording import size_text

if TYPE_CHECKING:
    from ottla.broker.log.adopt import Adoptable, AdoptablePartition, AdoptableTopic
    from ottla.metadata.embedded import EmbeddedStore
    from ottla.metadata.store import Guard, Write

_KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
_PRODUCER_IDS_SKIPPED = 1 << 40
_COMPACTED = {"cleanup.policy": "compact", "compression.type": "producer"}


@output_command
def adopt(
    output: Output,
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="All log directories of one Kafka broker.")],
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="PATH", help="File of the metadata store; by default in the first directory."),
    ] = None,
    node_id: Annotated[
        int | None, typer.Option("--node-id", min=0, help="The broker's id; by default the one in the directories.")
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
        typer.Option("--expose-uncommitted", help="Adopt partitions with open transactions, which nobody can end."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be adopted.")] = False,
) -> None:
    """Turn the log directories of a stopped Kafka broker into Ottla's. Kafka must not use them afterwards."""
    settings = _KEPT | parse_settings(config)
    found = [_surveyed(directory.absolute()) for directory in directories]
    problems = [CommandError(problem) for one in found for problem in one.problems]
    topics = _merged(found)
    for topic in topics if not allow_missing else ():
        if topic.missing:
            problems.append(
                CommandError(
                    f"topic '{topic.name}' lacks partitions {', '.join(map(str, topic.missing))}",
                    "Name all log directories, or say --allow-missing.",
                )
            )
    if not expose_uncommitted:
        problems += _uncommitted(topics)
    ids = {one.node_id for one in found if one.node_id is not None}
    if node_id is None and len(ids) != 1:
        problems.append(UsageError("the directories name no broker id, or several", "Say --node-id."))
    if problems:
        raise Failures(problems)
    chosen = node_id if node_id is not None else ids.pop()
    path = store if store is not None else directories[0].absolute() / "metadata.sqlite"
    if not dry_run:
        import asyncio

        asyncio.run(_adopt(found, topics, path, chosen, settings))
    rows = [
        {
            "name": topic.name,
            "topic_id": _kafka_id(topic),
            "partitions": max(topic.partitions) + 1,
            "size_bytes": sum(partition.size_bytes for partition in topic.partitions.values()),
            "adopted": not dry_run,
        }
        for topic in topics
    ]
    for row in rows if not output.as_json else ():
        row["size"] = size_text(int(str(row["size_bytes"])))
    columns = {"name": "TOPIC", "partitions": "PARTITIONS", "size": "SIZE", "topic_id": "ID"}
    output.rows(rows, columns, empty="The log directories have no topics.")
    if dry_run:
        output.note("Nothing is changed.")
        return
    if not all(one.stopped_cleanly for one in found):
        output.note("Kafka was not stopped cleanly: the broker's first start recovers the logs.")
    dirs = ",".join(str(directory.absolute()) for directory in directories)
    output.note(
        "Retention is off for these topics. "
        "To turn it on: ottla topics alter NAME --reset retention.ms --reset retention.bytes\n"
        f"Start: ottla broker --set node.id={chosen} --set log.dirs={dirs} --set ottla.metadata.store=embedded:{path}"
    )


def _surveyed(directory: Path) -> Adoptable:
    from ottla.broker.log.adopt import survey
    from ottla.broker.log.disk import RealDisk

    try:
        return survey(RealDisk(), str(directory))
    except BlockingIOError as error:
        raise CommandError(f"a broker uses {directory}", "Stop it cleanly first.") from error
    except OSError as error:
        raise unreadable(directory, error) from error


def _uncommitted(topics: list[AdoptableTopic]) -> list[CommandError]:
    """The error for partitions with open transactions."""
    parts = [(topic, part) for topic in topics for _, part in sorted(topic.partitions.items())]
    still_open = [
        f"{topic.name}-{part.index} (from offset {part.open_from})"
        for topic, part in parts
        if part.open_from is not None
    ]
    if not still_open:
        return []
    return [
        CommandError(
            f"transactions are still open in {', '.join(still_open)}, and Ottla can't end them",
            "Start Kafka again, let the producers end them or abort them (`kafka-transactions.sh list`, `find-hanging`"
            " and `abort`), stop it cleanly and adopt then. Or say --expose-uncommitted: consumers that read only what"
            " is committed get nothing from there on, all others read these records, and nothing from there on is"
            " compacted.",
        )
    ]


def _merged(found: list[Adoptable]) -> list[AdoptableTopic]:
    """Each topic once, with its partitions from all log directories."""
    topics: dict[object, AdoptableTopic] = {}
    for topic in (topic for one in found for topic in one.topics):
        topics.setdefault(topic.topic_id, topic).partitions.update(topic.partitions)
    return sorted(topics.values(), key=lambda topic: topic.name)


async def _adopt(
    found: list[Adoptable], topics: list[AdoptableTopic], path: Path, node_id: int, settings: dict[str, str]
) -> None:
    from ottla.broker.log.adopt import claim
    from ottla.broker.log.disk import RealDisk
    from ottla.metadata.cluster import join_cluster
    from ottla.metadata.embedded import EmbeddedStore
    from ottla.metadata.store import StoreUnavailable, UnknownOutcome

    try:
        store = await EmbeddedStore.open(path)
        try:
            cluster = await join_cluster(store, None, found[0].cluster_id)
            await _skip_producer_ids(store, topics)
            for topic in topics:
                await _create(store, topic, node_id, settings)
        finally:
            await store.close()
        # This step is the last one, so that an interrupted adoption can be repeated.
        for one in found:
            claim(RealDisk(), one.path, cluster.id, node_id)
    except (StoreUnavailable, UnknownOutcome) as error:
        raise CommandError(
            f"can't write the metadata store {path}: {error}", "Run the command again: it continues where it stopped."
        ) from error
    except OSError as error:
        raise CommandError(
            f"can't write meta.properties in the log directories: {(error.strerror or str(error)).lower()}"
        ) from error


async def _skip_producer_ids(store: EmbeddedStore, topics: list[AdoptableTopic]) -> None:
    """Makes new producer ids begin above every producer id that the logs can hold."""
    from ottla.metadata import keys
    from ottla.metadata.model.cluster import ProducerIds
    from ottla.metadata.store import Committed, Guard, Put

    # A producer snapshot doesn't contain expired producers, although the log may still contain their records. So more
    # producer ids are skipped than any cluster has handed out.
    begin = _greatest_producer_id(topics) + _PRODUCER_IDS_SKIPPED
    while True:
        entry = next((entry for entry in (await store.read(keys.producer_ids.key)).entries), None)
        present = ProducerIds(0) if entry is None else ProducerIds.decode(entry)
        if present.next_id >= begin:
            return
        wanted = Put(keys.producer_ids.key, ProducerIds(begin).encode())
        if isinstance(await store.transact([Guard(keys.producer_ids.key, present.revision)], [wanted]), Committed):
            return


def _greatest_producer_id(topics: list[AdoptableTopic]) -> int:
    from ottla.storage.names import PRODUCER_SNAPSHOT
    from ottla.storage.producer_snapshot import read_snapshot

    greatest = 0
    for partition in (partition for topic in topics for partition in topic.partitions.values()):
        for snapshot in Path(partition.directory).glob(f"*{PRODUCER_SNAPSHOT}"):
            greatest = max(greatest, *(entry.producer_id for entry in read_snapshot(snapshot.read_bytes())), 0)
    return greatest


async def _create(store: EmbeddedStore, topic: AdoptableTopic, node_id: int, settings: dict[str, str]) -> None:
    """Writes an adopted topic to the metadata store. The last transaction writes the ready mark, which makes the topic
    visible to clients."""
    from ottla.metadata import keys
    from ottla.metadata.identities import ConfigResource
    from ottla.metadata.model.brokers import NO_EPOCH
    from ottla.metadata.model.partitions import NO_LEADER, Partition
    from ottla.metadata.model.settings import Config
    from ottla.metadata.model.topics import Ready, TopicIntent
    from ottla.metadata.store import TRANSACTION_OPERATIONS_MAX, Guard, Put, Rejected

    key = keys.topic(topic.name)
    count = max(topic.partitions) + 1
    present = {entry.key: entry for entry in (await store.read(key)).entries}.get(key)
    if present is not None:
        if TopicIntent.decode(present).id == topic.topic_id:
            return
        raise CommandError(
            f"the cluster has another topic called '{topic.name}'",
            "Delete that topic first, or use another metadata store.",
        )
    states: list[Write] = [
        Put(
            keys.partition(topic.topic_id, index),
            Partition(
                topic.topic_id,
                index,
                replicas=(node_id,),
                isr=(node_id,),
                isr_epochs=(NO_EPOCH,),
                leader=NO_LEADER,
                leader_epoch=_last_epoch(topic.partitions.get(index)),
            ).encode(),
        )
        for index in range(count)
    ]
    while len(states) > TRANSACTION_OPERATIONS_MAX - 3:
        await store.transact([], states[:100])
        del states[:100]
    chosen = settings | (_COMPACTED if topic.is_internal else {})
    intent = TopicIntent(topic.name, topic.topic_id, tuple((node_id,) for _ in range(count)))
    guards: list[Guard] = [Guard(key, 0)]
    marks = [
        Put(key, intent.encode()),
        Put(keys.config(ConfigResource("topic", topic.name)), Config(chosen).encode()),
        Put(keys.ready(topic.topic_id), Ready(count).encode()),
    ]
    if isinstance(await store.transact(guards, [*states, *marks]), Rejected):
        raise CommandError(f"another process has just created topic '{topic.name}'", "Run the command again.")


def _last_epoch(partition: AdoptablePartition | None) -> int:
    from ottla.storage.checkpoints import parse_epochs
    from ottla.storage.names import LEADER_EPOCHS

    if partition is None:
        return 0
    path = Path(partition.directory, LEADER_EPOCHS)
    try:
        entries = parse_epochs(path.read_bytes())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from error
    return max((entry.epoch for entry in entries), default=0)


def _kafka_id(topic: AdoptableTopic) -> str:
    from ottla.uuids import uuid_text

    return uuid_text(topic.topic_id)
