"""The metadata store in memory: one server, a connection for each process, and the faults of the connections.

Each connection has its own faults. It may be cut: then reads are refused, and writes have an unknown outcome (the write
takes effect, doesn't, or does a while later). Its watch may be slow, and its lease may end early. Each request takes
two latencies, and is applied between them in one instant, as etcd does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from ottla.metadata.store import (
    NO_LEASE,
    Attached,
    Change,
    Committed,
    Compacted,
    Entry,
    Guard,
    LeaseExpired,
    LeaseId,
    LeaseLeft,
    Put,
    Rejected,
    Revision,
    Snapshot,
    StoreUnavailable,
    UnknownOutcome,
    Write,
    check_transaction,
)

from .loop import SimulationLoop, Step

T = TypeVar("T")


class StoreState(NamedTuple):
    """The whole content of a store."""

    revision: int
    compacted: int
    entries: dict[str, Entry]
    history: tuple[Revision, ...]
    leases: dict[LeaseId, float]  # lease → time to live


class _Lease(NamedTuple):
    ttl_s: float
    ends_at: float
    expiry: Step


class StoreServer:
    """The server, which all connections share."""

    def __init__(self, loop: SimulationLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.counts: Counter[str] = Counter()
        self.revision = 1
        self.compacted = 0
        self.entries: dict[str, Entry] = {}
        self.history: list[Revision] = []
        self.observers: list[Callable[[Revision], None]] = []
        self.right: StoreState | None = None  # the right store's content, while another store is in its place
        self.trespasses: list[str] = []  # keys that were written to a wrong store
        self.latency_s = 0.001
        self.timeout_s = 5.0
        self._leases: dict[LeaseId, _Lease] = {}
        self._term = 1
        self._replacements = 0
        self._next_lease = 100
        self._connections: list[SimulatedStore] = []

    def connect(self, name: str = "") -> SimulatedStore:
        """A process's connection."""
        connection = SimulatedStore(self, name)
        self._connections.append(connection)
        return connection

    def disconnected(self, connection: SimulatedStore) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def compact(self, revision: int) -> None:
        """Forgets the revisions up to and including `revision`, as a compaction of etcd does."""
        self.compacted = max(self.compacted, revision)
        self.history = [past for past in self.history if past.revision > revision]
        self.counts["compactions"] += 1

    # ---- replacement by another store

    def copy(self) -> StoreState:
        """The present content."""
        leases = {lease: held.ttl_s for lease, held in self._leases.items()}
        return StoreState(self.revision, self.compacted, dict(self.entries), tuple(self.history), leases)

    def sent(self, change: Callable[[], T]) -> Callable[[], T]:
        """Binds `change` to the store that answers now. The returned function makes the change. If another store has
        replaced this store before the call, the function raises StoreUnavailable."""
        replacements = self._replacements

        def arrives() -> T:
            if self._replacements != replacements:
                raise StoreUnavailable("the connection has ended")
            return change()

        return arrives

    def replace(self, state: StoreState) -> None:
        """Lets another store answer from now on."""
        self.right = self.copy()
        self._hold(state)

    def put_back(self) -> None:
        """Lets the right store answer again. Its leases get their full time to live, as after a restart of etcd."""
        assert self.right is not None
        right, self.right = self.right, None
        self._hold(right)

    def _hold(self, state: StoreState) -> None:
        self._replacements += 1
        for held in self._leases.values():
            held.expiry.cancel()
        self._term += 1
        self.revision, self.compacted = state.revision, state.compacted
        self.entries, self.history = dict(state.entries), list(state.history)
        self._leases = {lease: self._hold_lease(lease, ttl_s) for lease, ttl_s in state.leases.items()}
        for connection in self._connections:
            connection.interrupted()

    # ---- requests, each applied in one instant

    def read(self, prefix: str) -> Snapshot:
        found = [entry for key, entry in sorted(self.entries.items()) if key.startswith(prefix)]
        return Snapshot(self.revision, tuple(found))

    def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        failed = {
            guard.key: self.entries.get(guard.key) for guard in guards if not guard.holds(self.entries.get(guard.key))
        }
        if failed:
            self.counts["rejected"] += 1
            return Rejected(failed)
        for write in writes:
            if isinstance(write, Put) and write.lease != NO_LEASE and write.lease not in self._leases:
                raise LeaseExpired(f"lease {write.lease} has ended")
        return Committed(self._write(writes))

    def grant(self, ttl_s: float) -> LeaseId:
        self._next_lease += 1
        lease = LeaseId(self._next_lease)
        self._leases[lease] = self._hold_lease(lease, ttl_s)
        return lease

    def keep_alive(self, lease: LeaseId) -> None:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseExpired(f"lease {lease} has ended")
        held.expiry.cancel()
        self._leases[lease] = self._hold_lease(lease, held.ttl_s)

    def lease_left(self, lease: LeaseId) -> LeaseLeft:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseExpired(f"lease {lease} has ended")
        left_s = held.ends_at - self.loop.time()
        return LeaseLeft(left_s, left_s + 0.001, self._term)

    def _hold_lease(self, lease: LeaseId, ttl_s: float) -> _Lease:
        return _Lease(ttl_s, self.loop.time() + ttl_s, self.loop.in_world(ttl_s, self._expired, lease))

    def revoke(self, lease: LeaseId) -> None:
        held = self._leases.pop(lease, None)
        if held is not None:
            held.expiry.cancel()
        gone = sorted(key for key, entry in self.entries.items() if entry.lease == lease != NO_LEASE)
        if gone:
            self._record([Change(key, None) for key in gone])

    def _expired(self, lease: LeaseId) -> None:
        self.counts["leases expired"] += 1
        self.revoke(lease)

    def _write(self, writes: Sequence[Write]) -> int:
        changes = []
        revision = self.revision + 1
        for write in writes:
            known = self.entries.get(write.key)
            if isinstance(write, Put):
                created = revision if known is None else known.create_revision
                changes.append(Change(write.key, Entry(write.key, write.value, revision, created, write.lease)))
            elif known is not None:
                changes.append(Change(write.key, None))
        return self._record(changes)

    def _record(self, changes: list[Change]) -> int:
        if not changes:
            return self.revision
        self.revision += 1
        for change in changes:
            if change.entry is None:
                self.entries.pop(change.key, None)
            else:
                self.entries[change.key] = change.entry
        revision = Revision(self.revision, tuple(changes))
        self.history.append(revision)
        if self.right is None:
            for observer in self.observers:
                observer(revision)
        else:
            self.trespasses += [change.key for change in changes if change.entry is not None]
        for connection in self._connections:
            connection.happened(revision)
        return self.revision


class SimulatedStore:
    """An `ottla.metadata.store.Store`: the connection of one process to the server."""

    def __init__(self, server: StoreServer, name: str) -> None:
        self.name = name
        self.cut = False
        self.unknown_chance = 0.0  # the probability that a write's outcome stays unknown
        self.watch_delay_s = 0.0
        self._server = server
        self._closed = False
        self._watches: dict[_Watch, None] = {}

    async def read(self, prefix: str = "") -> Snapshot:
        return await self._ask(lambda: self._server.read(prefix))

    async def watch(
        self, prefix: str, after_revision: int, attached: Attached | None = None
    ) -> AsyncGenerator[Revision, None]:
        server = self._server
        await self._reach()
        self._check_position(after_revision)
        watch = _Watch(prefix, after_revision)
        for revision in server.history:
            watch.offer(revision)
        self._watches[watch] = None
        try:
            if attached is not None:
                await attached()
            while not self._closed:
                if self.cut or watch.missed:
                    server.counts["watches cut"] += 1
                    watch.woken.clear()
                    await self._until_reached(watch)
                    self._check_position(watch.position)
                    if attached is not None:
                        await attached()
                    continue
                if watch.position < server.compacted:
                    raise Compacted(f"the changes after revision {watch.position} have been compacted")
                if not watch.queue:
                    watch.woken.clear()
                    await watch.woken.wait()
                    continue
                due, revision = watch.queue[0]
                pause = due + self.watch_delay_s - server.loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                    continue
                del watch.queue[0]
                if revision.revision > watch.position:
                    watch.position = revision.revision
                    yield revision
        finally:
            self._watches.pop(watch, None)

    def _check_position(self, position: int) -> None:
        if position < self._server.compacted:
            raise Compacted(f"the changes after revision {position} have been compacted")
        if position > self._server.revision:
            raise Compacted(f"the store's revision {self._server.revision} is before the watch's position {position}")

    async def _until_reached(self, watch: _Watch) -> None:
        """Waits until the server can be reached, and continues the watch after its last yielded revision. Raises
        StoreUnavailable after the time-out."""
        deadline = self._server.loop.time() + self._server.timeout_s
        while self.cut:
            if self._closed:
                return
            if self._server.loop.time() >= deadline:
                raise StoreUnavailable("the watch was cut")
            await asyncio.sleep(0.2)
        watch.queue.clear()
        watch.missed = False
        for revision in self._server.history:
            watch.offer(revision)

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        check_transaction(guards, writes)
        return await self._change(lambda: self._server.transact(guards, writes))

    async def grant(self, ttl_s: float) -> LeaseId:
        return await self._change(lambda: self._server.grant(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._ask(lambda: self._server.keep_alive(lease))

    async def lease_left(self, lease: LeaseId) -> LeaseLeft:
        return await self._ask(lambda: self._server.lease_left(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._change(lambda: self._server.revoke(lease))

    async def compact(self, revision: int) -> None:
        """Compacts the server's history. The contract tests of stores need this method."""
        self._server.compact(revision)

    async def close(self) -> None:
        self._closed = True
        for watch in self._watches:
            watch.woken.set()
        self._server.disconnected(self)

    def happened(self, revision: Revision) -> None:
        """Passes a new revision of the server on to this connection's watches."""
        for watch in self._watches:
            if self.cut or watch.missed:
                watch.missed = True
                continue
            watch.queue.append((self._server.loop.time() + self._latency(), _under(revision, watch.prefix)))
            if not watch.queue[-1][1].changes:
                watch.queue.pop()
            else:
                self._server.loop.in_world(0.0, watch.woken.set)

    def interrupted(self) -> None:
        """Interrupts this connection's watches, so that they have to be requested again."""
        for watch in self._watches:
            watch.missed = True
            watch.woken.set()

    def cut_off(self) -> None:
        """Cuts the connection to the server."""
        self.cut = True
        for watch in self._watches:
            watch.woken.set()

    # ---- requests

    def _latency(self) -> float:
        return self._server.latency_s * (0.5 + self._server.random.expovariate(2.0))

    async def _reach(self) -> None:
        """Waits until a request has reached the server. Raises StoreUnavailable if the connection is cut or closed."""
        if self._closed:
            raise StoreUnavailable("the connection is closed")
        await asyncio.sleep(self._latency())
        if self.cut:
            self._server.counts["unavailable"] += 1
            await asyncio.sleep(self._server.timeout_s)
            raise StoreUnavailable("the store can't be reached")

    async def _ask(self, question: Callable[[], T]) -> T:
        await self._reach()
        answer = question()
        await asyncio.sleep(self._latency())
        if self.cut:
            await asyncio.sleep(self._server.timeout_s)
            raise StoreUnavailable("no answer came")
        return answer

    async def _change(self, change: Callable[[], T]) -> T:
        server = self._server
        if self._closed:
            raise StoreUnavailable("the connection is closed")
        if self.cut and server.random.random() < 0.5:
            server.counts["unavailable"] += 1
            await asyncio.sleep(server.timeout_s * server.random.random())
            raise StoreUnavailable("the store can't be reached")
        if self.cut or (self.unknown_chance and server.random.random() < self.unknown_chance):
            kind = server.random.choice(("done", "not done", "done later"))
            server.counts[f"unknown outcome: {kind}"] += 1
            if kind == "done":
                _quietly(change)
            elif kind == "done later":
                late = server.timeout_s + server.random.expovariate(1.0)
                server.loop.in_world(late, _quietly, server.sent(change))
            await asyncio.sleep(server.timeout_s)
            raise UnknownOutcome("no answer came")
        applied: asyncio.Future[T] = server.loop.create_future()
        change = server.sent(change)
        server.loop.in_world(self._latency(), _apply, change, applied)  # even if the requesting process dies meanwhile
        answer = await applied
        await asyncio.sleep(self._latency())
        if self.cut:
            server.counts["unknown outcome: done"] += 1
            await asyncio.sleep(server.timeout_s)
            raise UnknownOutcome("no answer came")
        return answer


class _Watch:
    """The revisions that one watch still has to yield."""

    def __init__(self, prefix: str, position: int) -> None:
        self.prefix = prefix
        self.position = position
        self.queue: list[tuple[float, Revision]] = []
        self.missed = False  # whether it missed revisions while it was cut
        self.woken = asyncio.Event()

    def offer(self, revision: Revision) -> None:
        """Adds a revision from the server's history, unless it is older than the watch's position or changes none of
        the watch's keys.
        """
        if revision.revision > self.position and (seen := _under(revision, self.prefix)).changes:
            self.queue.append((0.0, seen))


def _under(revision: Revision, prefix: str) -> Revision:
    if not prefix:
        return revision
    return Revision(revision.revision, tuple(change for change in revision.changes if change.key.startswith(prefix)))


def _apply(change: Callable[[], T], applied: asyncio.Future[T]) -> None:
    try:
        answer = change()
    except (LeaseExpired, StoreUnavailable) as error:
        if not applied.done():
            applied.set_exception(error)
    else:
        if not applied.done():
            applied.set_result(answer)


def _quietly(change: Callable[[], Any]) -> None:
    """Applies a write whose client doesn't learn the outcome."""
    with contextlib.suppress(LeaseExpired, StoreUnavailable):
        change()
