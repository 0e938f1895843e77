"""All log directories of one broker: their locks, and which of them have failed or are full.

A failed log directory isn't used again before the broker's next start. A full one doesn't count as failed: it serves
reads, and waits for room. Owned by the event loop, except while the directories are opened and closed. Source: Kafka's
LogManager.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from ottla.storage import names

from .directory_services import DirectoryServices
from .disk import NO_ROOM, OUT_OF_RESOURCES, Disk
from .home import UNKNOWN_EPOCH, ForeignDirectory, Home
from .identity import read_properties
from .recovery import BadLog
from .segment import DamagedSegment
from .without_room import BeingOpened

logger = logging.getLogger(__name__)

_TOLD_AGAIN_MS = 10_000


class Homes:
    """Log directories by their paths; the errors of those that have `failed` or are `full`. `cluster_id` is the cluster
    id in their `meta.properties`, None where they have none."""

    def __init__(
        self, paths: Sequence[str], disk: Disk, now_ms: Callable[[], int], services: Callable[[], DirectoryServices]
    ) -> None:
        """Locks the log directories, and creates those that don't exist. `services` returns the services for one log
        directory. Raises ForeignDirectory."""
        self.disk = disk
        self.by_path: dict[str, Home] = {}
        self.failed: dict[str, OSError] = {}
        self.full: dict[str, OSError] = {}
        self.cluster_id: str | None = None
        self._now_ms = now_ms
        self._lack_told_ms = -_TOLD_AGAIN_MS
        try:
            for path in paths:
                home = self.by_path[path] = Home(path, services())
                self._take(home)
        except ForeignDirectory:
            self.release()
            raise

    def _take(self, home: Home) -> None:
        path = home.path
        try:
            if not self.disk.exists(path):
                self.disk.make_directory(path)
                self.disk.fsync_directory(path.rpartition("/")[0] or "/")
            home.lock = self.disk.lock(f"{path}/{names.LOCK}")
            cluster_id = read_properties(self.disk, path).get("cluster.id")
        except BlockingIOError as error:
            raise ForeignDirectory(error.errno, f"log directory {path} is in use by another process") from error
        except OSError as error:
            self.fails_by(path, error, opened=False)
            return
        if cluster_id is not None and self.cluster_id not in (None, cluster_id):
            raise ForeignDirectory(
                errno.EINVAL, f"log directory {path} belongs to cluster {cluster_id}, another one to {self.cluster_id}"
            )
        self.cluster_id = cluster_id or self.cluster_id

    @property
    def online(self) -> list[Home]:
        """The log directories that can be used."""
        return [home for home in self.by_path.values() if home.path not in self.failed]

    def stopped_epoch(self) -> int:
        """The broker epoch that ended with a clean stop of every log directory, or UNKNOWN_EPOCH."""
        epochs = {home.stopped_epoch for home in self.by_path.values()}
        return epochs.pop() if len(epochs) == 1 else UNKNOWN_EPOCH

    def emptiest(self, count: int, held: Iterable[str], cordoned: Collection[str]) -> list[Home]:
        """Chooses log directories for `count` new partitions: for each partition the directory that has the fewest
        partitions by then. `held` has the log directory of each partition that exists. A path of `cordoned` is chosen
        only if all online directories are cordoned. Raises OSError where every log directory has failed."""
        online = self.online
        if not online:
            raise OSError(errno.EIO, "every log directory has failed")
        open_ones = [home for home in online if home.path not in cordoned] or online
        if len(open_ones) == 1:
            return open_ones * count
        counts = Counter(held)
        chosen = []
        for _ in range(count):
            home = min(open_ones, key=lambda home: counts[home.path])
            counts[home.path] += 1
            chosen.append(home)
        return chosen

    def fails_by(self, path: str, error: OSError, *, opened: bool) -> bool:
        """Judges an OSError of the log directory `path`. Returns whether the error makes the directory fail now. Damage
        doesn't make it fail, because damage concerns one log only; nor does a lack of room. A lack of descriptors or
        memory is temporary, unless the logs aren't `opened` yet: then it makes the directory fail, too."""
        if isinstance(error, BeingOpened):
            return False
        of_one_log = isinstance(error, (BadLog, DamagedSegment))
        if of_one_log or (error.errno in OUT_OF_RESOURCES and opened):
            if self._now_ms() - self._lack_told_ms >= _TOLD_AGAIN_MS:
                self._lack_told_ms = self._now_ms()
                what = "a log in %s is damaged: %s" if of_one_log else "log directory %s can't be used just now: %s"
                logger.error(what, path, error)
            return False
        if error.errno in NO_ROOM:
            if path not in self.full:
                self.full[path] = error
                logger.error("log directory %s is full: nothing is appended until there is room", path)
            return False
        if path in self.failed:
            return False
        self.failed[path] = error
        logger.error("log directory %s has failed: %s; its partitions are offline", path, error)
        return True

    def release(self) -> None:
        """Releases the locks: another process may use the directories."""
        for home in self.by_path.values():
            home.lock = None
