"""Lists a log directory's content when a broker starts: partitions, and directories that were renamed for deletion or
for a move.

A partition's directory belongs to the topic id in its `partition.metadata`. A directory without a topic id stays as it
is, and is listed if it has records. No log is opened here, and nothing is changed. Source: Kafka's LogManager.loadLogs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from ottla.storage import names

from .disk import Disk
from .identity import read_topic_id

logger = logging.getLogger(__name__)

_KRAFT_TOPIC = "__cluster_metadata"


class FoundLog(NamedTuple):
    """A partition's directory before its log is opened."""

    directory: str
    topic: str
    partition: int
    topic_id: UUID


class InterruptedMove(NamedTuple):
    """A move between log directories that a stop interrupted: its incomplete copy is in log directory `to`. Topic id
    and partition are None where they can't be read."""

    topic_id: UUID | None
    partition: int | None
    to: str


@dataclass(slots=True)
class Survey:
    """The content of a log directory: `logs` has the partitions to be opened; `unclaimed` has directories with records
    but without a topic id, by (topic, partition); `doomed` has directories to be removed."""

    logs: list[FoundLog] = field(default_factory=list)
    unclaimed: dict[tuple[str, int], str] = field(default_factory=dict)
    interrupted_moves: list[InterruptedMove] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)


def survey(disk: Disk, path: str) -> Survey:
    """Lists the content of the log directory `path`. Raises OSError."""
    result = Survey()
    for entry in disk.list(path):
        directory = f"{path}/{entry.name}"
        if not entry.is_directory:
            continue
        if entry.name.endswith(names.DELETE_DIRECTORY):
            result.doomed.append(directory)
        elif entry.name.endswith(names.STRAY_DIRECTORY):
            logger.warning("%s was set aside earlier; it is left alone", directory)
        elif entry.name.endswith(names.FUTURE_DIRECTORY):
            logger.info("%s is the copy of an interrupted move; the move begins anew", directory)
            partition = names.renamed_partition_index(entry.name)
            result.interrupted_moves.append(InterruptedMove(_topic_id(disk, directory), partition, path))
            result.doomed.append(directory)
        elif (parsed := names.parse_partition_name(entry.name)) is not None and parsed[0] != _KRAFT_TOPIC:
            topic_id = _topic_id(disk, directory)
            if topic_id is not None:
                result.logs.append(FoundLog(directory, *parsed, topic_id))
            elif any(file.name.endswith(names.LOG) and file.size for file in disk.list(directory)):
                result.unclaimed[parsed] = directory
    return result


def _topic_id(disk: Disk, directory: str) -> UUID | None:
    try:
        topic_id = read_topic_id(disk, directory)
    except ValueError as error:
        logger.error("%s is left alone: %s", directory, error)
        return None
    if topic_id is None:
        logger.error("%s is left alone: it has no %s, so its topic isn't known", directory, names.PARTITION_METADATA)
    return topic_id
