"""A metadata store that refuses all calls as soon as another store has taken the place of the process's own.

`OwnStore` is a `Store` around another `Store`. It notices when an empty, older or foreign store has replaced the inner
store: it compares the *words*, random strings that the controller adds to the store (`lineage.py`). From then on it
refuses every call with the same error. Its owner waits for the refusal (`refused`) and stops the process.

Numbered argument that the process reads nothing from a wrong store, and writes nothing to one:

1. Reads: every snapshot of all keys is judged before it is returned. Each time that a watch gets a new connection, a
   transaction without writes checks whether the store has the last known word, before anything of that connection is
   yielded. The transaction is linearizable, so a member of etcd that only lags isn't taken for an older store.
2. The last known word proves nothing about revisions newer than itself. If the process has seen such revisions, the
   watch's reader has to take a new snapshot and to compare epochs (`Follower`).
3. Writes: every transaction has guards on the key that is named after the last known word, and on the cluster's key. On
   another store the guard on the word fails, however late this process notices that the store was replaced. On the same
   store it fails only if the controller has written another word in the meantime. The row of words is guarded, too, so
   the rejection itself brings the present row. If that row contains the known word, the transaction is sent again. If
   the row doesn't prove enough (because a new row was begun), the store is read, and judged.
4. Leases are kept alive and revoked without guards, so possibly on another store. Neither call can change another
   process's keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from . import keys
from .lineage import Known, guards_of, judge, row_of
from .model.cluster import Cluster, LineageRow
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
    """A `Store` that refuses all calls once the store behind it isn't the one that this process belongs to.

    The store's lineage is the sequence of the words that the controller adds to the store (`lineage.py`). This class
    compares the words in the store with `known`, the lineage that the process knows. At the process's start,
    `known` is the lineage that a former process of the same broker wrote to the disk, if there was one.
    """

    def __init__(self, store: Store, known: Known | None) -> None:
        self.known = known
        self.refusal: ForeignStore | None = None
        self._store = store
        self._joined = False  # whether this process has judged the store since its start
        self._cluster: Cluster | None = None
        self._rows: dict[int, LineageRow] = {}  # the newest row of words, and no other
        self._position = 0  # the last revision that was read or watched
        self._vouched = 0  # the last revision of which the known word proves that this store made it
        self._fresh = False  # whether a snapshot was read, and no watch has got a new connection since
        self._learned = asyncio.Event()
        self._refused = asyncio.Event()

    async def learned(self, before: Known | None) -> Known:
        """Waits until the lineage that this process knows differs from `before`, and returns it. Only one task may
        wait."""
        while self.known is None or self.known == before:
            self._learned.clear()
            await self._learned.wait()
        return self.known

    async def refused(self) -> ForeignStore:
        """Waits until the store is refused, and returns the error that says why."""
        await self._refused.wait()
        assert self.refusal is not None
        return self.refusal

    def refuse(self, error: ForeignStore) -> None:
        """Makes every later call raise `error`: nothing more is read from the store or written to it."""
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
                raise Compacted(
                    "the watch has a new connection, and no word of the controller proves that the revisions before the"
                    " new connection belong to the store that answers now"
                )
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

    # ---- checks that the store is this process's own

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _guards(self) -> list[Guard]:
        if self._cluster is None:
            return []
        words = guards_of(self.known, self._rows) if self._rows and self.known is not None else ()
        return [Guard(keys.cluster.key, self._cluster.revision), *words]

    def _told(self, known: Known | None, cluster: Cluster | None, own: Sequence[Guard], rejected: Rejected) -> bool:
        """Whether a rejection of the guards `own` proves that the store is still the one of `known`.

        It does if the row of words has changed but the cluster's key hasn't, and the present row still has the known
        word in its place. Then the newer words after it are learned. Raises ForeignStore if another word is in that
        place.
        """
        of_cluster, *words = own
        if not words or self._cluster is not cluster or _fail([of_cluster], rejected):
            return False
        row = words[-1]
        entry = rejected.failed.get(row.key)
        if entry is None or row.holds(entry):
            return False
        self._know(known, cluster, {keys.lineage.of(row.key): LineageRow.decode(entry)})
        return True

    async def _verify(self) -> None:
        """Checks that the store, at some instant after the call, has the known lineage.

        Raises ForeignStore, StoreUnavailable.
        """
        while own := self._guards():
            vouched, known, cluster = bool(self._rows), self.known, self._cluster
            try:
                result = await self._store.transact(own, [])
                if vouched and (isinstance(result, Committed) or self._told(known, cluster, own, result)):
                    return
            except UnknownOutcome as error:  # the transaction has no writes, so nothing can have been written
                raise StoreUnavailable(str(error)) from error
            known = self.known
            found = await self._store.read(keys.cluster.key)
            rows = await self._store.read(keys.lineage.prefix)
            self._judge(known, (*found.entries, *rows.entries))
            if not vouched:
                return

    def _heard(self, revision: Revision) -> None:
        """Learns the cluster and the lineage from a revision of a watch, unless `_verify` has already learned newer
        ones."""
        self._position = revision.revision
        cluster, rows = self._cluster, dict(self._rows)
        for key, entry in revision.changes:
            if key == keys.cluster.key and revision.revision > _latest([self._cluster]):
                cluster = None if entry is None else Cluster.decode(entry)
            elif key.startswith(keys.lineage.prefix) and entry is not None:
                self._vouched = revision.revision
                if revision.revision > _latest(self._rows.values()):
                    rows[keys.lineage.of(key)] = LineageRow.decode(entry)
        if cluster is not self._cluster or rows != self._rows:
            self._know(self.known, cluster, rows)

    def _judge(self, known: Known | None, entries: Sequence[Entry]) -> None:
        """Checks, by the `entries` that were read, whether the store is still this process's own. Raises ForeignStore.

        `known` must be the lineage that was known before the read: the entries may lack words that were learned later.
        """
        cluster = next((Cluster.decode(entry) for entry in entries if entry.key == keys.cluster.key), None)
        rows = {
            keys.lineage.of(entry.key): LineageRow.decode(entry)
            for entry in entries
            if entry.key.startswith(keys.lineage.prefix)
        }
        if cluster is not None or known is not None:  # otherwise the store is empty, and may get a new cluster
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
    """A `LeaseLine` that makes no call to the store any more once the store is refused."""

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
    """Whether any of these guards failed, by the entries in the rejection."""
    return any(guard.key in rejected.failed and not guard.holds(rejected.failed[guard.key]) for guard in guards)


def _latest(values: Iterable[Cluster | LineageRow | None]) -> int:
    """The newest revision that changed any of the values; 0 without values."""
    return max((value.revision for value in values if value is not None), default=0)
