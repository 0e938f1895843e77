"""Writes adopted topics to a metadata store, and gives the log directories to the store's cluster.

Each write can be repeated, so an adoption that was interrupted is completed by another run of the command. A topic
becomes visible with the last of its writes, and the directories are given to the cluster when all topics are written.

The other run may name more directories. Then the topics of the first run are written again, with all replicas that are
known now. Topics are never written again in a way that would take a replica away, or after a leader was elected: such a
run is refused before it changes anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ottla.broker.log.adopt import claim
from ottla.broker.log.disk import RealDisk
from ottla.cli.adoption import AdoptedTopic, Adoption
from ottla.cli.errors import CommandError
from ottla.metadata import keys
from ottla.metadata.cluster import find_cluster, join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.features import TRANSACTIONS
from ottla.metadata.identities import ConfigResource
from ottla.metadata.model.brokers import NO_EPOCH
from ottla.metadata.model.cluster import Cluster, ProducerIds
from ottla.metadata.model.partitions import NO_LEADER, Partition
from ottla.metadata.model.settings import Config, Feature
from ottla.metadata.model.topics import Ready, TopicIntent
from ottla.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    Committed,
    Guard,
    Put,
    Rejected,
    Store,
    StoreUnavailable,
    UnknownOutcome,
    Write,
)

_PRODUCER_IDS_SKIPPED = 1 << 40


def write(adoption: Adoption, path: Path, settings: dict[str, str]) -> int:
    """Adopts the topics, with `settings` that a user has chosen for them, into the metadata store at `path`. Returns
    the finalised level of `transaction.version`. Raises CommandError."""
    return asyncio.run(_write(adoption, path, settings))


async def _write(adoption: Adoption, path: Path, settings: dict[str, str]) -> int:
    try:
        store = await EmbeddedStore.open(path)
        try:
            cluster = await join_cluster(store, None, adoption.directories[0].content.cluster_id)
            revisions = [await _wanting(store, adoption, topic) for topic in adoption.topics]
            await _await_reports(store, adoption.brokers)
            await _skip_producer_ids(store, adoption.greatest_producer_id)
            for topic, revision in zip(adoption.topics, revisions, strict=True):
                if revision is not None:
                    await _create(store, adoption, topic, settings, revision)
            level = await _transaction_level(store)
        finally:
            await store.close()
        # This step is the last one, so that an interrupted adoption can be repeated.
        for broker, content in adoption.directories:
            claim(RealDisk(), content.path, cluster.id, broker)
    except (StoreUnavailable, UnknownOutcome) as error:
        raise CommandError(
            f"can't write the metadata store {path}: {error}", "Run the command again: it continues where it stopped."
        ) from error
    except OSError as error:
        raise CommandError(
            f"can't write meta.properties in the log directories: {(error.strerror or str(error)).lower()}"
        ) from error
    return level


async def _await_reports(store: Store, brokers: list[int]) -> None:
    """Makes the elections of the adopted partitions wait for the reports of all these brokers."""
    while True:
        cluster = await find_cluster(store)
        assert cluster is not None
        awaited = tuple(sorted({*cluster.awaited, *brokers}))
        if awaited == cluster.awaited or await _replaced(store, replace(cluster, awaited=awaited)):
            return


async def _replaced(store: Store, cluster: Cluster) -> bool:
    guard = Guard(keys.cluster.key, cluster.revision)
    return isinstance(await store.transact([guard], [Put(keys.cluster.key, cluster.encode())]), Committed)


async def _skip_producer_ids(store: Store, greatest: int) -> None:
    """Makes new producer ids begin above every producer id that Kafka's controller can have handed out.

    The logs don't name all of these ids: a producer may have written nothing, or its records may have expired. So more
    producer ids are skipped than any cluster has handed out.
    """
    begin = max(greatest, 0) + _PRODUCER_IDS_SKIPPED
    while True:
        entries = {entry.key: entry for entry in (await store.read(keys.producer_ids.key)).entries}
        entry = entries.get(keys.producer_ids.key)
        present = ProducerIds(0) if entry is None else ProducerIds.decode(entry)
        if present.next_id >= begin:
            return
        wanted = Put(keys.producer_ids.key, ProducerIds(begin).encode())
        if isinstance(await store.transact([Guard(keys.producer_ids.key, present.revision)], [wanted]), Committed):
            return


async def _transaction_level(store: Store) -> int:
    key = keys.feature(TRANSACTIONS)
    found = next((entry for entry in (await store.read(key)).entries if entry.key == key), None)
    return 0 if found is None else Feature.decode(found).level


async def _wanting(store: Store, adoption: Adoption, topic: AdoptedTopic) -> int | None:
    """The revision of the topic's intent in the store if the topic has to be written, 0 where there is no intent yet.
    None if an earlier run has written the topic with the same replicas.

    Raises CommandError if the store has another topic with this name, or a state of the topic that must stay.
    """
    key = keys.topic(topic.name)
    present = {entry.key: entry for entry in (await store.read(key)).entries}.get(key)
    if present is None:
        return 0
    if TopicIntent.decode(present).id != topic.topic_id:
        raise CommandError(
            f"the cluster has another topic called '{topic.name}'",
            "Delete that topic first, or use another metadata store.",
        )
    prefix = keys.partition(topic.topic_id, 0).removesuffix("0")
    states = [Partition.decode(entry) for entry in (await store.read(prefix)).entries]
    wanted = {index: partition_state(adoption, topic, index) for index in range(topic.count)}
    if {state.index: state.replicas for state in states} == {each.index: each.replicas for each in wanted.values()}:
        return None
    for state in states:
        if not _may_be_replaced(state, wanted.get(state.index), adoption.brokers):
            raise CommandError(
                f"{topic.name}-{state.index} is adopted already, with replicas on"
                f" {'broker' if len(state.replicas) == 1 else 'brokers'}"
                f" {', '.join(map(str, sorted(state.replicas)))}, and the directories that are named now have others",
                "If no broker of Ottla has run since, name the directories of the earlier adoption, too. Otherwise"
                " don't adopt further brokers: start new ones with empty directories, and move replicas to them by"
                " `ottla reassign`.",
            )
    return present.mod_revision


def _may_be_replaced(state: Partition, wanted: Partition | None, brokers: list[int]) -> bool:
    """Whether the state that an earlier run gave to a partition may be replaced by the `wanted` one, without the loss
    of a replica that has records. None of the brokers whose directories are named has run, or the adoption would have
    been refused for that."""
    if wanted is None or state.leader != NO_LEADER:
        return False
    if state.restored:
        return wanted.restored and set(state.replicas) <= set(wanted.replicas)
    return set(state.replicas) <= set(brokers)  # the partition was in no directory, and has no records


async def _create(
    store: Store, adoption: Adoption, topic: AdoptedTopic, settings: dict[str, str], revision: int
) -> None:
    """Writes an adopted topic to the metadata store, whose intent for it has this `revision`. The last transaction
    writes the ready mark, which makes the topic visible to clients."""
    key = keys.topic(topic.name)
    partitions = [partition_state(adoption, topic, index) for index in range(topic.count)]
    states: list[Write] = [Put(keys.partition(state.topic_id, state.index), state.encode()) for state in partitions]
    while len(states) > TRANSACTION_OPERATIONS_MAX - 3:
        await store.transact([], states[:100])
        del states[:100]
    intent = TopicIntent(topic.name, topic.topic_id, tuple(state.replicas for state in partitions))
    guards: list[Guard] = [Guard(key, revision)]
    marks = [
        Put(key, intent.encode()),
        Put(keys.config(ConfigResource("topic", topic.name)), Config(topic.settings(settings)).encode()),
        Put(keys.ready(topic.topic_id), Ready(topic.count).encode()),
    ]
    if isinstance(await store.transact(guards, [*states, *marks]), Rejected):
        raise CommandError(f"another process has just written topic '{topic.name}'", "Run the command again.")


def partition_state(adoption: Adoption, topic: AdoptedTopic, index: int) -> Partition:
    """The state with which an adopted partition begins.

    The directories don't say which replicas were in sync. So the state counts as restored: the replica with the most
    complete log is elected when all brokers have reported (`controller/recovery.py`), in an epoch far above Kafka's.
    A partition that is in no directory begins empty on one broker. The preferred leaders are spread over the brokers.
    """
    found = topic.partitions.get(index)
    holders = sorted(found) if found else adoption.brokers
    shift = index % len(holders)
    replicas = (*holders[shift:], *holders[:shift])
    if not found:
        replicas = replicas[:1]
    return Partition(
        topic.topic_id,
        index,
        replicas=replicas,
        isr=replicas,
        isr_epochs=(NO_EPOCH,) * len(replicas),
        leader=NO_LEADER,
        leader_epoch=adoption.first_epoch(topic, index),
        restored=bool(found),
    )
