"""The metadata store as one process sees it: its own cluster's, or none.

A `Store` around another one, which finds out when that has become an empty, older or foreign one (`lineage.py` says by
what), and from then on refuses everything with the same sentence. Its owner waits for that (`refused`) and stops.

Numbered argument that nothing of a wrong store reaches the process, and nothing of the process a wrong store:

1. What is read: every snapshot of all keys is judged before it is returned. Each time that a watch has a new
   connection, a transaction without writes asks, before anything of that connection is yielded, whether the store has
   the last word that is known. It is linearizable, so a member of etcd that only lags behind isn't taken for an older
   store.
2. If something is known that is newer than that word, which the word can't vouch for, the watch's reader is told to
   take a new snapshot and to compare epochs (`Follower`).
3. What is written: every transaction compares the key that is named after the last known word, and the cluster's. On
   another store that guard fails at the instant of the write, however late the change of stores is noticed. On the
   same store it fails only if the controller has just written another word. The row of words is compared, too, so the
   rejection itself brings the row as it is now: where the known word stands in it, the transaction is sent again.
   Where it doesn't tell enough (a new row was begun), the store is asked, and judged.
4. A lease is kept alive or ended on whatever store is there. Neither can change what belongs to somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from . import keys
from .lineage import Known, guards_of, judge, row_of
from .model import Cluster, LineageRow
from .store import (
    Attached,
    Committed,
    Compacted,
    Entry,
    ForeignStore,
    Guard,
    LeaseId,
    LeaseLeft,
    LeaseLine,
    Rejected,
    Revision,
    Snapshot,
    Store,
    StoreRestored,
    StoreUnavailable,
    UnknownOutcome,
    Write,
)


class OwnStore:
    """A `Store`. `known` is what the process knows of its cluster's metadata, from before at first."""

    def __init__(self, store: Store, known: Known | None) -> None:
        self.known = known
        self.refusal: ForeignStore | None = None
        self._store = store
        self._joined = False  # the store was judged since the process began
        self._cluster: Cluster | None = None
        self._rows: dict[int, LineageRow] = {}  # the newest one
        self._position = 0  # the last revision of which something is known
        self._vouched = 0  # the last one that the known word vouches for
        self._fresh = False  # a snapshot was read, and no connection for a watch was made since
        self._learned = asyncio.Event()
        self._refused = asyncio.Event()

    async def learned(self, before: Known | None) -> Known:
        """What is known, once that isn't what it was `before`. For one task."""
        while self.known is None or self.known == before:
            self._learned.clear()
            await self._learned.wait()
        return self.known

    async def refused(self) -> ForeignStore:
        """Why the store isn't this process's any more, as soon as it isn't."""
        await self._refused.wait()
        assert self.refusal is not None
        return self.refusal

    def refuse(self, error: ForeignStore) -> None:
        """Nothing more is read from the store, nor written to it."""
        if self.refusal is None:
            self.refusal = error
            self._refused.set()

    # ---- Store

    async def read(self, prefix: str = "") -> Snapshot:
        """See `Store.read`."""
        self._check()
        known = self.known
        snapshot = await self._store.read(prefix)
        if not prefix:
            self._judge(known, snapshot.entries)
            self._position = max(self._position, snapshot.revision)
            self._vouched = _latest(self._rows.values())
            self._fresh = True
        return snapshot

    async def watch(
        self, prefix: str, after_revision: int, attached: Attached | None = None
    ) -> AsyncGenerator[Revision, None]:
        """See `Store.watch`."""
        self._check()

        async def compare() -> None:
            beyond_the_word = self._position > self._vouched
            await self._verify()
            fresh, self._fresh = self._fresh, False
            if beyond_the_word and not fresh:
                raise Compacted("the connection is a new one, and no lineage word vouches for what was seen last")
            if attached is not None:
                await attached()

        try:
            async with aclosing(self._store.watch(prefix, after_revision, compare)) as revisions:
                async for revision in revisions:
                    self._heard(revision)
                    yield revision
        except ForeignStore as error:
            self.refuse(error)
            raise

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """See `Store.transact`."""
        while True:
            self._check()
            own, known, cluster = self._guards(), self.known, self._cluster
            result = await self._store.transact([*guards, *own], writes)
            if isinstance(result, Committed):
                return result
            if _fail(own, result) and not self._told(known, cluster, own, result):
                await self._verify()
            failed = {
                guard.key: entry
                for guard in guards
                if guard.key in result.failed and not guard.holds(entry := result.failed[guard.key])
            }
            if failed:
                return Rejected(failed)

    async def grant(self, ttl_s: float) -> LeaseId:
        """See `Store.grant`."""
        self._check()
        return await self._store.grant(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> None:
        """See `Store.keep_alive`."""
        self._check()
        await self._store.keep_alive(lease)

    async def lease_left(self, lease: LeaseId) -> LeaseLeft:
        """See `Store.lease_left`."""
        self._check()
        return await self._store.lease_left(lease)

    def lease_line(self) -> LeaseLine:
        """See `Store.lease_line`."""
        return _OwnLeaseLine(self, self._store.lease_line())

    async def revoke(self, lease: LeaseId) -> None:
        """See `Store.revoke`."""
        self._check()
        await self._store.revoke(lease)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._store.close()

    # ---- whose it is

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _guards(self) -> list[Guard]:
        if self._cluster is None:
            return []
        words = guards_of(self.known, self._rows) if self._rows and self.known is not None else ()
        return [Guard(keys.CLUSTER, self._cluster.revision), *words]

    def _told(self, known: Known | None, cluster: Cluster | None, own: Sequence[Guard], rejected: Rejected) -> bool:
        """Whether the rejection of what was compared tells that the store has what was `known` then, and what is newer:
        the row of the known word has got more words. Raises ForeignStore."""
        of_cluster, *words = own
        if not words or self._cluster is not cluster or _fail([of_cluster], rejected):
            return False
        row = words[-1]
        entry = rejected.failed.get(row.key)
        if entry is None or row.holds(entry):
            return False
        self._know(known, cluster, {keys.lineage_row(row.key): LineageRow.decode(entry)})
        return True

    async def _verify(self) -> None:
        """Returns if, at an instant from now on, the store has what is known. Raises ForeignStore, StoreUnavailable."""
        while own := self._guards():
            vouched, known, cluster = bool(self._rows), self.known, self._cluster
            try:
                result = await self._store.transact(own, [])
                if vouched and (isinstance(result, Committed) or self._told(known, cluster, own, result)):
                    return
            except UnknownOutcome as error:  # of a question
                raise StoreUnavailable(str(error)) from error
            known = self.known
            found = await self._store.read(keys.CLUSTER)
            rows = await self._store.read(keys.LINEAGE)
            self._judge(known, (*found.entries, *rows.entries))
            if not vouched:
                return

    def _heard(self, revision: Revision) -> None:
        """What a watch brings may have been learned before, by a question: then that was newer."""
        self._position = revision.revision
        cluster, rows = self._cluster, dict(self._rows)
        for key, entry in revision.changes:
            if key == keys.CLUSTER and revision.revision > _latest([self._cluster]):
                cluster = None if entry is None else Cluster.decode(entry)
            elif key.startswith(keys.LINEAGE) and entry is not None:
                self._vouched = revision.revision
                if revision.revision > _latest(self._rows.values()):
                    rows[keys.lineage_row(key)] = LineageRow.decode(entry)
        if cluster is not self._cluster or rows != self._rows:
            self._know(self.known, cluster, rows)

    def _judge(self, known: Known | None, entries: Sequence[Entry]) -> None:
        """`known` is what was known when the store was asked: its answer needn't have what was learned meanwhile."""
        cluster = next((Cluster.decode(entry) for entry in entries if entry.key == keys.CLUSTER), None)
        rows = {
            keys.lineage_row(entry.key): LineageRow.decode(entry)
            for entry in entries
            if entry.key.startswith(keys.LINEAGE)
        }
        if cluster is not None or known is not None:  # else the cluster is still to be begun
            self._know(known, cluster, rows)

    def _know(self, before: Known | None, cluster: Cluster | None, rows: dict[int, LineageRow]) -> None:
        try:
            known = judge(before, cluster, rows)
            if self._joined and before is not None and known.restore_id != before.restore_id:
                raise StoreRestored(
                    f"the metadata store was restored from a backup: it is generation {known.generation} of cluster"
                    f" {known.cluster_id} now"
                )
        except ForeignStore as error:
            self.refuse(error)
            raise
        if self.known != before and self.known is not None and known.number < self.known.number:
            return  # a later word was learned meanwhile
        newest = row_of(known)
        self._joined = True
        self._cluster = cluster
        self._rows = {} if newest is None else {newest: rows[newest]}
        if known != self.known:
            self.known = known
            self._learned.set()


class _OwnLeaseLine:
    """A `LeaseLine` of a store that isn't asked any more once it is refused."""

    def __init__(self, own: OwnStore, line: LeaseLine) -> None:
        self._own = own
        self._line = line

    def keep_alive(self, lease: LeaseId, timeout_s: float) -> None:
        """See `LeaseLine.keep_alive`."""
        if self._own.refusal is not None:
            raise StoreUnavailable(str(self._own.refusal))
        self._line.keep_alive(lease, timeout_s)

    def close(self) -> None:
        """See `LeaseLine.close`."""
        self._line.close()


def _fail(guards: Sequence[Guard], rejected: Rejected) -> bool:
    """Whether one of these is among those that failed."""
    return any(guard.key in rejected.failed and not guard.holds(rejected.failed[guard.key]) for guard in guards)


def _latest(values: Iterable[Cluster | LineageRow | None]) -> int:
    """The revision that changed any of them last."""
    return max((value.revision for value in values if value is not None), default=0)
