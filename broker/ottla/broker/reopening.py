"""Opens or creates the logs that failed on a full disk, once their log directory has room again.

Logs that couldn't be created are created on the event loop. Logs on the disk that couldn't be opened for lack of room
are recovered in a thread; after each attempt `Replicas` is called.
"""

from __future__ import annotations

from uuid import UUID

from ottla.broker.log.directories import LogDirectories
from ottla.broker.replicas import Replicas
from ottla.broker.restore_reports import RestoreReports
from ottla.broker.tasks import Tasks


class Reopening:
    """Opens one broker's logs after a lack of room."""

    def __init__(self, logs: LogDirectories, replicas: Replicas, reports: RestoreReports, tasks: Tasks) -> None:
        self._logs = logs
        self._replicas = replicas
        self._reports = reports
        self._tasks = tasks

    def room_again(self) -> None:
        """Called when a log directory that was full has room again: begins to open and create the logs that lacked
        it."""
        self._replicas.open_again()
        self._tasks.spawn(self._open_again(), "opening of logs for which there is room again")

    async def _open_again(self) -> None:
        await self._logs.open_again(lambda topic: self._replicas.rules_of(topic).log, self._tried_again)

    def _tried_again(self, topic_id: UUID, index: int) -> None:
        self._replicas.log_tried_again(topic_id, index)
        self._reports.logs_opened()
