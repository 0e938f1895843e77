"""Logs that can't be used although their log directory can, and their effect on the directory's checkpoints and marker.

There are three kinds: a log that couldn't be opened, a log with records whose topic id can't be read, and a log that
turned out to be damaged after it was opened.

Rules: the checkpoints keep their lines about a log that couldn't be opened until that log is opened or removed. A log
directory isn't marked as cleanly stopped if a log in it needed recovery and couldn't be recovered (KAFKA-15375), or if
a log was found to be damaged, because a damaged log isn't closed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import chain
from uuid import UUID

from ottla.storage import names
from ottla.uuids import uuid_text

from .home import Home
from .log import Log
from .offset_files import OffsetFiles
from .survey import FoundLog


class BadLogs:
    """`unclaimed` are the directories whose topic id can't be read, by topic and partition. `damaged` are logs that
    turned out to be damaged while they were open, by topic id and partition."""

    def __init__(self, offset_files: OffsetFiles) -> None:
        self.unclaimed: dict[tuple[str, int], str] = {}
        self.damaged: dict[tuple[UUID, int], Log] = {}
        self._unopened: dict[str, tuple[Home, FoundLog]] = {}  # by directory
        self._offset_files = offset_files

    def not_opened(self, home: Home, found: FoundLog) -> None:
        """Notes that a log in log directory `home` couldn't be opened."""
        self._unopened[found.directory] = home, found
        self._offset_files.keep(home.path, (found.topic, found.partition))

    def unopened(self, topic_id: UUID, index: int) -> list[tuple[Home, FoundLog]]:
        """The logs of that partition that couldn't be opened, each with its log directory."""
        found = self._unopened.values()
        return [(home, log) for home, log in found if (log.topic_id, log.partition) == (topic_id, index)]

    def known(self) -> Iterator[tuple[tuple[UUID, int], str, int]]:
        """All logs that couldn't be opened or are damaged: ((topic id, partition), topic, partition) of each."""
        for _, found in self._unopened.values():
            yield (found.topic_id, found.partition), found.topic, found.partition
        for key, log in self.damaged.items():
            yield key, log.topic, log.index

    def opened_or_gone(self, directory: str) -> None:
        """Notes that the log in `directory` is open now or removed; it may be one that couldn't be opened before."""
        if (unopened := self._unopened.pop(directory, None)) is not None:
            home, found = unopened
            self._offset_files.forget(home.path, (found.topic, found.partition))

    def claim_refused(self, topic: str, index: int, topic_id: UUID) -> OSError:
        """The error for a partition whose records may be in a directory of its name with an unreadable topic id. The
        partition isn't served, because a new empty log would hide these records."""
        path = self.unclaimed[topic, index]
        return OSError(
            errno.EINVAL,
            f"{path} may hold its records, but {names.PARTITION_METADATA} there can't be read: write "
            f'"version: 0" and "topic_id: {uuid_text(topic_id)}" into it, or move it away, and start again',
        )

    def topic_deleted(self, topic_id: UUID) -> None:
        """Drops the logs of a deleted topic that couldn't be opened."""
        for directory in [path for path, (_, found) in self._unopened.items() if found.topic_id == topic_id]:
            self.opened_or_gone(directory)

    def forbid_marker(self, home: Home) -> bool:
        """Whether the log directory `home` may not be marked as cleanly stopped."""
        if any(log.directory.rpartition("/")[0] == home.path for log in self.damaged.values()):
            return True
        inside = f"{home.path}/"
        unrecovered = chain(self._unopened, self.unclaimed.values())
        return not home.clean and any(directory.startswith(inside) for directory in unrecovered)
