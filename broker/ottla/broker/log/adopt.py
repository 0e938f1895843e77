"""Takes over a log directory that Apache Kafka 4 wrote: its topics with their ids, and its logs unchanged.

`survey` reads the directory, and `claim` writes this cluster's identity into it; in between, the caller creates the
topics with the ids that `survey` found. No segment is changed, because the formats are the same. Kafka's own metadata
log isn't read, so topic settings must be set again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from ottla.storage import names
from ottla.storage.checkpoints import Offsets, parse_epochs, parse_offsets

from .disk import Disk
from .identity import read_properties, read_topic_id, write_properties
from .producer_traces import ProducerTraces, producer_traces

_KRAFT_TOPIC = "__cluster_metadata"
_KAFKA_PROPERTIES = "meta.properties.kafka"


@dataclass(frozen=True, slots=True)
class AdoptablePartition:
    """One partition's directory. `high_watermark` is the last checkpointed one, −1 without any. `last_epoch` is the
    last leader epoch of the log, 0 without any."""

    index: int
    directory: str
    size_bytes: int
    high_watermark: int
    last_epoch: int
    producers: ProducerTraces


@dataclass(slots=True)
class AdoptableTopic:
    """A topic by its id, with its partitions in the log directory, by index."""

    name: str
    topic_id: UUID
    partitions: dict[int, AdoptablePartition] = field(default_factory=dict)


@dataclass(slots=True)
class Adoptable:
    """The content of a log directory. `problems` are sentences about data that can't be taken over, and why."""

    path: str
    cluster_id: str | None
    node_id: int | None
    stopped_cleanly: bool
    topics: list[AdoptableTopic] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def survey(disk: Disk, path: str) -> Adoptable:
    """Reads which topics and partitions can be taken over; changes nothing. Raises OSError; BlockingIOError while a
    broker uses the directory."""
    lock = f"{path}/{names.LOCK}"
    held = disk.lock(lock) if disk.exists(lock) else None
    properties = read_properties(disk, path)
    node_id = properties.get("node.id", properties.get("broker.id"))
    found = Adoptable(
        path,
        properties.get("cluster.id"),
        int(node_id) if node_id is not None else None,
        disk.exists(f"{path}/{names.CLEAN_SHUTDOWN}"),
    )
    if disk.exists(f"{path}/{names.LINEAGE}"):
        found.problems.append(f"{path} is Ottla's already: an Ottla broker has run on it, and starts on it again")
    if properties.get("version") != "1":
        found.problems.append(f"{path}/{names.META_PROPERTIES} is missing, or not of Kafka 4")
    high_watermarks = _offsets(disk, found, names.HIGH_WATERMARKS)
    topics: dict[UUID, AdoptableTopic] = {}
    for entry in sorted(disk.list(path)):
        parsed = names.parse_partition_name(entry.name)
        if not entry.is_directory or parsed is None or parsed[0] == _KRAFT_TOPIC:
            continue
        directory = f"{path}/{entry.name}"
        topic, index = parsed
        try:
            topic_id = read_topic_id(disk, directory)
        except ValueError as error:
            found.problems.append(str(error))
            continue
        if topic_id is None:
            found.problems.append(f"{directory} has no {names.PARTITION_METADATA}")
            continue
        size = sum(file.size for file in disk.list(directory) if file.name.endswith(names.LOG))
        partition = AdoptablePartition(
            index,
            directory,
            size,
            high_watermarks.get(parsed, -1),
            _last_epoch(disk, found, directory),
            producer_traces(disk, directory),
        )
        topics.setdefault(topic_id, AdoptableTopic(topic, topic_id)).partitions[index] = partition
    found.topics = sorted(topics.values(), key=lambda topic: topic.name)
    del held
    return found


def _offsets(disk: Disk, found: Adoptable, name: str) -> Offsets:
    """The offsets of a checkpoint of the directory; empty where the file is missing. A damaged checkpoint is noted as a
    problem."""
    path = f"{found.path}/{name}"
    try:
        return parse_offsets(disk.read(path)) if disk.exists(path) else {}
    except ValueError as error:
        found.problems.append(f"{path}: {error}")
        return {}


def _last_epoch(disk: Disk, found: Adoptable, directory: str) -> int:
    """The last leader epoch of a partition's log; 0 where the checkpoint is missing. A damaged checkpoint is noted as a
    problem."""
    path = f"{directory}/{names.LEADER_EPOCHS}"
    try:
        entries = parse_epochs(disk.read(path)) if disk.exists(path) else []
    except ValueError as error:
        found.problems.append(f"{path}: {error}")
        return 0
    return max((entry.epoch for entry in entries), default=0)


def claim(disk: Disk, path: str, cluster_id: str, node_id: int) -> None:
    """Makes the directory belong to `node_id` of `cluster_id`, and keeps a copy of Kafka's `meta.properties` beside it.

    A second call changes nothing. Raises OSError; BlockingIOError while a broker uses the directory.
    """
    held = disk.lock(f"{path}/{names.LOCK}")
    properties = read_properties(disk, path)
    wanted = {"cluster.id": cluster_id, "node.id": str(node_id)}
    if any(properties.get(name) != value for name, value in wanted.items()):
        kept = f"{path}/{_KAFKA_PROPERTIES}"
        if properties and not disk.exists(kept):
            disk.write_atomically(kept, disk.read(f"{path}/{names.META_PROPERTIES}"))
        write_properties(disk, path, {**properties, "version": "1", **wanted})
    del held
