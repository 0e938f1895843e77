"""New logs: a directory each, with whose it is and an empty segment.

Whose it is (`partition.metadata`) is on the disk before anything else is made. Many are made by one thread, which does
all but the syncs: those run side by side, which takes the disk a fifth of the time, and what else there is to do would
in many threads take turn after turn from the event loop.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple
from uuid import UUID

from .checkpoints import write_topic_id_unsynced
from .config import LogConfig
from .directory_services import DirectoryServices
from .disk import Disk, File
from .log import Log
from .recovery import open_log

logger = logging.getLogger(__name__)


class NewLog(NamedTuple):
    """A partition that is to have a log here."""

    topic: str
    partition: int
    topic_id: UUID
    config: LogConfig


class _Begun(NamedTuple):
    """A directory with nothing in it but whose it is; `sync` returns when that is on the disk, or raises OSError."""

    services: DirectoryServices
    directory: str
    new: NewLog
    sync: Callable[[], object]


def create(services: DirectoryServices, directory: str, new: NewLog) -> Log:
    """A log in a directory that doesn't exist yet, and doesn't afterwards where it couldn't be made. Blocks.

    Raises OSError.
    """
    identity = _begin(services.disk, directory, new)
    return _finish(_Begun(services, directory, new, identity.fsync))


def create_all(
    wanted: Iterable[tuple[DirectoryServices, str, NewLog]], pool: Executor, syncs: int
) -> list[tuple[NewLog, Log]]:
    """Logs in their directories, with `syncs` syncs at a time in `pool`; after the first that can't be begun, no more
    are. Blocks.

    A directory that exists is left as it is: what that is has to be found out first.
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
        logger.warning("%s can't be created ahead (nor %d others): %s", directory, len(failed) - 1, why)
    return created


def _begin(disk: Disk, directory: str, new: NewLog) -> File:
    disk.make_directory(directory)
    with _removed_on_error(disk, directory):
        return write_topic_id_unsynced(disk, directory, new.topic_id)


def _syncing(file: File, pool: Executor) -> Callable[[], object]:
    """Waits for the sync that this begins; syncs itself where the system gives no thread for it."""
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
