"""The log directories of a broker, and the logs in them.

Rules: a partition's directory belongs to the topic id in its `partition.metadata`, whatever its name. The directory is
deleted only by a call with that id; a directory with an unknown topic id is set aside under another name, never
removed. A log directory that fails takes its logs offline and no others; a full log directory doesn't count as failed.
A log that can't be opened although its disk works, or that is found damaged when it has to be changed, goes offline
alone, without the other logs of its directory. A log that may be in a failed log directory is lost for now: no empty
log is created for it elsewhere.

All methods but `open` and `close` run on the event loop. A thread creates new logs (`create_ahead`); the event loop
creates only logs that the thread couldn't create. `opening` opens all logs at the start. Source: Kafka's LogManager.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import chain
from uuid import UUID, uuid4

from ottla.storage import names

from .bad_logs import BadLogs
from .closing import close_all
from .config import LogConfig
from .creation import NewLog, create, create_all
from .deletion import Deletions
from .directory_services import DirectoryServices
from .disk import Disk, RealDisk
from .flush_counters import FlushCounters
from .held_logs import HeldLogs, LogKey, directory_of
from .home import UNKNOWN_EPOCH, Home
from .homes import Homes
from .identity import write_clean_marker
from .log import Log
from .offset_files import OffsetFile, OffsetFiles
from .opening import Opening
from .owner import Owner
from .segment import DamagedSegment, OpenFiles, files_to_keep_open
from .troubles import Troubles
from .without_room import has_room

logger = logging.getLogger(__name__)

_THREADS = 8


class LogDirectories:
    """`logs` has the open logs by (topic id, partition), `lost` the errors of logs that can't be used; `failed` and
    `full` have the errors of log directories, by path."""

    def __init__(
        self,
        paths: Sequence[str],
        now_ms: Callable[[], int],
        owner: Owner,
        *,
        disk: Disk | None = None,
        open_files_max: int | None = None,
        recovery_threads: int = 2,
        threads: Callable[[int], Executor] = ThreadPoolExecutor,
    ) -> None:
        """`recovery_threads` is the number of threads per log directory; `open_files_max` segments stay open, by
        default as many as leave most of the process's file descriptors to connections."""
        self.paths = [path.rstrip("/") or "/" for path in paths]
        self.disk: Disk = disk or RealDisk()
        self.owner = owner
        self.cordoned: frozenset[str] = frozenset()  # paths that get no new logs while another path can take them
        self.offset_files = OffsetFiles(self.disk)
        self.wanting_flush: dict[Log, None] = {}
        self.flush_wanted = asyncio.Event()  # set while `wanting_flush` holds a log
        self.deletions = Deletions()
        self.flushes = FlushCounters()
        self.troubles = Troubles()
        # The broker epoch that ended with a clean stop of every log directory. It is −1 where the last stop wasn't
        # clean, or where a log or a log directory has failed since. The registration states this epoch, and
        # `RestoreReports` uses it.
        self.stopped_epoch = UNKNOWN_EPOCH
        self._now_ms = now_ms
        self._opened = False
        self._recovery_threads = recovery_threads
        self._threads = threads
        open_files = OpenFiles(open_files_max or files_to_keep_open())
        services = partial(
            DirectoryServices,
            self.disk,
            self.deletions,
            open_files,
            now_ms,
            self._wants_flush,
            self._log_failed,
            self.flushes,
        )
        self._homes = Homes(self.paths, self.disk, now_ms, services)
        self._held = HeldLogs(BadLogs(self.offset_files))
        self._opening = Opening(
            self._homes, self._held, self.offset_files, self.deletions, self.directory_failed, self._set_aside
        )
        # These objects belong to the parts, which change them in place:
        self.logs, self.lost = self._held.online, self._held.lost
        self.failed, self.full = self._homes.failed, self._homes.full
        self.cuts, self.high_watermarks = self._opening.cuts, self._opening.high_watermarks
        self.interrupted_moves = self._opening.interrupted_moves

    @property
    def cluster_id(self) -> str | None:
        """The cluster id in the log directories' `meta.properties`; None where they have none."""
        return self._homes.cluster_id

    def _wants_flush(self, log: Log) -> None:
        self.wanting_flush[log] = None
        self.flush_wanted.set()

    @property
    def online_paths(self) -> list[str]:
        """The log directories that can be used."""
        return [home.path for home in self._homes.online]

    # ---- opening

    def open(self, cluster_id: str, node_id: int, config_of: Callable[[str], LogConfig]) -> None:
        """Opens every log, and recovers the logs of directories whose last stop wasn't clean. Blocks: runs in a thread.

        Raises ForeignDirectory where a directory is another broker's, OSError where all directories have failed.
        """
        workers = max(self._recovery_threads * len(self._homes.by_path), 1)
        self._opening.open_all(cluster_id, node_id, config_of, partial(self._threads, workers))
        self._drop_offline()
        if not self._homes.online:
            raise OSError(errno.EIO, "every log directory has failed: " + "; ".join(map(str, self.failed.values())))
        if not (self.failed or self.lost or self._held.bad.unclaimed):
            self.stopped_epoch = self._homes.stopped_epoch()
        self._opened = True

    async def open_again(self, config_of: Callable[[str], LogConfig], tried: Callable[[UUID, int], None]) -> None:
        """Opens the logs that couldn't be opened because the disk was full, as far as their log directories have room
        now. Calls `tried` on the event loop for each such log, whether or not the log could be opened."""
        await self._opening.open_again(config_of, tried)

    # ---- partitions

    def get(self, topic_id: UUID, index: int) -> Log | None:
        """A partition's log, if this broker has it online."""
        return self.logs.get((topic_id, index))

    def expect(self, wanted: Iterable[LogKey]) -> None:
        """Takes the replicas that the metadata gives this broker (`wanted`). If a log directory has failed, notes those
        without an open log as lost, because their logs may be in the failed directory. Called after `open`."""
        self._held.expect(wanted, self.failed)

    def open_or_create(self, topic: str, index: int, topic_id: UUID, config: LogConfig) -> Log:
        """The log of a partition; a new one where there is none. Raises OSError, also its subclass BeingOpened."""
        log = self.logs.get((topic_id, index))
        if log is not None:
            log.config = config
            return log
        if (topic, index) in self._held.bad.unclaimed:
            self.lost.setdefault((topic_id, index), self._held.bad.claim_refused(topic, index, topic_id))
        if (topic_id, index) in self.lost:
            raise self.lost[topic_id, index]
        home, new = self._emptiest(1)[0], NewLog(topic, index, topic_id, config)
        directory = _directory(home, new)
        try:
            self._make_room(directory, topic, index)
            self.offset_files.write_all(self._outdated([(home, topic, index)]))
            log = create(home.services, directory, new)
        except OSError as error:
            self.directory_failed(home.path, error)
            raise
        self.logs[topic_id, index] = log
        return log

    async def create_ahead(self, new_logs: Iterable[NewLog]) -> None:
        """Creates logs in a thread, so that `open_or_create` finds them. A log that can't be created is left to
        `open_or_create`, which tries again and raises the error.

        Until the call returns, no other task may open or create these logs.
        """
        new = [
            item
            for item in new_logs
            if (key := (item.topic_id, item.partition)) not in self.logs
            and key not in self.lost
            and (item.topic, item.partition) not in self._held.bad.unclaimed
        ]
        if not new or not self._homes.online:
            return
        wanted = list(zip(self._emptiest(len(new)), new, strict=True))
        outdated = self._outdated((home, item.topic, item.partition) for home, item in wanted)
        try:
            creating = asyncio.get_running_loop().run_in_executor(None, self._create_all, wanted, outdated)
        except RuntimeError as error:  # the system gives no thread
            logger.warning("new logs can't be created in a thread, so the event loop creates them: %s", error)
            return
        for item, log in await creating:
            if directory_of(log) not in self.failed:
                self.logs.setdefault((item.topic_id, item.partition), log)

    def _create_all(
        self, wanted: Iterable[tuple[Home, NewLog]], outdated: Iterable[OffsetFile]
    ) -> list[tuple[NewLog, Log]]:
        try:
            self.offset_files.write_all(outdated)
        except OSError as error:
            logger.warning("new logs can't be created in a thread, so the event loop creates them: %s", error)
            return []
        places = ((home.services, _directory(home, item), item) for home, item in wanted)
        with self._threads(_THREADS) as pool:
            return create_all(places, pool, _THREADS)

    def _emptiest(self, count: int) -> list[Home]:
        return self._homes.emptiest(count, map(directory_of, self.logs.values()), self.cordoned)

    def _make_room(self, directory: str, topic: str, index: int) -> None:
        """Sets `directory` aside if it exists: it belongs to another topic id or to none. Raises OSError, also its
        subclass BeingOpened."""
        self._held.without_room.check_not_opened(directory)
        if self.disk.exists(directory):
            target = self._set_aside(directory, topic, index)
            self._held.bad.opened_or_gone(directory)
            for logs in (self.logs, self._held.bad.damaged):
                for key, log in list(logs.items()):
                    if log.directory == directory:
                        del logs[key]
                        log.retire(target)

    def directory_of(self, log: Log) -> str:
        """The path of a log's log directory."""
        return directory_of(log)

    # ---- moves to another log directory

    def relocate(self, log: Log, copy: str, target: str, recovery_point: int) -> None:
        """Makes `log` use `copy`, a complete copy of it in log directory `target`. Raises OSError."""
        directory = f"{target}/{names.partition_name(log.topic, log.index)}"
        self._make_room(directory, log.topic, log.index)
        self.offset_files.write_all(self._outdated([(self._homes.by_path[target], log.topic, log.index)]))
        self.disk.rename(copy, directory)
        source = log.directory
        log.moved(self._homes.by_path[target].services, directory, recovery_point)
        self._doom(source, log)

    def delete_topic(self, topic_id: UUID) -> None:
        """Deletes all partitions of a topic: renames them at once, and removes them after `file.delete.delay.ms`."""
        for key in [key for key in chain(self.logs, self._held.bad.damaged) if key[0] == topic_id]:
            self.delete(*key)
        for key in [key for key in self.lost if key[0] == topic_id]:
            del self.lost[key]
            self._held.without_room.logs.pop(key, None)
        self._held.bad.topic_deleted(topic_id)

    def delete(self, topic_id: UUID, index: int) -> None:
        """Deletes one partition; if its log directory has failed, a later start sets the partition's directory
        aside."""
        key = topic_id, index
        log = self.logs.pop(key, None)
        if log is None and (log := self._held.bad.damaged.pop(key, None)) is not None:
            del self.lost[key]
        if log is not None:
            self.wanting_flush.pop(log, None)
            log.retire(self._doom(log.directory, log))

    def moved_to_others(self, topic_id: UUID, index: int) -> None:
        """Sets aside the directories of a partition's logs that couldn't be opened, because other brokers have the
        partition now: if the partition comes back, a new log can be created. A log that may be in a failed log
        directory stays lost."""
        if (topic_id, index) not in self.lost:
            return
        for home, found in self._held.bad.unopened(topic_id, index):
            if home.path in self.failed or self._held.without_room.is_opened(found.directory):
                continue
            try:
                self._set_aside(found.directory, found.topic, index, "the partition was moved to other brokers")
            except OSError as error:
                self.directory_failed(home.path, error)
                continue
            self._held.bad.opened_or_gone(found.directory)
            self.lost.pop((topic_id, index), None)

    def _doom(self, directory: str, log: Log) -> str:
        """Renames a log's directory for its removal. Returns the new path."""
        home = directory.rpartition("/")[0]
        target = f"{home}/{names.renamed_partition_name(log.topic, log.index, names.DELETE_DIRECTORY, uuid4())}"
        try:
            self.disk.rename(directory, target)
        except OSError as error:
            self.directory_failed(home, error)
            return directory
        self.deletions.add(self._now_ms() + log.config.file_delete_delay_ms, target)
        return target

    def set_aside_unknown(self, wanted: Callable[[UUID, int], bool], among: Iterable[LogKey] = ()) -> list[str]:
        """Sets aside the partitions (of `among`, or of all logs where it is empty) that the metadata doesn't know or
        has given to other brokers. Returns the paths of their directories under the new names."""
        moved = []
        for key in list(among or self.logs):
            log = self.logs.get(key)
            if log is not None and not wanted(*key):
                try:
                    moved.append(self._set_aside(log.directory, log.topic, log.index))
                except OSError as error:
                    self.directory_failed(directory_of(log), error)
                    continue
                del self.logs[key]
                log.retire(moved[-1])
        return moved

    def _set_aside(
        self, directory: str, topic: str, index: int, reason: str = "the cluster doesn't know this partition"
    ) -> str:
        home = directory.rpartition("/")[0]
        target = f"{home}/{names.renamed_partition_name(topic, index, names.STRAY_DIRECTORY, uuid4())}"
        self.disk.rename(directory, target)
        self._held.without_room.gone(directory)
        logger.warning("%s: %s; the directory is set aside as %s", directory, reason, target)
        return target

    # ---- failures

    def damaged(self) -> Iterator[tuple[str, int, OSError]]:
        """(topic, partition, error) of the damaged logs, which are offline although their log directories work."""
        return self._held.damaged()

    def _log_failed(self, log: Log, error: OSError) -> None:
        """Handles an OSError of a log's files: a damaged log goes offline alone, any other error goes to
        `directory_failed`."""
        if not isinstance(error, DamagedSegment):
            self.directory_failed(directory_of(log), error)
        elif self._held.take_damaged_offline(log, error):
            self.stopped_epoch = UNKNOWN_EPOCH
            self.wanting_flush.pop(log, None)
            self.owner.went_offline([log])

    def directory_failed(self, path: str, error: OSError) -> None:
        """Judges an OSError of the log directory `path`. A full directory serves reads and waits for room. A lack of
        descriptors or memory is taken as temporary. Damage concerns one log only. After any other error the directory
        isn't used any more."""
        if not self._homes.fails_by(path, error, opened=self._opened):
            return
        self.stopped_epoch = UNKNOWN_EPOCH
        self._drop_offline()
        if self._opened and not self._homes.online:
            self.owner.none_left()

    def _drop_offline(self) -> None:
        offline = self._held.take_offline(self.failed)
        for log in offline:
            self.wanting_flush.pop(log, None)
        if offline and self._opened:
            self.owner.went_offline(offline)

    def look_for_room(self) -> None:
        """Checks whether full log directories have room again, and calls the owner for each that has."""
        for path in list(self.full):
            try:
                room = has_room(*self.disk.free_bytes(path))
            except OSError as error:
                self.directory_failed(path, error)
                continue
            if room:
                del self.full[path]
                logger.warning("log directory %s has room again", path)
                self.owner.room_again()

    # ---- checkpoints and the end

    def recovery_points(self) -> list[OffsetFile]:
        """The checkpoints that a start needs: recovery points, log starts, compacted offsets."""
        return [file for path in self.online_paths for file in self._recovery_points(path)]

    def _recovery_points(self, path: str) -> list[OffsetFile]:
        return self.offset_files.recovery_points(path, self._held.in_directory(path))

    def compacted_checkpoint(self, log: Log) -> OffsetFile:
        """The checkpoint of compacted offsets of the log directory of `log`."""
        path = directory_of(log)
        return self.offset_files.compacted(path, self._held.in_directory(path))

    def high_watermark_checkpoints(self) -> list[OffsetFile]:
        """The checkpoints of high watermarks to be written, one for each log directory that can be used."""
        return [self._high_watermarks(path) for path in self.online_paths]

    def _high_watermarks(self, path: str) -> OffsetFile:
        return self.offset_files.high_watermarks(path, self._held.in_directory(path), self.owner.high_watermark_of)

    def _outdated(self, wanted: Iterable[tuple[Home, str, int]]) -> list[OffsetFile]:
        """The checkpoints to write before these logs are created, because they have lines about earlier logs of the
        same names."""
        files = self.offset_files
        paths = {home.path for home, topic, index in wanted if files.may_name(home.path, topic, index)}
        points = [file for path in paths for file in self._recovery_points(path)]
        return points + [self._high_watermarks(path) for path in paths]

    def close(self, broker_epoch: int = UNKNOWN_EPOCH) -> None:
        """Closes every log, and marks a log directory as cleanly stopped if all of its logs could be closed. Blocks.

        A directory that wasn't opened stays as it was. Without a registration (epoch −1), the old epoch is kept."""
        if not self._opened:
            self._homes.release()
            return
        self._held.without_room.end()
        epoch = self.stopped_epoch if broker_epoch == UNKNOWN_EPOCH else broker_epoch
        with self._threads(_THREADS) as pool:
            for log, error in close_all(list(self.logs.values()), pool):
                logger.error("%r couldn't be closed: %s", log, error)
                self.failed.setdefault(directory_of(log), error)
        for file in self.recovery_points() + self.high_watermark_checkpoints():
            self._at_the_end(file.path.rpartition("/")[0], partial(self.offset_files.write, file))
        self._held.without_room.wait()
        for home in self._homes.online:
            if self._held.bad.forbid_marker(home):
                logger.warning(
                    "log directory %s isn't marked as cleanly stopped: not every log was recovered", home.path
                )
                continue
            self._at_the_end(home.path, partial(write_clean_marker, self.disk, home.path, epoch))
        self._homes.release()

    def _at_the_end(self, home: str, write: Callable[[], None]) -> None:
        """Calls `write`; if it fails, the log directory isn't marked as cleanly stopped."""
        try:
            write()
        except OSError as error:
            logger.error("log directory %s isn't closed as it should be, the next start recovers it: %s", home, error)
            self.failed.setdefault(home, error)


def _directory(home: Home, new: NewLog) -> str:
    return f"{home.path}/{names.partition_name(new.topic, new.partition)}"
