"""The operator's queue of work: keys of resources to reconcile, without duplicates, each by one task at a time.

Events only add a key. What has to be done follows from the state at the time of the reconcile. So nothing is lost if
several events cause one reconcile, and nothing breaks if an event comes twice. A key whose reconcile failed comes again
after a growing pause. A key whose reconcile succeeded comes again when the reconcile has asked for it, or at the
resync. A key whose resource is gone doesn't come again.

Idea: the work queues of Kubernetes' own controllers (client-go `workqueue`).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import traceback
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Protocol

from ottla.operator.objects import Ref

logger = logging.getLogger(__name__)

RESYNC_S = 120.0
RECONCILE_S_MAX = 120.0
PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a reconcile. `requeue_after`: the seconds until the resource is reconciled again at the latest;
    None if the resync is early enough."""

    requeue_after: float | None = None
    gone: bool = False  # the resource doesn't exist any more, and nothing is left to do for it
    failure: str = ""  # why a part of the reconcile wasn't done, although the rest was


class Reconciler(Protocol):
    """Brings one kind of resource to what its spec says."""

    async def reconcile(self, key: Ref) -> Result:
        """Takes the next steps for one resource. After any exception, the queue calls this again."""


class Retry(Exception):
    """Something doesn't exist yet or can't be reached: the reconcile is tried again, and no stack trace is logged."""

    invalid = False  # whether Kubernetes finds an object invalid as it is, so that only another spec helps


def why(error: BaseException) -> str:
    """An error's text, or the name of its type if it has no text (TimeoutError has none)."""
    return str(error) or type(error).__name__


Tell = Callable[[str, str], Awaitable[None]]
"""Writes an Event about the resource, from the Event's reason and message."""


# A reconcile without changes takes hundredths of a second; one that asks slow brokers for many things takes seconds.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, RECONCILE_S_MAX)


@dataclass(slots=True)
class Counters:
    """The numbers that the metrics page shows about a queue."""

    errors: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))  # the last: above all bounds
    failing: dict[Ref, int] = field(default_factory=dict)  # key → failures in a row

    @property
    def reconciles(self) -> int:
        """How many reconciles there were, failed ones included."""
        return sum(self.buckets)

    def took(self, seconds: float) -> None:
        """Counts a reconcile that has ended after so many seconds."""
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1


class Queue:
    """The keys of one kind, and the tasks that reconcile them."""

    def __init__(
        self,
        kind: str,
        reconciler: Reconciler,
        workers: int = 4,
        clock: Callable[[], float] = monotonic,
        *,
        of: str = "",
    ) -> None:
        """`of`: what a key names, for the log; by default a resource of the kind."""
        self.kind = kind
        self._of = of or kind
        self.counters = Counters()
        self._reconciler = reconciler
        self._workers = workers
        self._clock = clock
        self._due: dict[Ref, float] = {}
        self._heap: list[tuple[float, int, Ref]] = []
        self._order = count()
        self._running: dict[Ref, asyncio.Task[None]] = {}
        self._again: dict[Ref, float] = {}  # key → when it is due: keys that were added while they were reconciled
        self._said: dict[Ref, str] = {}  # key → why its last reconcile failed
        self._wake = asyncio.Event()

    def add(self, key: Ref, after: float = 0.0) -> None:
        """Has a key reconciled `after` seconds from now, or earlier if it is due earlier already."""
        due = self._clock() + after
        if key in self._running:
            self._again[key] = min(due, self._again.get(key, due))
        elif due < self._due.get(key, due + 1):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._wake.set()

    @property
    def depth(self) -> int:
        """How many keys are due or being reconciled; keys that are due later don't count."""
        now = self._clock()
        return len(self._running) + sum(due <= now for due in self._due.values())

    async def run(self) -> None:
        """Reconciles keys until cancelled; reconciles that are running then are cancelled, too."""
        try:
            while True:
                self._start_due()
                wait = self._seconds_until_next()
                self._wake.clear()
                try:
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _start_due(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now and len(self._running) < self._workers:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # the key was added again with an earlier time
            del self._due[key]
            self._running[key] = asyncio.get_running_loop().create_task(self._reconcile(key), name=f"{self.kind} {key}")

    def _seconds_until_next(self) -> float | None:
        if not self._heap or len(self._running) >= self._workers:
            return None
        return max(0.0, self._heap[0][0] - self._clock())

    async def _reconcile(self, key: Ref) -> None:
        started = self._clock()
        after: float | None = None
        try:
            async with asyncio.timeout(RECONCILE_S_MAX):
                result = await self._reconciler.reconcile(key)
            if not result.gone:
                after = RESYNC_S if result.requeue_after is None else result.requeue_after
            if result.failure:
                self._counted(key, result.failure)
                after = min(self._pause(key), RESYNC_S if after is None else after)
            else:
                self.counters.failing.pop(key, None)
                self._said.pop(key, None)
        except Exception as error:
            after = self._failed(key, error)
        finally:
            self.counters.took(self._clock() - started)
            del self._running[key]
            again = self._again.pop(key, None)
            if after is not None:
                self.add(key, after)
            if again is not None:
                self.add(key, max(0.0, again - self._clock()))
            self._wake.set()

    def _failed(self, key: Ref, error: Exception) -> float:
        """Counts and logs a failure. Returns the pause before the next attempt, in seconds."""
        said = self._counted(key, str(error))
        pause = self._pause(key)
        if isinstance(error, Retry | TimeoutError):
            text = str(error) or "it took too long"
        else:
            text = "".join(traceback.format_exception(error))
        # The same failure again is logged at DEBUG only: a line for each attempt would hide all other lines.
        level = logging.DEBUG if said == str(error) else logging.WARNING
        logger.log(level, "%s %s: %s; again in %.1f s", self._of, key, text, pause)
        return pause

    def _counted(self, key: Ref, message: str) -> str | None:
        """Counts a failure. Returns the message of the attempt before this one, if that attempt failed, too."""
        self.counters.failing[key] = self.counters.failing.get(key, 0) + 1
        self.counters.errors += 1
        said, self._said[key] = self._said.get(key), message
        return said

    def _pause(self, key: Ref) -> float:
        """The pause before the next attempt, in seconds: it doubles with each failure in a row, up to a maximum."""
        return min(PAUSE_S_MIN * 2.0 ** min(self.counters.failing[key] - 1, 16), PAUSE_S_MAX)
