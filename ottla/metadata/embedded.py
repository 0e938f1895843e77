"""The metadata store of one machine, without etcd: a SQLite file that the machine's processes share.

One worker thread per process makes all calls that block (`tables.py`); the event loop only exchanges messages with
the thread. Transactions that wait for the worker at the same time share one sync of the disk, each with its own guards
and its own revision. Watches get this process's own changes immediately. To notice other processes' changes, the worker
reads SQLite's data version, which takes a few microseconds. It does so every `poll_interval_s`, and less often while no
other process has the file open.

Before each transaction and at each poll, the worker checks whether the file was removed, or replaced by another file of
the same name. If so, other processes wouldn't see any writes to the open file. So from then on the store refuses all
calls, and its watches end with ForeignStore.

If a caller gives up a call before the worker has begun it, the call is dropped and isn't carried out later. Only a call
that the worker has begun can have an unknown outcome.

A process that is suspended (SIGSTOP) in the middle of a write keeps the file locked: other processes can't write until
that process continues or dies. This is a limit of a shared file, and one reason why a cluster on several machines uses
etcd.

Numbered argument that a watch yields every revision exactly once: (1) the worker alone reads changes, always from
`_delivered` on, in revision order, and moves `_delivered` as it posts them to the loop; (2) a new watch's backlog is
read up to `_delivered` by the worker too, and posted in the same order; (3) the loop runs posted callbacks in that
order.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from .store import (
    Attached,
    Change,
    Committed,
    Compacted,
    ForeignStore,
    Guard,
    LeaseExpired,
    LeaseId,
    LeaseLeft,
    Rejected,
    Revision,
    Snapshot,
    StoreUnavailable,
    UnknownOutcome,
    Write,
    check_transaction,
)
from .tables import Tables

logger = logging.getLogger(__name__)

_GROUP_MAX = 64  # the largest number of transactions that share one sync of the disk
_PENDING_MAX = 100_000
_WATCH_QUEUE_MAX = 100_000
_LEASE_CHECK_S = 0.25


@dataclass(slots=True)
class _Job:
    """A call that the worker is to make. `transactional` jobs that wait at the same time share one transaction."""

    run: Callable[[], Any]
    future: asyncio.Future[Any] | concurrent.futures.Future[Any]  # for a caller on the event loop or in another thread
    transactional: bool = False
    durable: bool = True
    taken: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        """Takes the job. Returns False if it has been taken already.

        The worker takes a job before it carries the job out. The caller that queued the job takes it to drop it.
        """
        return self.taken.acquire(blocking=False)


@dataclass(slots=True, eq=False)
class _Watch:
    prefix: str
    after_revision: int
    queue: asyncio.Queue[Revision | None] = field(default_factory=lambda: asyncio.Queue(_WATCH_QUEUE_MAX))
    compacted: bool = False
    foreign: ForeignStore | None = None
    ended: bool = False  # the watch has no reader any more


class EmbeddedStore:
    """A `Store` over a SQLite file, which `open` opens. It belongs to the event loop in which it was opened."""

    def __init__(self, tables: Tables, poll_interval_s: float, timeout_s: float) -> None:
        self._tables = tables
        self._poll_interval_s = poll_interval_s
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_PENDING_MAX)
        self._watches: set[_Watch] = set()
        self._watched = False  # whether there has been a watch; without one the worker needn't look for changes
        self._closed = False
        # The worker alone uses these:
        self._delivered = tables.revision()
        self._data_version = -1
        self._wrote = False  # whether the worker has written changes that the watches haven't got yet
        self._leases_checked_at = 0.0
        self._alone = False
        self._worker = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._worker.start()

    @classmethod
    async def open(cls, path: Path, *, poll_interval_s: float = 0.02, timeout_s: float = 10.0) -> Self:
        """Opens or creates the file. Raises StoreUnavailable."""
        tables = await asyncio.to_thread(Tables, path, _monotonic_ms)
        return cls(tables, poll_interval_s, timeout_s)

    async def read(self, prefix: str = "") -> Snapshot:
        """See `Store.read`."""
        snapshot: Snapshot = await self._ask(lambda: self._tables.read(prefix))
        return snapshot

    async def watch(
        self, prefix: str, after_revision: int, attached: Attached | None = None
    ) -> AsyncGenerator[Revision, None]:
        """See `Store.watch`. A reader that falls 100,000 revisions behind gets Compacted."""
        watch = _Watch(prefix, after_revision)
        try:
            await self._ask(lambda: self._subscribe(watch))
            if attached is not None:
                await attached()
            while True:
                revision = await watch.queue.get()
                if watch.foreign is not None:
                    raise watch.foreign
                if watch.compacted:
                    raise Compacted("the watch's reader is too many revisions behind")
                if revision is None:
                    return
                yield revision
        finally:
            watch.ended = True
            self._watches.discard(watch)

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """See `Store.transact`."""
        check_transaction(guards, writes)
        result: Committed | Rejected = await self._ask(
            lambda: self._tables.transact(guards, writes), transactional=True, late=UnknownOutcome
        )
        return result

    async def grant(self, ttl_s: float) -> LeaseId:
        """See `Store.grant`."""
        lease: LeaseId = await self._ask(lambda: self._tables.grant(ttl_s), transactional=True, durable=False)
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        """See `Store.keep_alive`."""
        await self._ask(lambda: self._tables.keep_alive(lease), transactional=True, durable=False)

    async def lease_left(self, lease: LeaseId) -> LeaseLeft:
        """See `Store.lease_left`."""
        left: LeaseLeft = await self._ask(lambda: self._tables.lease_left(lease))
        return left

    def lease_line(self) -> _LeaseLine:
        """See `Store.lease_line`."""
        return _LeaseLine(self._jobs, self._tables)

    async def revoke(self, lease: LeaseId) -> None:
        """See `Store.revoke`."""
        await self._ask(lambda: self._tables.revoke(lease), transactional=True, late=UnknownOutcome)

    async def compact(self, revision: int) -> None:
        """Forgets the history up to `revision`: watches that still need it get Compacted."""
        await self._ask(lambda: self._tables.compact(revision), transactional=True)

    async def close(self) -> None:
        """See `Store.close`. This process's leases end as soon as another process checks their owners."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._worker.join)
        for watch in self._watches:
            _offer(watch, None)

    async def _ask(
        self,
        run: Callable[[], Any],
        *,
        transactional: bool = False,
        durable: bool = True,
        late: type[Exception] = StoreUnavailable,
    ) -> Any:
        if self._closed:
            raise StoreUnavailable("the metadata store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        job = _Job(run, future, transactional, durable)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise StoreUnavailable("too many calls wait for the metadata file") from None
        try:
            # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the result.
            async with asyncio.timeout(self._timeout_s):
                return await future
        except TimeoutError:
            if not future.cancelled():  # the answer had come, but the event loop had no time for it until now
                return future.result()
            if job.take():
                raise StoreUnavailable(
                    f"the metadata file was locked or busy for {self._timeout_s:g} s: nothing was read or written"
                ) from None
            raise late(f"the metadata file didn't answer within {self._timeout_s:g} s") from None
        finally:
            job.take()  # if the caller was cancelled, its job is dropped

    # The methods below run in the worker's thread.

    def _run(self) -> None:
        trouble = ""
        try:
            while True:
                jobs = self._next_jobs()
                if jobs is None:
                    return
                self._perform(jobs)
                try:
                    self._tables.check_in_place()
                    self._deliver_changes()
                    self._end_overdue_leases()
                except ForeignStore as error:
                    self._post(partial(self._lose_watches, error))
                except (sqlite3.Error, OSError, StoreUnavailable, UnknownOutcome) as error:
                    if trouble != str(error):
                        trouble = str(error)
                        logger.warning("the metadata file can't be used, and is tried again: %s", trouble)
                else:
                    if trouble:
                        logger.warning("the metadata file works again")
                    trouble = ""
        finally:
            self._tables.close()
            self._refuse_pending()

    def _next_jobs(self) -> list[_Job] | None:
        """The queued jobs; an empty list if none has come within the poll interval; None when the store closes."""
        jobs: list[_Job] = []
        try:
            polling = self._watched and not self._alone
            job = self._jobs.get(timeout=self._poll_interval_s if polling else _LEASE_CHECK_S)
            while job is not None:
                jobs.append(job)
                if len(jobs) == _GROUP_MAX:
                    return jobs
                job = self._jobs.get_nowait()
        except queue.Empty:
            return jobs
        if jobs:
            self._jobs.put(None)
            return jobs
        return None

    def _perform(self, jobs: list[_Job]) -> None:
        start = 0
        while start < len(jobs):
            end = start + 1
            if not jobs[start].transactional:
                if jobs[start].take():
                    result, error = _attempt(jobs[start].run)
                    if isinstance(error, sqlite3.Error):
                        error = StoreUnavailable(f"the metadata file can't be read: {error}")
                    self._settle([(jobs[start], result, error)])
            else:
                while end < len(jobs) and jobs[end].transactional:
                    end += 1
                self._perform_together(jobs[start:end])
            start = end

    def _perform_together(self, jobs: list[_Job]) -> None:
        outcomes: list[tuple[_Job, Any, Exception | None]] = []
        try:
            with self._tables.transaction(durable=any(job.durable for job in jobs)):
                self._tables.end_leases(check_owners=False)
                for job in jobs:
                    if not job.take():
                        continue
                    result, error = _attempt(job.run)
                    if error is not None and not isinstance(error, LeaseExpired):
                        raise error  # the job may have made half of its writes, so the group isn't committed
                    outcomes.append((job, result, error))
        except Exception as error:  # every caller of the group gets the error, whichever it is
            outcomes = [(job, None, error) for job in jobs]
        self._settle(outcomes)
        self._wrote = True

    def _settle(self, outcomes: list[tuple[_Job, Any, Exception | None]]) -> None:
        of_loop = []
        for outcome in outcomes:
            if isinstance(outcome[0].future, asyncio.Future):
                of_loop.append(outcome)
            else:  # a caller in another thread gets its answer even while the event loop is blocked
                _set(*outcome)

        def on_loop() -> None:
            for outcome in of_loop:
                _set(*outcome)

        if of_loop:
            self._post(on_loop)

    def _subscribe(self, watch: _Watch) -> None:
        self._deliver_revisions()
        backlog: list[Revision] = []
        after = watch.after_revision
        while after < self._delivered:
            page = self._tables.changes_after(after)
            if not page:
                break
            backlog.extend(page)
            after = page[-1].revision
        backlog = [revision for revision in backlog if revision.revision <= self._delivered]
        self._watched = True

        def on_loop() -> None:
            if watch.ended:  # the watch's reader has gone meanwhile
                return
            self._watches.add(watch)
            for revision in backlog:
                _offer(watch, revision)

        self._post(on_loop)

    def _deliver_changes(self) -> None:
        """Passes the changes that this process and others have committed to the watches. After an error, the worker
        calls it again."""
        if not self._watched:
            return
        version = self._tables.data_version()
        if self._wrote or version != self._data_version:
            self._deliver_revisions()
            self._wrote, self._data_version = False, version

    def _deliver_revisions(self) -> None:
        try:
            while revisions := self._tables.changes_after(self._delivered):
                self._delivered = revisions[-1].revision
                self._post(partial(self._offer_all, revisions))
        except Compacted:
            self._delivered = self._tables.revision()
            self._post(partial(self._lose_watches, None))

    def _end_overdue_leases(self) -> None:
        now = time.monotonic()
        if now - self._leases_checked_at < _LEASE_CHECK_S:
            return
        self._leases_checked_at = now
        self._alone = self._tables.alone()
        if self._tables.overdue_leases():
            with self._tables.transaction():
                self._tables.end_leases()
            self._wrote = True
            self._deliver_changes()

    def _refuse_pending(self) -> None:
        outcomes: list[tuple[_Job, Any, Exception | None]] = []
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                outcomes.append((job, None, StoreUnavailable("the metadata store is closed")))
        self._settle(outcomes)

    def _offer_all(self, revisions: list[Revision]) -> None:
        for watch in self._watches:
            for revision in revisions:
                _offer(watch, revision)

    def _lose_watches(self, foreign: ForeignStore | None) -> None:
        for watch in self._watches:
            watch.compacted, watch.foreign = True, foreign
            _offer(watch, None)

    def _post(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("the event loop ended before the metadata store was closed")


class _LeaseLine:
    """A `LeaseLine` to the store's worker thread. It needs no event loop."""

    def __init__(self, jobs: queue.Queue[_Job | None], tables: Tables) -> None:
        self._jobs = jobs
        self._tables = tables

    def keep_alive(self, lease: LeaseId, timeout_s: float) -> None:
        """See `LeaseLine.keep_alive`."""
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        job = _Job(lambda: self._tables.keep_alive(lease), answer, transactional=True, durable=False)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise StoreUnavailable("too many calls wait for the metadata file") from None
        try:
            answer.result(timeout_s)
        except concurrent.futures.TimeoutError:
            job.take()
            raise StoreUnavailable(f"the metadata file didn't answer within {timeout_s:g} s") from None

    def close(self) -> None:
        """See `LeaseLine.close`."""


def _set(job: _Job, result: Any, error: Exception | None) -> None:
    if job.future.done():
        return
    if error is None:
        job.future.set_result(result)
    else:
        job.future.set_exception(error)


def _attempt(run: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return run(), None
    except Exception as error:  # the error is passed to the caller, and mustn't end the worker
        return None, error


def _offer(watch: _Watch, revision: Revision | None) -> None:
    """Queues the changes of `revision` under the watch's prefix. If the queue is full, the reader gets Compacted."""
    if watch.queue.full():
        watch.compacted = True
        return
    if revision is None:
        watch.queue.put_nowait(None)
        return
    if revision.revision <= watch.after_revision:
        return
    changes: tuple[Change, ...] = revision.changes
    if watch.prefix:
        changes = tuple(change for change in changes if change.key.startswith(watch.prefix))
    if changes:
        watch.queue.put_nowait(Revision(revision.revision, changes))


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
