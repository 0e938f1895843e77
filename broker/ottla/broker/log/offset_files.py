"""The offset checkpoints of the log directories: recovery points, log starts, high watermarks, compacted offsets.

The checkpoints' lines name a partition by topic and index, as Kafka's do, and not by topic id. So a line that outlived
its log would be applied, after a kill, to a new log of the same name: the new log's first records would count as
deleted, and its unsynced records as synced. Before a new log is created, the files are therefore written without the
line (Kafka writes them when a log is deleted), and an earlier content is never written over a later one. The line about
a log that couldn't be opened stays: without it, deleted records would reappear once the log can be opened.

The event loop renders the files, and threads write them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from ottla.storage import names
from ottla.storage.checkpoints import Offsets, parse_offsets, render_offsets

from .disk import Disk
from .log import Log

logger = logging.getLogger(__name__)

_FILES = (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.COMPACTED_OFFSETS)


class OffsetFile(NamedTuple):
    """The content to be written to a checkpoint. `turn` numbers the contents in the order in which they were
    rendered."""

    path: str
    content: bytes
    turn: int


class OffsetFiles:
    """Reads, renders and writes the checkpoints, and knows which partitions they may name."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._turn = 0
        self._on_disk: dict[str, dict[int, bytes]] = {}  # by path and turn: the contents that may be on the disk
        self._parsed: dict[int, frozenset[tuple[str, int]]] = {}  # by turn: the partitions in that content
        self._read: dict[str, Offsets] = {}  # by path: its offsets at the broker's start
        self._kept: dict[str, Offsets] = {}  # by path: lines about logs that couldn't be opened
        self._lock = threading.Lock()  # guards `_on_disk` and `_parsed`; held for moments only: the event loop waits
        self._writing = threading.Lock()

    def read(self, directory: str, name: str) -> Offsets:
        """The offsets of a checkpoint of a log directory; empty where the file is missing or damaged."""
        path = f"{directory}/{name}"
        content = self._disk.read(path) if self._disk.exists(path) else b""
        try:
            offsets = parse_offsets(content)
        except ValueError as error:
            logger.warning("checkpoint %s is damaged (%s); it counts as empty", path, error)
            return {}
        with self._lock:
            self._turn += 1
            self._on_disk[path] = {self._turn: content}
        self._read[path] = offsets
        return offsets

    def recovery_points(self, directory: str, logs: Sequence[Log]) -> list[OffsetFile]:
        """Three checkpoints of a directory's logs: their recovery points, the start offsets of logs that don't begin
        with their first segment, and how far they are compacted."""
        points = ((log.topic, log.index, log.recovery_point) for log in logs)
        starts = (
            (log.topic, log.index, log.log_start_offset)
            for log in logs
            if log.log_start_offset > log.segments[0].base_offset
        )
        return [
            self.rendered(directory, names.RECOVERY_POINTS, points),
            self.rendered(directory, names.LOG_STARTS, starts),
            self.compacted(directory, logs),
        ]

    def compacted(self, directory: str, logs: Iterable[Log]) -> OffsetFile:
        """The checkpoint of how far a directory's logs are compacted. It names the offset from before a truncation as
        long as a loss of power may undo the truncation."""
        ends = ((log, max(log.compacted_to, log.unsynced.compacted_to)) for log in logs)
        compacted = ((log.topic, log.index, end) for log, end in ends if end)
        return self.rendered(directory, names.COMPACTED_OFFSETS, compacted)

    def high_watermarks(self, directory: str, logs: Iterable[Log], of: Callable[[Log], int]) -> OffsetFile:
        """The checkpoint of the high watermarks of a directory's logs."""
        return self.rendered(directory, names.HIGH_WATERMARKS, ((log.topic, log.index, of(log)) for log in logs))

    def rendered(self, directory: str, name: str, offsets: Iterable[tuple[str, int, int]]) -> OffsetFile:
        """A checkpoint of (topic, partition, offset), to be written."""
        path = f"{directory}/{name}"
        kept = ((topic, index, offset) for (topic, index), offset in self._kept.get(path, {}).items())
        content = render_offsets(chain(offsets, kept))
        with self._lock:
            self._turn += 1
            self._on_disk.setdefault(path, {})[self._turn] = content
            return OffsetFile(path, content, self._turn)

    def keep(self, directory: str, partition: tuple[str, int]) -> None:
        """Keeps the lines about a log that couldn't be opened in the checkpoints of its log directory."""
        for path in (f"{directory}/{name}" for name in _FILES):
            if (offset := self._read.get(path, {}).get(partition)) is not None:
                self._kept.setdefault(path, {})[partition] = offset

    def forget(self, directory: str, partition: tuple[str, int]) -> None:
        """Undoes `keep` for a log that was opened or is gone."""
        for name in _FILES:
            self._kept.get(f"{directory}/{name}", {}).pop(partition, None)

    def write(self, file: OffsetFile) -> None:
        """Replaces a checkpoint, unless a later one has been written. Raises OSError. Blocks."""
        with self._writing:
            if file.turn not in self._on_disk[file.path]:
                return
            try:
                self._disk.write_atomically(file.path, file.content)
            except OSError:
                self._forget(file.path, lambda turn: turn == file.turn)
                raise
            self._forget(file.path, lambda turn: turn < file.turn)

    def _forget(self, path: str, gone: Callable[[int], bool]) -> None:
        """Forgets the contents of a checkpoint whose turns `gone` accepts: they aren't on the disk, and won't be
        written."""
        with self._lock:
            contents = self._on_disk[path]
            for turn in [turn for turn in contents if gone(turn)]:
                del contents[turn]
                self._parsed.pop(turn, None)

    def write_all(self, files: Iterable[OffsetFile]) -> None:
        """Replaces several checkpoints. Raises OSError. Blocks."""
        for file in files:
            self.write(file)

    def may_name(self, directory: str, topic: str, index: int) -> bool:
        """Whether a checkpoint of a log directory has a line about this partition, or may have one soon."""
        with self._lock:
            for name in _FILES:
                for turn, content in self._on_disk.get(f"{directory}/{name}", {}).items():
                    if turn not in self._parsed:
                        self._parsed[turn] = frozenset(parse_offsets(content))
                    if (topic, index) in self._parsed[turn]:
                        return True
        return False
