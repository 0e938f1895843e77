"""Creates new logs: for each a directory with its topic id and an empty segment.

The topic id (`partition.metadata`) is synced to disk before any other file is created. The syncs of many logs run in
parallel, which takes the disk a fifth of the time. The remaining work is done in a single thread, because many threads
would compete with the event loop for the interpreter.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple
from uuid import UUID

from .config import LogConfig
from .directory_services import DirectoryServices
from .disk import Disk, File
from .identity import write_topic_id_unsynced
from .log import Log
from .recovery import open_log

logger = logging.getLogger(__name__)


class NewLog(NamedTuple):
    """A partition for which this broker is to create a log."""

    topic: str
    partition: int
    topic_id: UUID
    config: LogConfig


class _Begun(NamedTuple):
    """A new log whose directory has only `partition.metadata` so far; `sync` returns when that file is on the disk, or
    raises OSError."""

    services: DirectoryServices
    directory: str
    new: NewLog
    sync: Callable[[], object]


def create(services: DirectoryServices, directory: str, new: NewLog) -> Log:
    """Creates a log in a directory that doesn't exist yet; after a failure the directory doesn't exist either. Blocks.

    Raises OSError.
    """
    identity = _begin(services.disk, directory, new)
    return _finish(_Begun(services, directory, new, identity.fsync))


def create_all(
    wanted: Iterable[tuple[DirectoryServices, str, NewLog]], pool: Executor, syncs: int
) -> list[tuple[NewLog, Log]]:
    """Creates logs in their directories, with `syncs` syncs at a time in `pool`, until the creation of a log fails.
    Returns the logs that were created. Blocks.

    A directory that exists is skipped: the caller has to find out first which log is in it.
    """
    created: list[tuple[NewLog, Log]] = []
    failed: list[tuple[str, OSError]] = []
    begun: deque[_Begun] = deque()

    def finish_first() -> None:
        first = begun.popleft()
        try:
            created.append((first.new, _finish(first)))
        except OSError as error:
            failed.append((first.directory, error))

    for services, directory, new in wanted:
        if failed:
            break
        if services.disk.exists(directory):
            continue
        try:
            identity = _begin(services.disk, directory, new)
        except OSError as error:
            failed.append((directory, error))
            break
        begun.append(_Begun(services, directory, new, _syncing(identity, pool)))
        if len(begun) > 2 * syncs:
            finish_first()
    while begun:
        finish_first()
    if failed:
        directory, why = failed[0]
        logger.warning(
            "log %s (and %d others) can't be created in a thread, so the event loop tries again: %s",
            directory,
            len(failed) - 1,
            why,
        )
    return created


def _begin(disk: Disk, directory: str, new: NewLog) -> File:
    disk.make_directory(directory)
    with _removed_on_error(disk, directory):
        return write_topic_id_unsynced(disk, directory, new.topic_id)


def _syncing(file: File, pool: Executor) -> Callable[[], object]:
    """Begins to sync `file` in `pool`. The returned function waits for that sync, or syncs the file itself where the
    system gives the pool no thread."""
    try:
        return pool.submit(file.fsync).result
    except RuntimeError:
        return file.fsync


def _finish(begun: _Begun) -> Log:
    services, directory, new, sync = begun
    with _removed_on_error(services.disk, directory):
        sync()
        return open_log(services, directory, new.topic, new.partition, new.config, clean=True).log


@contextlib.contextmanager
def _removed_on_error(disk: Disk, directory: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove_tree(directory)
        raise
