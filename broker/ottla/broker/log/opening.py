"""Opens the logs of a broker's log directories: all logs when the broker starts, and later the logs that it couldn't
open on a full disk.

A log that can't be opened although its disk works goes offline alone, without the other logs of its directory. Source:
Kafka's LogManager.loadLogs, for which an unforeseen error in one log ends the start of the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from uuid import UUID

from ottla.storage import names
from ottla.storage.checkpoints import Offsets

from .config import LogConfig
from .cuts import Cuts
from .deletion import Deletions
from .disk import NO_ROOM
from .held_logs import HeldLogs
from .home import ForeignDirectory, Home
from .homes import Homes
from .log import Log
from .offset_files import OffsetFiles
from .recovery import BadLog, Opened, open_log
from .survey import FoundLog, InterruptedMove, survey

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0

Found = tuple[Home, FoundLog]


class Opening:
    """Opens logs into `held`. `high_watermarks` has the high watermarks that were checkpointed before this start,
    `cuts` the losses of the opened logs, `interrupted_moves` the moves that the last stop interrupted."""

    def __init__(
        self,
        homes: Homes,
        held: HeldLogs,
        offset_files: OffsetFiles,
        deletions: Deletions,
        directory_failed: Callable[[str, OSError], None],
        set_aside: Callable[[str, str, int], object],
    ) -> None:
        self.high_watermarks: Offsets = {}
        self.cuts = Cuts()
        self.interrupted_moves: list[InterruptedMove] = []
        self._homes = homes
        self._held = held
        self._offset_files = offset_files
        self._deletions = deletions
        self._directory_failed = directory_failed
        self._set_aside = set_aside

    def open_all(
        self, cluster_id: str, node_id: int, config_of: Callable[[str], LogConfig], threads: Callable[[], Executor]
    ) -> None:
        """Opens every log, and recovers the logs of directories whose last stop wasn't clean. Blocks: runs in a thread.

        Raises ForeignDirectory where a directory is another broker's.
        """
        found: list[Found] = []
        for home in self._homes.online:
            try:
                home.identify(cluster_id, node_id)
                found.extend((home, item) for item in self._survey(home))
            except ForeignDirectory:
                self._homes.release()
                raise
            except OSError as error:
                self._directory_failed(home.path, error)
        self._open_logs(found, config_of, threads)

    async def open_again(self, config_of: Callable[[str], LogConfig], tried: Callable[[UUID, int], None]) -> None:
        """Opens the logs that couldn't be opened because the disk was full, as far as their log directories have room
        now. Calls `tried` on the event loop for each such log, whether or not the log could be opened."""
        online, full, failed = self._held.online, self._homes.full, self._homes.failed
        await self._held.without_room.open_each(
            lambda key, home: key not in online and home.path not in full and home.path not in failed,
            lambda home, item: partial(self._open_found, home, item, config_of(item.topic)),
            self._opened_again,
            tried,
        )

    def _opened_again(self, home: Home, item: FoundLog, result: Opened | OSError) -> None:
        held, key = self._held, (item.topic_id, item.partition)
        if home.path in self._homes.failed:
            held.lost[key] = self._homes.failed[home.path]
            return
        del held.without_room.logs[key]
        if isinstance(result, OSError):
            self._not_opened(home, item, result)  # this adds the log again if the room wasn't enough
            return
        held.online[key] = self._told(result)
        del held.lost[key]
        held.bad.opened_or_gone(item.directory)

    def _survey(self, home: Home) -> list[FoundLog]:
        """Reads the checkpoints and the clean-stop marker of a log directory, and finds its partitions."""
        files = self._offset_files
        home.take_marker()
        home.recovery_points = files.read(home.path, names.RECOVERY_POINTS)
        home.log_starts = files.read(home.path, names.LOG_STARTS)
        home.compacted = files.read(home.path, names.COMPACTED_OFFSETS)
        self.high_watermarks.update(files.read(home.path, names.HIGH_WATERMARKS))
        found = survey(self._homes.disk, home.path)
        self._held.bad.unclaimed.update(found.unclaimed)
        self.interrupted_moves += found.interrupted_moves
        for path in found.doomed:
            self._deletions.add(0, path)
        return found.logs

    def _open_logs(
        self, found: list[Found], config_of: Callable[[str], LogConfig], threads: Callable[[], Executor]
    ) -> None:
        unclean = sum(not home.clean for home, _ in found)
        if unclean:
            logger.info("recovering %d logs: the last stop wasn't a clean one", unclean)
        done, said = 0, time.monotonic()

        def opened(job: Found) -> tuple[Home, FoundLog, Opened | OSError]:
            home, item = job
            try:
                return home, item, self._open_found(home, item, config_of(item.topic))
            except OSError as error:
                return home, item, error

        with threads() as pool:
            for home, item, result in pool.map(opened, found):
                done += 1
                if isinstance(result, OSError):
                    self._not_opened(home, item, result)
                    continue
                self._hold(item, self._told(result))
                if time.monotonic() - said >= _PROGRESS_SECONDS:
                    said = time.monotonic()
                    logger.info("opened %d of %d logs", done, len(found))

    def _open_found(self, home: Home, item: FoundLog, config: LogConfig) -> Opened:
        key = item.topic, item.partition
        return open_log(
            home.services,
            item.directory,
            item.topic,
            item.partition,
            config,
            clean=home.clean,
            recovery_point=home.recovery_points.get(key, 0),
            log_start_offset=home.log_starts.get(key, 0),
            compacted_to=home.compacted.get(key, 0),
            high_watermark=self.high_watermarks.get(key, 0),
        )

    def _not_opened(self, home: Home, item: FoundLog, error: OSError) -> None:
        """Notes a log as offline after `error`, and reports the error to its log directory unless only the log is
        bad."""
        held = self._held
        held.lost[item.topic_id, item.partition] = error
        held.bad.not_opened(home, item)
        if isinstance(error, BadLog):
            logger.error("%s; its partition is offline here, but no other partition", error.strerror, exc_info=error)
            return
        logger.error("%s can't be opened: %s", item.directory, error)
        if error.errno in NO_ROOM:
            held.without_room.logs[item.topic_id, item.partition] = home, item
        self._directory_failed(home.path, error)

    def _told(self, opened: Opened) -> Log:
        """Reports the losses of an opened log, adds them to `cuts`, and returns the log."""
        log = opened.take_over()
        high_watermark = self.high_watermarks.get((log.topic, log.index), 0)
        opened.tell(high_watermark)
        if (cut := opened.cut(high_watermark)) is not None:
            self.cuts.add(cut)
        return log

    def _hold(self, item: FoundLog, log: Log) -> None:
        key = item.topic_id, item.partition
        other = self._held.online.get(key)
        if other is not None:  # the broker stopped in the last step of a move; the longer log is complete
            log, other = (log, other) if log.log_end_offset > other.log_end_offset else (other, log)
            logger.warning("%s and %s hold the same partition; the first is kept", log.directory, other.directory)
            self._set_aside(other.directory, other.topic, other.index)
        self._held.online[key] = log
