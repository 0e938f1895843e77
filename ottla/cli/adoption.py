"""What `ottla adopt` takes over: the topics of all given log directories, with the replicas of each partition.

The directories may be of several brokers of one Kafka cluster. A partition has a replica on each broker in whose
directories it was found. `adoption_of` raises an error that names everything that stands against the adoption. Reads
the records of `__transaction_state` and `__consumer_offsets`, and of no other topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.internal_topics import internal_topic
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.cli.adopted_ids import UNFINISHED, UnreadableId, groups, misplaced, probable_count, transactional_ids
from ottla.cli.errors import CommandError, raise_all
from ottla.settings.config import BrokerConfig
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.broker.log.adopt import Adoptable, AdoptablePartition
    from ottla.broker.transaction.metadata import Transaction

RETENTION_OFF = {"retention.ms": "-1", "retention.bytes": "-1"}
_OF_OTHER_INTERNAL_TOPICS = {"cleanup.policy": "compact", "compression.type": "producer"}
_NAMED_MAX = 10


class Directory(NamedTuple):
    """A log directory, and the broker to which it will belong."""

    broker: int
    content: Adoptable


@dataclass(slots=True)
class AdoptedTopic:
    """A topic by its id. `partitions` has the replicas of each partition: index → broker id → the replica's
    directory."""

    name: str
    topic_id: UUID
    partitions: dict[int, dict[int, AdoptablePartition]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of partitions."""
        return max(self.partitions) + 1

    @property
    def missing(self) -> list[int]:
        """The indexes below the greatest one whose partitions aren't in any directory."""
        return [index for index in range(self.count) if index not in self.partitions]

    @property
    def size_bytes(self) -> int:
        """The bytes of all replicas' log files."""
        return sum(replica.size_bytes for replicas in self.partitions.values() for replica in replicas.values())

    def settings(self, chosen: dict[str, str]) -> dict[str, str]:
        """The topic's settings, where a user has chosen some. The internal topics have those with which a broker makes
        them, because the state in them would be lost under others."""
        if self.name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            return {**chosen, **internal_topic(self.name, BrokerConfig.from_sources("node.id=0")).configs}
        if self.name.startswith("__"):
            return chosen | _OF_OTHER_INTERNAL_TOPICS
        return RETENTION_OFF | chosen


@dataclass(slots=True)
class Adoption:
    """All topics of the directories, by name, and the transactional ids with their states."""

    directories: Sequence[Directory]
    topics: list[AdoptedTopic] = field(default_factory=list)
    ids: dict[str, Transaction] = field(default_factory=dict)

    @property
    def brokers(self) -> list[int]:
        """The ids of the brokers that get the directories, in ascending order."""
        return sorted({each.broker for each in self.directories})

    @property
    def greatest_producer_id(self) -> int:
        """The greatest producer id that the logs name, −1 where there is none."""
        of_ids = (max(each.producer_id, each.next_producer_id) for each in self.ids.values())
        return max((*of_ids, *(replica.producers.producer_id for replica in self._replicas())), default=-1)

    def first_epoch(self, topic: AdoptedTopic, index: int) -> int:
        """The leader epoch with which the state of a partition begins.

        It is the last leader epoch that a replica's checkpoint has. For `__transaction_state` it is also at least the
        greatest epoch of a coordinator that wrote a marker into any log: leaders refuse the markers of a coordinator
        whose epoch is lower than that of the marker before.
        """
        replicas = topic.partitions.get(index, {}).values()
        epochs = [replica.last_epoch for replica in replicas]
        if topic.name == TRANSACTIONS_TOPIC:
            epochs += (replica.producers.coordinator_epoch for replica in self._replicas())
        return max((0, *epochs))

    def hanging(self) -> list[str]:
        """The partitions that have an open transaction of which no transactional id knows, as words."""
        known = {
            (transaction.producer_id, *partition)
            for transaction in self.ids.values()
            if transaction.state in UNFINISHED
            for partition in transaction.partitions
        }
        return [
            f"{topic.name}-{index} (from offset {min(unknown)})"
            for topic in self.topics
            for index, replicas in sorted(topic.partitions.items())
            if (
                unknown := [
                    offset
                    for producer_id, offset in leading(replicas).producers.open_transactions.items()
                    if (producer_id, topic.name, index) not in known
                ]
            )
        ]

    def _replicas(self) -> Iterator[AdoptablePartition]:
        for topic in self.topics:
            for replicas in topic.partitions.values():
                yield from replicas.values()


def leading(replicas: Mapping[int, AdoptablePartition]) -> AdoptablePartition:
    """The replica that will be elected as the first leader: the one with the greatest (last epoch, end offset)."""
    return max(replicas.values(), key=lambda replica: (replica.last_epoch, replica.producers.end_offset))


def adoption_of(directories: Sequence[Directory], *, allow_missing: bool, allow_hanging: bool) -> Adoption:
    """What is to be adopted. Raises CommandError, with all reasons why it can't be.

    `allow_missing` admits partitions that are in no directory, `allow_hanging` open transactions of which no
    transactional id knows.
    """
    adoption = Adoption(directories)
    problems = [CommandError(problem) for each in directories for problem in each.content.problems]
    problems += _of_several_clusters(directories)
    problems += _collect(adoption)
    if not allow_missing:
        problems += [
            CommandError(
                f"topic '{topic.name}' lacks partitions {', '.join(map(str, topic.missing))}",
                "Name all log directories, or say --allow-missing.",
            )
            for topic in adoption.topics
            if topic.missing
        ]
    problems += _read_ids(adoption)
    problems += _check_groups(adoption)
    if not allow_hanging and (hanging := adoption.hanging()):
        more = f" and {counted(len(hanging) - _NAMED_MAX, 'more partition')}" if len(hanging) > _NAMED_MAX else ""
        problems.append(
            CommandError(
                f"transactions are open in {', '.join(hanging[:_NAMED_MAX])}{more}, and no transactional id in the"
                " directories knows of them",
                f"If {TRANSACTIONS_TOPIC} is in other directories, name these, too. Otherwise these transactions hang"
                " in Kafka as well: start Kafka again, abort them (`kafka-transactions.sh find-hanging` and `abort`),"
                " stop it cleanly and adopt then. Or say --expose-uncommitted, and abort them with `ottla transactions"
                " abort` after the start: until then consumers that read only what is committed get nothing from there"
                " on, and nothing from there on is compacted.",
            )
        )
    raise_all(problems)
    return adoption


def _of_several_clusters(directories: Sequence[Directory]) -> Iterator[CommandError]:
    clusters = {each.content.cluster_id for each in directories if each.content.cluster_id is not None}
    if len(clusters) > 1:
        yield CommandError(
            f"the directories belong to several clusters ({', '.join(sorted(clusters))})",
            "Adopt the directories of one cluster at a time, each cluster into a metadata store of its own.",
        )


def _collect(adoption: Adoption) -> Iterator[CommandError]:
    """Fills `adoption.topics`. Yields what contradicts itself: a partition twice on one broker, and names with several
    topic ids, which remain where a topic was deleted and created again while a replica was offline."""
    topics: dict[UUID, AdoptedTopic] = {}
    for broker, content in adoption.directories:
        for found in content.topics:
            topic = topics.setdefault(found.topic_id, AdoptedTopic(found.name, found.topic_id))
            for index, partition in found.partitions.items():
                replicas = topic.partitions.setdefault(index, {})
                if broker in replicas:
                    yield CommandError(
                        f"{replicas[broker].directory} and {partition.directory} are the same partition",
                        f"Broker {broker} can have one replica of it: leave out --node-id if the directories are of"
                        " several brokers, or move one of them away.",
                    )
                replicas[broker] = partition
    by_name: dict[str, list[AdoptedTopic]] = {}
    for topic in topics.values():
        by_name.setdefault(topic.name, []).append(topic)
    for name, namesakes in by_name.items():
        if len(namesakes) > 1:
            ids = ", ".join(str(topic.topic_id) for topic in namesakes)
            yield CommandError(f"topic {name} has several ids ({ids})", "Move the older directories away.")
    adoption.topics = sorted(topics.values(), key=lambda topic: topic.name)


def _read_ids(adoption: Adoption) -> Iterator[CommandError]:
    """Fills `adoption.ids`. Yields what keeps transactional ids from being adopted."""
    for topic in adoption.topics:
        if topic.name != TRANSACTIONS_TOPIC:
            continue
        placed = {}
        for index, replicas in topic.partitions.items():
            try:
                placed[index] = transactional_ids(leading(replicas).directory)
            except UnreadableId as error:
                yield _unreadable("the state of a transactional id", error)
        yield from _last_missing(topic, placed, "the transactional id")
        for ids in placed.values():
            adoption.ids |= ids


def _check_groups(adoption: Adoption) -> Iterator[CommandError]:
    """Yields what would make the committed offsets of groups unreachable. Kafka keeps the partition count of
    `__consumer_offsets` in its metadata log, so the groups' places prove the count. Without any group there is no
    committed offset to lose, and any count is right."""
    for topic in adoption.topics:
        if topic.name != OFFSETS_TOPIC:
            continue
        placed = {}
        for index, replicas in topic.partitions.items():
            try:
                placed[index] = groups(leading(replicas).directory)
            except UnreadableId as error:
                yield _unreadable("a committed offset or a group", error)
        yield from _last_missing(topic, placed, "the group")


def _unreadable(what: str, error: UnreadableId) -> CommandError:
    return CommandError(
        f"{what} can't be read: {error}", "If another replica of the partition is whole, move this directory away."
    )


def _last_missing(topic: AdoptedTopic, placed: Mapping[int, Collection[str]], noun: str) -> Iterator[CommandError]:
    """Yields an error if the ids or groups (`noun`) of the topic's partitions show that its last partitions are in no
    directory."""
    wrong = misplaced(placed, topic.count)
    if wrong is None:
        return
    index, name = wrong
    count = probable_count(placed, topic.count)
    if count is None:
        which = "the last partitions are missing"
    elif count == topic.count + 1:
        which = f"the last partition is missing, probably {topic.count}"
    else:
        which = f"the last partitions are missing, probably {topic.count} to {count - 1}"
    yield CommandError(
        f"{leading(topic.partitions[index]).directory} has {noun} '{name}', which belongs to another partition if"
        f" {topic.name} has {counted(topic.count, 'partition')}: {which}",
        "Name all log directories, also those of the cluster's other brokers.",
    )
