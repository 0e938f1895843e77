"""The log directories of a broker (a first, thin version: the LOG owner replaces it whole)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from uuid import UUID

from . import names
from .config import LogConfig
from .deletion import Deletions
from .disk import RealDisk
from .log import Log, LogSurroundings
from .recovery import open_log
from .segment import OpenFiles


class LogDirectories:
    def __init__(self, paths: Sequence[str], now_ms: Callable[[], int]) -> None:
        self.paths = list(paths)
        self.disk = RealDisk()
        self.surroundings = LogSurroundings(
            self.disk, Deletions(), OpenFiles(), now_ms, lambda log: None, lambda error: None
        )
        self.logs: dict[tuple[UUID, int], Log] = {}
        self._found: dict[tuple[UUID, int], str] = {}
        self.cluster_id: str | None = None
        for path in self.paths:
            os.makedirs(path, exist_ok=True)
            meta = os.path.join(path, names.META_PROPERTIES)
            if os.path.exists(meta):
                for line in open(meta):
                    if line.startswith("cluster.id="):
                        self.cluster_id = line.strip().partition("=")[2]

    def open(self, cluster_id: str, node_id: int, config_of: Callable[[str], LogConfig]) -> None:
        for path in self.paths:
            with open(os.path.join(path, names.META_PROPERTIES), "w") as file:
                file.write(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n")
            for entry in os.listdir(path):
                parsed = names.parse_partition_name(entry)
                meta = os.path.join(path, entry, names.PARTITION_METADATA)
                if parsed and os.path.exists(meta):
                    topic_id = UUID(open(meta).read().strip().rpartition("topic_id: ")[2])
                    log = open_log(
                        self.surroundings, os.path.join(path, entry), *parsed, config_of(parsed[0]), clean=False
                    ).log
                    self.logs[topic_id, parsed[1]] = log

    def open_or_create(self, topic: str, index: int, topic_id: UUID, config: LogConfig) -> Log:
        log = self.logs.get((topic_id, index))
        if log is None:
            directory = os.path.join(self.paths[0], names.partition_name(topic, index))
            os.makedirs(directory)
            with open(os.path.join(directory, names.PARTITION_METADATA), "w") as file:
                file.write(f"version: 0\ntopic_id: {topic_id}\n")
            log = open_log(self.surroundings, directory, topic, index, config, clean=True).log
            self.logs[topic_id, index] = log
        return log

    def delete_topic(self, topic_id: UUID) -> None:
        for key in [key for key in self.logs if key[0] == topic_id]:
            shutil.rmtree(self.logs.pop(key).directory)

    def close(self) -> None:
        for log in self.logs.values():
            log.close()
