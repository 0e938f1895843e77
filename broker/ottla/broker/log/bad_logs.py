"""Logs that can't be used although their log directory can, and what follows for its checkpoints and its marker.

There are three kinds: a log that couldn't be opened, one that holds records and doesn't say of which topic id, and one
that turned out to be damaged after it was opened.

Rules: what the checkpoints say about a log that couldn't be opened stays in them until that log is opened, or isn't
there any more. A log directory isn't marked as cleanly stopped where a log of it was to be recovered and couldn't be
(Kafka's KAFKA-15375), or where one was found to be damaged, which isn't closed then.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import chain
from uuid import UUID

from . import names
from .checkpoints import encode_uuid
from .home import Home
from .log import Log
from .offset_files import OffsetFiles
from .survey import FoundLog


class BadLogs:
    """`unclaimed`: the directories of those that don't say of which topic id they are, by topic and partition.
    `damaged`: those that were open, by topic id and partition."""

    def __init__(self, offset_files: OffsetFiles) -> None:
        self.unclaimed: dict[tuple[str, int], str] = {}
        self.damaged: dict[tuple[UUID, int], Log] = {}
        self._unopened: dict[str, tuple[Home, FoundLog]] = {}  # by directory
        self._offset_files = offset_files

    def not_opened(self, home: Home, found: FoundLog) -> None:
        """A log of that log directory couldn't be opened."""
        self._unopened[found.directory] = home, found
        self._offset_files.keep(home.path, (found.topic, found.partition))

    def unopened(self, topic_id: UUID, index: int) -> list[tuple[Home, FoundLog]]:
        """What couldn't be opened of that partition, with its log directory."""
        found = self._unopened.values()
        return [(home, log) for home, log in found if (log.topic_id, log.partition) == (topic_id, index)]

    def known(self) -> Iterator[tuple[tuple[UUID, int], str, int]]:
        """All that couldn't be opened or are damaged, by topic id and partition, with the topic and the partition."""
        for _, found in self._unopened.values():
            yield (found.topic_id, found.partition), found.topic, found.partition
        for key, log in self.damaged.items():
            yield key, log.topic, log.index

    def opened_or_gone(self, directory: str) -> None:
        """The log in `directory`, if it couldn't be opened before, is open now, or isn't there any more."""
        if (unopened := self._unopened.pop(directory, None)) is not None:
            home, found = unopened
            self._offset_files.forget(home.path, (found.topic, found.partition))

    def claim_refused(self, topic: str, index: int, topic_id: UUID) -> OSError:
        """Why a partition isn't served: a directory of its name may hold its records; an empty log would hide them."""
        path = self.unclaimed[topic, index]
        return OSError(
            errno.EINVAL,
            f"{path} may hold its records, but {names.PARTITION_METADATA} there can't be read: write "
            f'"version: 0" and "topic_id: {encode_uuid(topic_id)}" into it, or move it away, and start again',
        )

    def topic_deleted(self, topic_id: UUID) -> None:
        """What couldn't be opened of a topic isn't wanted any more."""
        for directory in [path for path, (_, found) in self._unopened.items() if found.topic_id == topic_id]:
            self.opened_or_gone(directory)

    def forbid_marker(self, home: Home) -> bool:
        """Whether that log directory may not be marked as cleanly stopped."""
        if any(log.directory.rpartition("/")[0] == home.path for log in self.damaged.values()):
            return True
        inside = f"{home.path}/"
        unrecovered = chain(self._unopened, self.unclaimed.values())
        return not home.clean and any(directory.startswith(inside) for directory in unrecovered)
