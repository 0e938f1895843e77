"""A copy of a log in another log directory; it catches up while the log is read and written (KIP-113).

Files are copied unchanged, so that at the end of the move the log only has to be given the new paths. The event loop
determines which bytes the copy lacks (`next_pass`), and a thread copies them (`Pass.run`). The next pass copies the
changes since then: segments that grew, were rolled, compacted into others or deleted. A truncated log is copied anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from ottla.storage import names

from .disk import Disk, File
from .identity import write_topic_id_unsynced
from .log import Log
from .segment import Segment, Sizes

_PASS_BYTES = 64 << 20
_PASS_SEGMENTS = 32
_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_MIN = 4096


class TargetFailed(Exception):
    """The log directory of the copy failed; the exception's cause is the OSError."""


class Stretch(NamedTuple):
    """`size` bytes of `source` from `position` on, to be copied to the same position of the file `target`. With `anew`,
    `target` is first truncated to `position`."""

    source: File
    target: str
    position: int
    size: int
    anew: bool


class Pass(NamedTuple):
    """The files and bytes that are copied in one go. The copy then has all records below the offset `covered`."""

    disk: Disk
    stretches: list[Stretch]
    whole: list[tuple[str, str]]  # small files, where they exist: from → to
    unwanted: list[str]
    done: dict[Segment, Sizes]  # → the sizes of its files in the copy after the pass
    size: int
    covered: int
    generation: int

    def run(self, *, sync: bool, bytes_per_second: int, given_up: threading.Event) -> None:
        """Copies the files and bytes. Blocks, so that it runs in a thread unless `size` is small. Raises OSError where
        the log can't be read, TargetFailed where the copy can't be written."""
        with _of_target():
            for path in self.unwanted:
                self.disk.remove(path)
        for source, target in self.whole:
            with contextlib.suppress(FileNotFoundError):  # most segments have no such file, or it was deleted meanwhile
                content = self.disk.read(source)
                with _of_target():
                    self.disk.write_atomically(target, content, fsync=sync)
        for stretch in self.stretches:
            if given_up.is_set():
                return
            self._copy(stretch, bytes_per_second, given_up, sync)

    def _copy(self, stretch: Stretch, bytes_per_second: int, given_up: threading.Event, sync: bool) -> None:
        with _of_target():
            file = self.disk.open(stretch.target, create=True)
            if stretch.anew:
                file.truncate(stretch.position)
        chunk = max(min(_CHUNK_BYTES, bytes_per_second), _CHUNK_BYTES_MIN)
        position, end = stretch.position, stretch.position + stretch.size
        while position < end and not given_up.is_set():
            began = time.monotonic()
            data = stretch.source.pread(min(chunk, end - position), position)
            if not data:
                return  # truncated meanwhile: everything is copied anew
            with _of_target():
                file.pwrite(data, position)
            position += len(data)
            given_up.wait(max(len(data) / max(bytes_per_second, 1) - (time.monotonic() - began), 0))
        if sync:
            with _of_target():
                file.fsync()


class FutureLog:
    """The copy of `log` in `directory`; the constructor creates the directory (raises TargetFailed). Owned by the event
    loop."""

    def __init__(self, disk: Disk, log: Log, topic_id: UUID, directory: str) -> None:
        self.log = log
        self.directory = directory
        self.given_up = threading.Event()  # set to end a pass early
        self.log_end_offset = log.log_start_offset
        self.synced_end = log.segments[0].base_offset
        self._disk = disk
        self._generation = log.generation
        self._copied: dict[Segment, Sizes] = {}
        self._snapshots: set[int] = set()
        with _of_target():
            disk.make_directory(directory)
            write_topic_id_unsynced(disk, directory, topic_id).fsync()
            disk.fsync_directory(directory)

    @property
    def size(self) -> int:
        """Bytes of the segments copied so far."""
        return sum(sizes.log for sizes in self._copied.values())

    def next_pass(self) -> Pass:
        """The next pass: the files and bytes that the log has and the copy lacks, up to a pass's limits. Raises OSError
        where the log can't be read."""
        log = self.log
        unwanted = self._forget_what_is_gone()
        whole = [
            (f"{log.directory}/{name}", f"{self.directory}/{name}")
            for offset in log.snapshots
            if offset not in self._snapshots
            for name in [names.offset_name(offset, names.PRODUCER_SNAPSHOT)]
        ]
        self._snapshots.update(log.snapshots)
        stretches: list[Stretch] = []
        done: dict[Segment, Sizes] = {}
        size, covered = 0, log.log_end_offset
        for segment in log.segments:
            aborted_bytes = 0 if segment.aborted is None else segment.aborted.stored_bytes
            sizes = Sizes(segment.size, segment.offsets.stored_bytes, segment.times.stored_bytes, aborted_bytes)
            before = self._copied.get(segment)
            if before == sizes:
                continue
            if size >= _PASS_BYTES or len(done) >= _PASS_SEGMENTS:
                covered = segment.base_offset
                break
            stretches += self._stretches(segment, sizes, before)
            done[segment] = sizes
            size += sizes.log - (before.log if before else 0)
        return Pass(self._disk, stretches, whole, unwanted, done, size, covered, log.generation)

    def copied(self, done: Pass, *, synced: bool) -> None:
        """Notes that a pass has run. If the log was truncated meanwhile, the pass doesn't count, and the next pass
        removes the files that this one wrote."""
        self._copied.update(done.done)
        if done.generation != self.log.generation:
            return
        self.log_end_offset = done.covered
        if synced:
            self.synced_end = done.covered

    def _stretches(self, segment: Segment, sizes: Sizes, before: Sizes | None) -> Iterator[Stretch]:
        suffixes = names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX
        files = segment.files()  # without a transaction index where there is none
        for suffix, file, size, had in zip(suffixes, files, sizes, before or (0, 0, 0, 0), strict=False):
            target = f"{self.directory}/{names.offset_name(segment.base_offset, suffix)}"
            if size > had or before is None:
                yield Stretch(file, target, had, size - had, before is None)
        if segment is not self.log.active:
            segment.let_go()  # the stretches keep the open files that they need

    def _forget_what_is_gone(self) -> list[str]:
        """Forgets the segments and snapshots that the log no longer has. Returns the paths of their copies."""
        log = self.log
        if log.generation != self._generation:
            self._generation = log.generation
            gone, self._copied = list(self._copied), {}
            snapshots, self._snapshots = self._snapshots, set()
            self.synced_end = log.segments[0].base_offset
        else:
            present = set(log.segments)
            gone = [segment for segment in self._copied if segment not in present]
            for segment in gone:
                del self._copied[segment]
            snapshots = self._snapshots.difference(log.snapshots)
            self._snapshots -= snapshots
        stale = [names.offset_name(offset, names.PRODUCER_SNAPSHOT) for offset in snapshots]
        stale += [names.offset_name(segment.base_offset, s) for segment in gone for s in names.SEGMENT_SUFFIXES]
        return [f"{self.directory}/{name}" for name in stale]


@contextlib.contextmanager
def _of_target() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetFailed from error
