"""Compacts logs one after the other: chooses the dirtiest log, runs a child process for it, swaps the result in.

The choice and the swaps happen on the event loop and take microseconds. The child reads and writes the segments; the
thread that waits for the child encodes the log's producers for it. If the log was truncated or lost segments meanwhile,
the new segments that should replace these are dropped. A try that fails (no room, a file too large, a killed child)
leaves no file behind and is repeated, after a pause that doubles each time; only a log whose data is damaged isn't
compacted until the next start. Source: Kafka's LogCleaner and LogCleanerManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from ottla.protocol.unpacking import MAX_BYTES
from ottla.storage import names
from ottla.storage.indexes import AbortedTransaction

from .compaction import Cleanable, SegmentSizes, cleanable
from .compaction_child import DAMAGED_STATUS, Damaged, Job, Result, decode_damage, decode_result, encode_job
from .config import MAX_LONG
from .directories import LogDirectories
from .log import Log
from .pauses import with_pauses
from .producers import FrozenProducers
from .segment import Sizes

logger = logging.getLogger(__name__)

_BYTES_PER_KEY = 128  # bytes of a child's memory that a key takes
_LOGS_PER_TURN = 50
_NICE = 5  # by how much a child's priority is lower than the broker's
_DYING_S = 5.0  # how long the broker's stop waits for a killed child
_DOUBLINGS_MAX = 6  # how often the pause after a failure doubles: up to a quarter of an hour by default
_DUTY = "compaction"


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """The limits of compaction, by Kafka's settings."""

    bytes_per_second: float = float("inf")  # log.cleaner.io.max.bytes.per.second
    dedupe_buffer_bytes: int = 128 << 20  # log.cleaner.dedupe.buffer.size
    backoff_ms: int = 15_000  # log.cleaner.backoff.ms


class CompactionFailed(Exception):
    """The child couldn't compact a log, for the reason that it printed; another try may succeed."""


class _Failures(NamedTuple):
    """How many tries in a row have failed for a log, and the time (by the loop's clock) of the next one."""

    in_a_row: int
    again_at: float


class Compactor:
    """The compaction of one broker's logs. The owner runs `run` as a task."""

    def __init__(self, logs: LogDirectories, now_ms: Callable[[], int], limits: CompactionLimits) -> None:
        self.limits = limits
        self.compacted = 0  # how many logs were compacted since the broker's start
        self.too_large = 0  # batches that all rounds so far left unchanged because of their size
        self._logs = logs
        self._now_ms = now_ms
        self._damaged: dict[Log, Damaged] = {}
        self._failures: dict[Log, _Failures] = {}
        self._executor = ThreadPoolExecutor(1, "compaction")

    async def run(self) -> None:
        """Compacts the logs that are dirty enough, until cancelled, which also ends a running child."""
        while True:
            log, what = await self.choose()
            if log is None or what is None:
                await asyncio.sleep(self.limits.backoff_ms / 1000)
                continue
            try:
                await self.compact(log, what)
            except Damaged as damage:
                if not log.retired:
                    self._damaged[log] = damage
                    logger.error("%r isn't compacted any more until the next start: %s", log, damage)
            except Exception as error:  # an unexpected error of one log must not end the others' compaction
                self._failed(log, error)
            else:
                self._failures.pop(log, None)
                self._logs.troubles.over(_DUTY, log)

    def uncleanable(self) -> list[Log]:
        """The broker's logs that aren't compacted any more because of damage."""
        return [log for log, _ in self.damaged()]

    def damaged(self) -> Iterator[tuple[Log, Damaged]]:
        """As `uncleanable`, each log with its damage."""
        if self._damaged:
            for log in self._logs.logs.values():
                if (damage := self._damaged.get(log)) is not None:
                    yield log, damage

    def _failed(self, log: Log, error: Exception) -> None:
        """Notes a failed try that may succeed later, and the time of the next try."""
        if log.retired:
            return
        count = self._failures[log].in_a_row + 1 if log in self._failures else 1
        pause_s = self.limits.backoff_ms / 1000 * 2 ** min(count, _DOUBLINGS_MAX)
        self._failures[log] = _Failures(count, asyncio.get_running_loop().time() + pause_s)
        self._logs.troubles.met(_DUTY, log, error, expected=isinstance(error, (CompactionFailed, OSError)))

    async def choose(self) -> tuple[Log | None, Cleanable | None]:
        """The log to compact next: an overdue log, or else the log with the greatest dirty ratio; None where no log is
        dirty enough."""
        held = list(self._logs.logs.values())
        if self._damaged:
            self._damaged = {log: self._damaged[log] for log in held if log in self._damaged}
        if self._failures:
            self._failures = {log: self._failures[log] for log in held if log in self._failures}
        now = asyncio.get_running_loop().time()
        best: tuple[bool, float] = (False, 0.0)
        chosen: tuple[Log | None, Cleanable | None] = (None, None)
        left = 0  # how many logs this turn of the event loop may still look at
        for log in held:
            if left <= 0:
                await asyncio.sleep(0)
                left = _LOGS_PER_TURN
            left -= 1
            if not log.config.compacts or len(log.segments) < 2 or log in self._damaged:
                continue
            if log in self._failures and now < self._failures[log].again_at:
                continue
            try:
                what = self.cleanable(log)
            except OSError as error:
                log.directory_failed(error)
                continue
            except Exception as error:  # as in `run`
                self._failed(log, error)
                continue
            wanted = what.overdue or what.dirty_ratio > log.config.min_cleanable_dirty_ratio
            if wanted and what.end_offset > what.first_dirty and (what.overdue, what.dirty_ratio) > best:
                best = what.overdue, what.dirty_ratio
                chosen = log, what
        return chosen

    def cleanable(self, log: Log) -> Cleanable:
        """The part of a log that may be compacted now."""
        config = log.config
        high_watermark = self._logs.owner.high_watermark_of(log)
        unstable = log.producers.first_unstable_offset(high_watermark)
        return cleanable(
            _sizes(log, timestamps=config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < MAX_LONG),
            first_dirty=max(log.compacted_to, log.log_start_offset),
            stable_offset=high_watermark if unstable is None else min(high_watermark, unstable),
            now_ms=self._now_ms(),
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
        )

    async def compact(self, log: Log, what: Cleanable) -> None:
        """Compacts one log. Raises CompactionFailed, Damaged or OSError, and then leaves no new file."""
        job = self._job(log, what)
        try:
            await self._compact(log, job)
        except Exception:
            await asyncio.to_thread(self._drop_all, job.directory)
            raise

    async def _compact(self, log: Log, job: Job) -> None:
        generation = log.generation
        result = await self._in_child(job)
        whole = True
        for segment in result.segments:
            await asyncio.sleep(0)  # many files are renamed for each segment
            bases = {segment.base_offset for segment in log.segments}
            unchanged = log.generation == generation and log is self._current(log)
            if unchanged and bases.issuperset(segment.old_bases):
                try:
                    log.swap_in(segment.old_bases, Sizes(*segment.sizes))
                except OSError as error:  # some files may have been renamed, although the log has the old names
                    log.directory_failed(error)
                    raise
            else:
                self._drop(log, segment.old_bases[0])
                # If retention removed only the first old segments, the others are still dirty and need another round.
                whole = whole and set(segment.old_bases).isdisjoint(bases)
        if log.generation != generation or log is not self._current(log):
            return
        try:
            await asyncio.to_thread(self._logs.disk.fsync_directory, log.directory)
        except OSError as error:
            log.directory_failed(error)
            raise
        if not whole or log.generation != generation:
            return
        log.compacted_to = result.end_offset
        self.compacted += 1
        logger.info(
            "%r: compacted to offset %d, from %d to %d bytes",
            log, result.end_offset, result.bytes_before, result.bytes_after,
        )  # fmt: skip
        if result.too_large:
            self.too_large += result.too_large
            logger.warning(
                "%r: %d batches unpack to more than %d MiB: they and all tombstones behind them stay as they are",
                log, result.too_large, MAX_BYTES >> 20,
            )  # fmt: skip
        try:
            await asyncio.to_thread(self._logs.offset_files.write, self._logs.compacted_checkpoint(log))
        except OSError as error:  # later checkpoints include it; a start without it compacts the same part again
            log.directory_failed(error)

    def _current(self, log: Log) -> Log | None:
        """Returns `log`; None if the broker has deleted it, or taken it offline."""
        return log if any(log is held for held in self._logs.logs.values()) else None

    def _job(self, log: Log, what: Cleanable) -> Job:
        config = log.config
        return Job(
            directory=log.directory,
            segments=[
                list(sizes[:4]) for sizes in _sizes(log, timestamps=False) if sizes.end_offset <= what.end_offset
            ],
            first_dirty=what.first_dirty,
            end_offset=what.end_offset,
            now_ms=self._now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            aborted=_ending_later(log, what.end_offset),
            producers=_last_writes(log.producers.freeze()),
            keys_max=max(self.limits.dedupe_buffer_bytes // _BYTES_PER_KEY, 1),
            bytes_per_second=self.limits.bytes_per_second,
        )

    async def _in_child(self, job: Job) -> Result:
        child = _Child()
        running = asyncio.get_running_loop().run_in_executor(self._executor, child.run, with_pauses(encode_job(job)))
        try:
            status, output, errors = await asyncio.shield(running)
        except asyncio.CancelledError:
            child.give_up()
            await asyncio.wait([running], timeout=_DYING_S)
            raise
        if status != 0:
            if status == DAMAGED_STATUS:
                raise decode_damage(output)
            said = errors.decode(errors="replace").strip()[-500:]
            raise CompactionFailed(said or _ending(status))
        return decode_result(output)

    def _drop(self, log: Log, base_offset: int) -> None:
        for suffix in names.SEGMENT_SUFFIXES:
            self._logs.disk.remove(f"{log.directory}/{names.offset_name(base_offset, suffix)}{names.CLEANED}")

    def _drop_all(self, directory: str) -> None:
        """Removes the files that a failed try has written. Blocks."""
        disk = self._logs.disk
        with contextlib.suppress(OSError):  # the log was removed, or its disk fails: a start removes the files, too
            for entry in disk.list(directory):
                if entry.name.endswith((names.CLEANED, names.CLEANED + ".tmp")):
                    disk.remove(f"{directory}/{entry.name}")


class _Child:
    """The child process. A thread starts it and waits for it, because uvloop would fork on the event loop and block the
    loop for 6 ms even with a small broker's memory. A start in a thread blocks the loop for some tenths of a
    millisecond, in which vfork holds the interpreter's lock."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up = False

    def run(self, lines: Iterable[bytes]) -> tuple[int, bytes, bytes]:
        """The child's exit status, standard output and standard error. Blocks. Raises OSError; CompactionFailed where
        the child was given up before it began."""
        told = b"".join(takewhile(lambda _: not self._given_up, lines))
        with self._starting:
            if self._given_up:
                raise CompactionFailed("the compaction was given up before it began")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # nothing is imported from the broker's working directory
                    "-m",
                    "ottla.broker.log.compaction_child",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        with self._process as process:
            with contextlib.suppress(OSError):  # where the system forbids it, the child has the broker's priority
                os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
            output, errors = process.communicate(told)
        return process.returncode, output, errors

    def give_up(self) -> None:
        """Kills the child if it runs; otherwise it will never start. Waits for a start that is under way, so that no
        child is left running."""
        with self._starting:
            self._given_up = True
            if self._process is not None:
                self._process.kill()


def _last_writes(producers: FrozenProducers) -> Iterator[tuple[int, int, int]]:
    """(id, last data offset, epoch) of each producer, read as the caller iterates, in the caller's thread."""
    for producer_id, entry in producers.items():
        yield producer_id, entry.last_offset, entry.epoch


def _ending_later(log: Log, end_offset: int) -> list[list[int]]:
    """The aborted transactions that began below `end_offset`, and whose markers aren't below it; as lists, for JSON."""
    found: list[AbortedTransaction] = []
    for segment in log.segments_read(end_offset):
        if segment.aborted is not None and segment.aborted.find(end_offset, end_offset, found):
            break
    return [list(transaction) for transaction in found]


def _ending(status: int) -> str:
    """A sentence that says how a process ended, for a process that printed no message."""
    return f"the process was ended by signal {-status}" if status < 0 else f"the process ended with status {status}"


def _sizes(log: Log, *, timestamps: bool) -> list[SegmentSizes]:
    """The sizes of a log's segments. Timestamps may have to be read from disk, so they are included only with
    `timestamps`."""
    ends = [segment.base_offset for segment in log.segments[1:]] + [log.log_end_offset]
    return [
        SegmentSizes(
            segment.base_offset,
            end,
            segment.size,
            segment.offsets.size_bytes,
            segment.largest().timestamp if timestamps else -1,
        )
        for segment, end in zip(log.segments, ends, strict=True)
    ]
