"""The log directories of a broker, and the logs in them.

Rules: a partition's directory belongs to the topic id in its `partition.metadata`, whatever its name. It is deleted
only by a call with that id; an unknown one is set aside under another name, never removed. A log directory that fails
takes its logs offline and no others; a full log directory hasn't failed. A log that can't be opened although its disk
works, or that is found damaged when it has to be changed, is offline alone. A log that may lie in a failed log
directory is lost for now: no empty log is created for it elsewhere.

All methods but `open` and `close` run on the event loop. A thread creates new logs (`create_ahead`); the event loop
creates only logs that the thread couldn't create. Source: Kafka's LogManager, for which an unforeseen error in one log
ends the start of the broker.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import chain
from uuid import UUID, uuid4

from ottla.storage import names
from ottla.storage.checkpoints import Offsets

from .bad_logs import BadLogs
from .closing import close_all
from .config import LogConfig
from .creation import NewLog, create, create_all
from .cuts import Cuts
from .deletion import Deletions
from .directory_services import DirectoryServices
from .disk import NO_ROOM, OUT_OF_RESOURCES, Disk, RealDisk
from .flush_counters import FlushCounters
from .home import UNKNOWN_EPOCH, ForeignDirectory, Home, common_epoch, emptiest
from .identity import read_properties, write_clean_marker
from .log import Log
from .offset_files import OffsetFile, OffsetFiles
from .owner import Owner
from .recovery import BadLog, Opened, open_log
from .segment import DamagedSegment, OpenFiles, files_to_keep_open
from .survey import FoundLog, InterruptedMove, survey
from .troubles import Troubles
from .without_room import BeingOpened, WithoutRoom, has_room

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_TOLD_AGAIN_MS = 10_000
_THREADS = 8

LogKey = tuple[UUID, int]


class LogDirectories:
    """`logs` by (topic id, partition), those `lost` to an error; `failed` and `full` log directories with theirs."""

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
        """`recovery_threads` are per log directory; `open_files_max` segments stay open, by default as many as leave
        most of the process's file descriptors to connections."""
        self.paths = [path.rstrip("/") or "/" for path in paths]
        self.disk: Disk = disk or RealDisk()
        self.logs: dict[LogKey, Log] = {}
        self.lost: dict[LogKey, OSError] = {}
        self._without_room = WithoutRoom()  # logs that are lost until the disk has room
        self.failed: dict[str, OSError] = {}
        self.full: dict[str, OSError] = {}
        self.cordoned: frozenset[str] = frozenset()  # paths that get no new logs while another path can
        self.cuts = Cuts()
        self.offset_files = OffsetFiles(self.disk)
        self._bad = BadLogs(self.offset_files)
        self.high_watermarks: Offsets = {}  # as checkpointed before this start
        self.owner = owner
        self.wanting_flush: dict[Log, None] = {}
        self.flush_wanted = asyncio.Event()  # set while `wanting_flush` holds a log
        self.deletions = Deletions()
        self.interrupted_moves: list[InterruptedMove] = []
        self.flushes = FlushCounters()
        self.troubles = Troubles()
        self.cluster_id: str | None = None
        # The broker epoch that ended with a clean stop of every log directory, −1 where something may be missing, since
        # that stop or by now: the registration tells of it, and reports go by the same.
        self.stopped_epoch = UNKNOWN_EPOCH
        self._now_ms = now_ms
        self._lack_told_ms = -_TOLD_AGAIN_MS
        self._opened = False  # until then any failure to read counts as a loss
        self._recovery_threads = recovery_threads
        self._threads = threads
        self._homes: dict[str, Home] = {}
        open_files = OpenFiles(open_files_max or files_to_keep_open())
        try:
            for path in self.paths:
                self._homes[path] = self._home(path, open_files)
        except ForeignDirectory:
            self._release()
            raise

    def _home(self, path: str, open_files: OpenFiles) -> Home:
        services = DirectoryServices(
            self.disk, self.deletions, open_files, self._now_ms, self._wants_flush, self._log_failed, self.flushes
        )
        home = Home(path, services)
        try:
            if not self.disk.exists(path):
                self.disk.make_directory(path)
                self.disk.fsync_directory(path.rpartition("/")[0] or "/")
            home.lock = self.disk.lock(f"{path}/{names.LOCK}")
            cluster_id = read_properties(self.disk, path).get("cluster.id")
        except BlockingIOError as error:
            raise ForeignDirectory(error.errno, f"log directory {path} is in use by another process") from error
        except OSError as error:
            self.directory_failed(path, error)
            return home
        if cluster_id is not None and self.cluster_id not in (None, cluster_id):
            raise ForeignDirectory(
                errno.EINVAL, f"log directory {path} belongs to cluster {cluster_id}, another one to {self.cluster_id}"
            )
        self.cluster_id = cluster_id or self.cluster_id
        return home

    def _wants_flush(self, log: Log) -> None:
        self.wanting_flush[log] = None
        self.flush_wanted.set()

    @property
    def online_paths(self) -> list[str]:
        """The log directories that can be used."""
        return [home.path for home in self._online()]

    def _online(self) -> list[Home]:
        return [home for home in self._homes.values() if home.path not in self.failed]

    # ---- opening

    def open(self, cluster_id: str, node_id: int, config_of: Callable[[str], LogConfig]) -> None:
        """Opens every log, and recovers the logs of directories whose last stop wasn't clean. Blocks: runs in a thread.

        Raises ForeignDirectory where a directory is another broker's, OSError where all directories have failed.
        """
        found: list[tuple[Home, FoundLog]] = []
        for home in self._online():
            try:
                home.identify(cluster_id, node_id)
                found.extend((home, item) for item in self._survey(home))
            except ForeignDirectory:
                self._release()
                raise
            except OSError as error:
                self.directory_failed(home.path, error)
        self._open_logs(found, config_of)
        if not self._online():
            raise OSError(errno.EIO, "every log directory has failed: " + "; ".join(map(str, self.failed.values())))
        if not (self.failed or self.lost or self._bad.unclaimed):
            self.stopped_epoch = common_epoch(self._homes.values())
        self._opened = True

    async def open_again(self, config_of: Callable[[str], LogConfig], tried: Callable[[UUID, int], None]) -> None:
        """Opens logs that couldn't be opened on a full disk, where there is room now. `tried` is called for each, on
        the event loop, whether it could be opened or not."""
        await self._without_room.open_each(
            lambda key, home: key not in self.logs and home.path not in self.full and home.path not in self.failed,
            lambda home, item: partial(self._open_log, home, item, config_of(item.topic)),
            self._opened_again,
            tried,
        )

    def _opened_again(self, home: Home, item: FoundLog, result: Opened | OSError) -> None:
        key = (item.topic_id, item.partition)
        if home.path in self.failed:
            self.lost[key] = self.failed[home.path]
            return
        del self._without_room.logs[key]
        if isinstance(result, OSError):
            self._not_opened(home, item, result)  # which adds it again where the room wasn't enough
            return
        self.logs[key] = self._told(result)
        del self.lost[key]
        self._bad.opened_or_gone(item.directory)

    def _survey(self, home: Home) -> Iterable[FoundLog]:
        """Reads the checkpoints and the marker, and finds the partitions."""
        home.take_marker()
        home.recovery_points = self.offset_files.read(home.path, names.RECOVERY_POINTS)
        home.log_starts = self.offset_files.read(home.path, names.LOG_STARTS)
        home.compacted = self.offset_files.read(home.path, names.COMPACTED_OFFSETS)
        self.high_watermarks.update(self.offset_files.read(home.path, names.HIGH_WATERMARKS))
        found = survey(self.disk, home.path)
        self._bad.unclaimed.update(found.unclaimed)
        self.interrupted_moves += found.interrupted_moves
        for path in found.doomed:
            self.deletions.add(0, path)
        return found.logs

    def _open_logs(self, found: list[tuple[Home, FoundLog]], config_of: Callable[[str], LogConfig]) -> None:
        unclean = sum(not home.clean for home, _ in found)
        if unclean:
            logger.info("recovering %d logs: the last stop wasn't a clean one", unclean)
        workers = max(self._recovery_threads * len(self._homes), 1)
        done, said = 0, time.monotonic()

        def opened(job: tuple[Home, FoundLog]) -> tuple[Home, FoundLog, Opened | OSError]:
            home, item = job
            try:
                return home, item, self._open_log(home, item, config_of(item.topic))
            except OSError as error:
                return home, item, error

        with self._threads(workers) as pool:
            for home, item, result in pool.map(opened, found):
                done += 1
                if isinstance(result, OSError):
                    self._not_opened(home, item, result)
                    continue
                self._hold(item, self._told(result))
                if time.monotonic() - said >= _PROGRESS_SECONDS:
                    said = time.monotonic()
                    logger.info("opened %d of %d logs", done, len(found))
        self._drop_offline()

    def _not_opened(self, home: Home, item: FoundLog, error: OSError) -> None:
        """Notes a log as offline: alone, unless its log directory has failed."""
        self.lost[item.topic_id, item.partition] = error
        self._bad.not_opened(home, item)
        if isinstance(error, BadLog):
            logger.error("%s; its partition is offline here, the others aren't", error.strerror, exc_info=error)
            return
        logger.error("%s can't be opened: %s", item.directory, error)
        if error.errno in NO_ROOM:
            self._without_room.logs[item.topic_id, item.partition] = home, item
        self.directory_failed(home.path, error)

    def _told(self, opened: Opened) -> Log:
        """The opened log, after its losses are logged and kept for reports."""
        log = opened.take_over()
        high_watermark = self.high_watermarks.get((log.topic, log.index), 0)
        opened.tell(high_watermark)
        if (cut := opened.cut(high_watermark)) is not None:
            self.cuts.add(cut)
        return log

    def _open_log(self, home: Home, item: FoundLog, config: LogConfig) -> Opened:
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
        )

    def _hold(self, item: FoundLog, log: Log) -> None:
        key = item.topic_id, item.partition
        other = self.logs.get(key)
        if other is not None:  # the broker stopped in the last step of a move; the longer log is complete
            log, other = (log, other) if log.log_end_offset > other.log_end_offset else (other, log)
            logger.warning("%s and %s hold the same partition; the first is kept", log.directory, other.directory)
            self._set_aside(other.directory, other.topic, other.index)
        self.logs[key] = log

    # ---- partitions

    def get(self, topic_id: UUID, index: int) -> Log | None:
        """A partition's log, if this broker has it online."""
        return self.logs.get((topic_id, index))

    def expect(self, wanted: Iterable[LogKey]) -> None:
        """Takes, after `open`, the broker's replicas by the metadata: a missing one may lie in a failed directory."""
        for path, error in self.failed.items():
            for key in wanted:
                if key not in self.logs and self.lost.setdefault(key, error) is error:
                    logger.warning("partition %d of topic %s may lie in %s, which has failed", key[1], key[0], path)

    def open_or_create(self, topic: str, index: int, topic_id: UUID, config: LogConfig) -> Log:
        """The log of a partition; a new one where there is none. Raises OSError, of which BeingOpened is one."""
        log = self.logs.get((topic_id, index))
        if log is not None:
            log.config = config
            return log
        if (topic, index) in self._bad.unclaimed:
            self.lost.setdefault((topic_id, index), self._bad.claim_refused(topic, index, topic_id))
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
        """Creates logs in a thread, so that `open_or_create` finds them. Errors are left for `open_or_create` to meet.

        Until it returns, no other task may open or create these logs.
        """
        new = [
            item
            for item in new_logs
            if (key := (item.topic_id, item.partition)) not in self.logs
            and key not in self.lost
            and (item.topic, item.partition) not in self._bad.unclaimed
        ]
        if not new or not self._online():
            return
        wanted = list(zip(self._emptiest(len(new)), new, strict=True))
        outdated = self._outdated((home, item.topic, item.partition) for home, item in wanted)
        try:
            creating = asyncio.get_running_loop().run_in_executor(None, self._create_all, wanted, outdated)
        except RuntimeError as error:  # the system gives no thread
            logger.warning("no log can be created ahead: %s", error)
            return
        for item, log in await creating:
            if self.directory_of(log) not in self.failed:
                self.logs.setdefault((item.topic_id, item.partition), log)

    def _create_all(
        self, wanted: Iterable[tuple[Home, NewLog]], outdated: Iterable[OffsetFile]
    ) -> list[tuple[NewLog, Log]]:
        try:
            self.offset_files.write_all(outdated)
        except OSError as error:
            logger.warning("no log can be created ahead: %s", error)
            return []
        places = ((home.services, _directory(home, item), item) for home, item in wanted)
        with self._threads(_THREADS) as pool:
            return create_all(places, pool, _THREADS)

    def _emptiest(self, count: int) -> list[Home]:
        """The log directories for `count` new partitions, each the one with the fewest partitions by then."""
        online = self._online()
        if not online:
            raise OSError(errno.EIO, "every log directory has failed")
        open_ones = [home for home in online if home.path not in self.cordoned]
        return emptiest(open_ones or online, count, map(self.directory_of, self.logs.values()))

    def _make_room(self, directory: str, topic: str, index: int) -> None:
        """Sets a directory of that name aside, which belongs to another topic id or to none. Raises BeingOpened."""
        self._without_room.check_not_opened(directory)
        if self.disk.exists(directory):
            target = self._set_aside(directory, topic, index)
            self._bad.opened_or_gone(directory)
            for logs in (self.logs, self._bad.damaged):
                for key, log in list(logs.items()):
                    if log.directory == directory:
                        del logs[key]
                        log.retire(target)

    def directory_of(self, log: Log) -> str:
        """The path of a log's log directory."""
        return log.directory.rpartition("/")[0]

    # ---- moves to another log directory

    def relocate(self, log: Log, copy: str, target: str, recovery_point: int) -> None:
        """Makes `log` use `copy`, a complete copy of it in log directory `target`. Raises OSError."""
        directory = f"{target}/{names.partition_name(log.topic, log.index)}"
        self._make_room(directory, log.topic, log.index)
        self.offset_files.write_all(self._outdated([(self._homes[target], log.topic, log.index)]))
        self.disk.rename(copy, directory)
        source = log.directory
        log.moved(self._homes[target].services, directory, recovery_point)
        self._doom(source, log)

    def delete_topic(self, topic_id: UUID) -> None:
        """Deletes all partitions of a topic: renames them at once, and removes them after `file.delete.delay.ms`."""
        for key in [key for key in chain(self.logs, self._bad.damaged) if key[0] == topic_id]:
            self.delete(*key)
        for key in [key for key in self.lost if key[0] == topic_id]:
            del self.lost[key]
            self._without_room.logs.pop(key, None)
        self._bad.topic_deleted(topic_id)

    def delete(self, topic_id: UUID, index: int) -> None:
        """Deletes one partition; if its log directory has failed, a later start sets it aside."""
        key = topic_id, index
        log = self.logs.pop(key, None)
        if log is None and (log := self._bad.damaged.pop(key, None)) is not None:
            del self.lost[key]
        if log is not None:
            self.wanting_flush.pop(log, None)
            log.retire(self._doom(log.directory, log))

    def moved_to_others(self, topic_id: UUID, index: int) -> None:
        """Sets logs of a partition that couldn't be opened aside, because other brokers have the partition now: a new
        log can be created if it comes back. A log that may lie in a failed log directory stays lost."""
        if (topic_id, index) not in self.lost:
            return
        for home, found in self._bad.unopened(topic_id, index):
            if home.path in self.failed or self._without_room.is_opened(found.directory):
                continue
            try:
                self._set_aside(found.directory, found.topic, index, "the partition was moved to other brokers")
            except OSError as error:
                self.directory_failed(home.path, error)
                continue
            self._bad.opened_or_gone(found.directory)
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
        """Sets aside the partitions (of `among`, else all) that the metadata doesn't know or has given to other
        brokers. Returns their new directories."""
        moved = []
        for key in list(among or self.logs):
            log = self.logs.get(key)
            if log is not None and not wanted(*key):
                try:
                    moved.append(self._set_aside(log.directory, log.topic, log.index))
                except OSError as error:
                    self.directory_failed(self.directory_of(log), error)
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
        self._without_room.gone(directory)
        logger.warning("%s: %s; it is set aside as %s", directory, reason, target)
        return target

    # ---- failures

    def damaged(self) -> Iterator[tuple[str, int, OSError]]:
        """(topic, partition, error) of the logs that are offline alone."""
        known = ((topic, index, self.lost.get(key)) for key, topic, index in self._bad.known())
        return ((topic, index, error) for topic, index, error in known if isinstance(error, (BadLog, DamagedSegment)))

    def _log_failed(self, log: Log, error: OSError) -> None:
        """Decides what an OSError of a log's files means."""
        if not isinstance(error, DamagedSegment):
            self.directory_failed(self.directory_of(log), error)
            return
        for key in [key for key, held in self.logs.items() if held is log]:
            logger.error("%r is damaged: %s; its partition is offline here, the others aren't", log, error)
            self._bad.damaged[key] = self.logs.pop(key)
            self.stopped_epoch = UNKNOWN_EPOCH
            self.lost[key] = error
            self.wanting_flush.pop(log, None)
            self.owner.went_offline([log])

    def directory_failed(self, path: str, error: OSError) -> None:
        """Judges an OSError. A full directory serves reads and waits for room. A lack of the process's resources
        passes. Damage concerns one log only. Any other error ends the directory's use."""
        if isinstance(error, BeingOpened):
            return
        of_one_log = isinstance(error, (BadLog, DamagedSegment))
        if of_one_log or (error.errno in OUT_OF_RESOURCES and self._opened):
            if self._now_ms() - self._lack_told_ms >= _TOLD_AGAIN_MS:
                self._lack_told_ms = self._now_ms()
                what = "a log in %s is damaged: %s" if of_one_log else "log directory %s can't be used just now: %s"
                logger.error(what, path, error)
            return
        if error.errno in NO_ROOM:
            if path not in self.full:
                self.full[path] = error
                logger.error("log directory %s is full: nothing is appended until there is room", path)
            return
        if path in self.failed:
            return
        self.failed[path] = error
        self.stopped_epoch = UNKNOWN_EPOCH
        logger.error("log directory %s has failed: %s; its partitions are offline", path, error)
        self._drop_offline()
        if self._opened and not self._online():
            self.owner.none_left()

    def _drop_offline(self) -> None:
        offline = {key: log for key, log in self.logs.items() if self.directory_of(log) in self.failed}
        damaged = self._bad.damaged
        self._bad.damaged = {key: log for key, log in damaged.items() if self.directory_of(log) not in self.failed}
        for key in offline:
            log = self.logs.pop(key)
            self.lost[key] = self.failed[self.directory_of(log)]
            self.wanting_flush.pop(log, None)
        if offline and self._opened:
            self.owner.went_offline(list(offline.values()))

    def look_for_room(self) -> None:
        """Notices that a full log directory has room again."""
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
        files = self.offset_files
        return [file for home in self._online() for file in files.recovery_points(home.path, self._logs_in(home.path))]

    def compacted_checkpoint(self, log: Log) -> OffsetFile:
        """The checkpoint of compacted offsets of the log directory of `log`."""
        path = self.directory_of(log)
        return self.offset_files.compacted(path, self._logs_in(path))

    def high_watermark_checkpoints(self) -> list[OffsetFile]:
        """The high watermark checkpoints."""
        return [self._high_watermarks(home.path) for home in self._online()]

    def _high_watermarks(self, path: str) -> OffsetFile:
        return self.offset_files.high_watermarks(path, self._logs_in(path), self.owner.high_watermark_of)

    def _outdated(self, wanted: Iterable[tuple[Home, str, int]]) -> list[OffsetFile]:
        """The checkpoints to write before these logs are created, because they have lines about earlier ones."""
        files = self.offset_files
        paths = {home.path for home, topic, index in wanted if files.may_name(home.path, topic, index)}
        points = [file for path in paths for file in files.recovery_points(path, self._logs_in(path))]
        return points + [self._high_watermarks(path) for path in paths]

    def _logs_in(self, path: str) -> list[Log]:
        """The logs that the checkpoints list: damaged ones, too, so that they keep their lines for the next start."""
        start = f"{path}/"
        held = chain(self.logs.values(), self._bad.damaged.values())
        return [log for log in held if log.directory.startswith(start)]

    def close(self, broker_epoch: int = UNKNOWN_EPOCH) -> None:
        """Closes every log, and marks each log directory where that worked as cleanly stopped. Blocks.

        A directory that wasn't opened stays as it was. Without a registration (epoch −1), the old epoch is kept."""
        if not self._opened:
            self._release()
            return
        self._without_room.end()
        epoch = self.stopped_epoch if broker_epoch == UNKNOWN_EPOCH else broker_epoch
        with self._threads(_THREADS) as pool:
            for log, error in close_all(list(self.logs.values()), pool):
                logger.error("%r couldn't be closed: %s", log, error)
                self.failed.setdefault(self.directory_of(log), error)
        for file in self.recovery_points() + self.high_watermark_checkpoints():
            self._at_the_end(file.path.rpartition("/")[0], partial(self.offset_files.write, file))
        self._without_room.wait()
        for home in self._online():
            if self._bad.forbid_marker(home):
                logger.warning(
                    "log directory %s isn't marked as cleanly stopped: not every log was recovered", home.path
                )
                continue
            self._at_the_end(home.path, partial(write_clean_marker, self.disk, home.path, epoch))
        self._release()

    def _at_the_end(self, home: str, write: Callable[[], None]) -> None:
        """Calls `write`; if it fails, the log directory isn't marked as cleanly stopped."""
        try:
            write()
        except OSError as error:
            logger.error("log directory %s isn't closed as it should be, the next start recovers it: %s", home, error)
            self.failed.setdefault(home, error)

    def _release(self) -> None:
        """Releases the locks: another process may use the directories."""
        for home in self._homes.values():
            home.lock = None


def _directory(home: Home, new: NewLog) -> str:
    return f"{home.path}/{names.partition_name(new.topic, new.partition)}"
