"""The moves of a broker's replicas between its log directories: checks which moves may begin, and resumes moves after a
start.

`log/moves.py` copies the logs. Source: Kafka's ReplicaManager.alterReplicaLogDirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.future import FutureLog
from ottla.broker.log.moves import Moves
from ottla.broker.partitions import PartitionTable
from ottla.broker.tasks import Tasks
from ottla.metadata.image import Image
from ottla.protocol.errors import ErrorCode, KafkaError


class DirectoryMoves:
    """The moves of one broker. `bytes_per_second` returns the limit of the rate at which each move copies."""

    def __init__(
        self,
        logs: LogDirectories,
        partitions: PartitionTable,
        image: Callable[[], Image],
        bytes_per_second: Callable[[], int],
        tasks: Tasks,
    ) -> None:
        self._logs = logs
        self._partitions = partitions
        self._image = image
        self._tasks = tasks
        self._moves = Moves(logs, bytes_per_second)

    @property
    def futures(self) -> Mapping[tuple[UUID, int], FutureLog]:
        """The copies under way, by topic id and partition."""
        return self._moves.futures

    def begin(self, topic: str, index: int, directory: str) -> None:
        """Begins to move a replica to another log directory. Raises KafkaError where that directory or the replica
        can't be used."""
        logs = self._logs
        partition = self._partitions.get(topic, index)
        target = directory.rstrip("/") or "/"
        if target not in logs.paths:
            raise KafkaError(ErrorCode.log_dir_not_found)
        if target in logs.failed:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if target in logs.cordoned and not (partition is not None and logs.directory_of(partition.log) == target):
            raise KafkaError(ErrorCode.invalid_replica_assignment)
        if partition is None:
            known = self._image().topics.get(topic) is not None
            raise KafkaError(ErrorCode.replica_not_available if known else ErrorCode.unknown_topic_or_partition)
        if partition.offline:
            raise KafkaError(ErrorCode.kafka_storage_error)
        self._begin((partition.topic_id, index), target)

    def resume(self) -> None:
        """Begins anew the moves that the last stop interrupted, once the logs are open."""
        for topic_id, index, target in self._logs.interrupted_moves:
            if topic_id is not None and index is not None and (topic_id, index) in self._logs.logs:
                self._begin((topic_id, index), target)

    def stop(self) -> None:
        """Gives up all moves; the next start begins them anew."""
        self._moves.stop()

    def _begin(self, key: tuple[UUID, int], target: str) -> None:
        if self._moves.wish(key, target):
            self._tasks.spawn(self._moves.run(key), f"move of {self._logs.logs[key]!r} to {target}")
