"""The logs that a broker holds: online logs, and logs that the broker can't use, each with the reason.

Owned by the event loop, except while the log directories are opened and closed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from uuid import UUID

from .bad_logs import BadLogs
from .log import Log
from .recovery import BadLog
from .segment import DamagedSegment
from .without_room import WithoutRoom

logger = logging.getLogger(__name__)

LogKey = tuple[UUID, int]  # topic id, partition


class HeldLogs:
    """`online` has the logs in use by their keys, `lost` the errors of logs that can't be used for now. `bad` has lost
    logs whose log directory works, `without_room` logs that are opened once the disk has room."""

    def __init__(self, bad: BadLogs) -> None:
        self.online: dict[LogKey, Log] = {}
        self.lost: dict[LogKey, OSError] = {}
        self.bad = bad
        self.without_room = WithoutRoom()

    def in_directory(self, path: str) -> list[Log]:
        """The logs that the checkpoints of a log directory list. Damaged logs are among them, so that their lines stay
        for the next start."""
        start = f"{path}/"
        held = chain(self.online.values(), self.bad.damaged.values())
        return [log for log in held if log.directory.startswith(start)]

    def expect(self, wanted: Iterable[LogKey], failed: Mapping[str, OSError]) -> None:
        """Notes as lost each of `wanted`, the broker's replicas, that isn't online while a log directory has failed:
        the log may be in that directory."""
        for path, error in failed.items():
            for key in wanted:
                if key not in self.online and self.lost.setdefault(key, error) is error:
                    logger.warning(
                        "partition %d of topic %s has no log here: it may be in log directory %s, which has failed",
                        key[1],
                        key[0],
                        path,
                    )

    def take_offline(self, failed: Mapping[str, OSError]) -> list[Log]:
        """Takes the logs of `failed` log directories offline, and returns them."""
        offline = {key: log for key, log in self.online.items() if directory_of(log) in failed}
        damaged = self.bad.damaged
        self.bad.damaged = {key: log for key, log in damaged.items() if directory_of(log) not in failed}
        for key, log in offline.items():
            del self.online[key]
            self.lost[key] = failed[directory_of(log)]
        return list(offline.values())

    def take_damaged_offline(self, log: Log, error: DamagedSegment) -> bool:
        """Takes only this log offline, because its files are damaged. Returns whether it was online."""
        keys = [key for key, held in self.online.items() if held is log]
        for key in keys:
            logger.error("%r is damaged: %s; its partition is offline here, but no other partition", log, error)
            self.bad.damaged[key] = self.online.pop(key)
            self.lost[key] = error
        return bool(keys)

    def damaged(self) -> Iterator[tuple[str, int, OSError]]:
        """(topic, partition, error) of the damaged logs, which are offline although their log directories work."""
        known = ((topic, index, self.lost.get(key)) for key, topic, index in self.bad.known())
        return ((topic, index, error) for topic, index, error in known if isinstance(error, (BadLog, DamagedSegment)))


def directory_of(log: Log) -> str:
    """The path of a log's log directory."""
    return log.directory.rpartition("/")[0]
