"""Translates the store port's values to etcd's messages and back, without a connection.

etcd promises that a watch delivers whole revisions, in order. But a large answer comes in fragments, which may end in
the middle of a revision. `Assembly` joins the fragments, and drops revisions that were delivered before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aetcd import rpc

from .store import Change, Entry, Guard, LeaseId, Put, Revision, Write

COMPARISONS_MAX = 128  # etcd's own limit, --max-txn-ops


class Keys:
    """The keys of one cluster in an etcd that other clusters may share.

    In etcd each key has the cluster's prefix; everywhere else in Ottla it has none.
    """

    def __init__(self, prefix: str) -> None:
        """`prefix` is the cluster's, such as `/ottla/flights/`; a missing slash at the end is added."""
        self.base = prefix.rstrip("/").encode() + b"/"

    def encode(self, key: str) -> bytes:
        """The key as it is in etcd, with the prefix."""
        return self.base + key.encode()

    def decode(self, key: bytes) -> str:
        """The key as the rest of Ottla knows it, without the prefix."""
        return key[len(self.base) :].decode()

    def entry(self, found: Any) -> Entry:
        """An etcd KeyValue as an entry."""
        lease = LeaseId(found.lease)
        return Entry(self.decode(found.key), found.value, found.mod_revision, found.create_revision, lease)

    def range(self, prefix: str, start: bytes | None = None, revision: int = 0, limit: int = 0) -> Any:
        """The request for all keys that begin with `prefix`, from `start` on, as of `revision` (0: now)."""
        first = self.encode(prefix)
        return rpc.RangeRequest(key=start or first, range_end=_end(first), limit=limit, revision=revision)

    def watch(self, prefix: str, after_revision: int) -> Any:
        """The request for all changes, after `after_revision`, of keys that begin with `prefix`."""
        first = self.encode(prefix)
        create = rpc.WatchCreateRequest(
            key=first, range_end=_end(first), start_revision=after_revision + 1, fragment=True, progress_notify=True
        )
        return rpc.WatchRequest(create_request=create)

    def transaction(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Any:
        """The request to apply `writes` if all `guards` hold, and else to read the guarded keys.

        Raises ValueError for more comparisons than etcd allows.
        """
        comparisons = [comparison for guard in guards for comparison in self._comparisons(guard)]
        if len(comparisons) > COMPARISONS_MAX:
            raise ValueError(
                f"a transaction has {len(comparisons)} comparisons (a guard with a lease makes two), and etcd allows"
                f" at most {COMPARISONS_MAX}"
            )
        looks = [rpc.RequestOp(request_range=rpc.RangeRequest(key=self.encode(guard.key))) for guard in guards]
        return rpc.TxnRequest(compare=comparisons, success=[self._operation(write) for write in writes], failure=looks)

    def failed(self, guards: Sequence[Guard], response: Any) -> dict[str, Entry | None]:
        """The keys of a rejected transaction's guards that didn't hold, with the keys' present entries."""
        failed: dict[str, Entry | None] = {}
        for guard, look in zip(guards, response.responses, strict=True):
            found = look.response_range.kvs
            entry = self.entry(found[0]) if found else None
            if not guard.holds(entry):
                failed[guard.key] = entry
        return failed

    def _comparisons(self, guard: Guard) -> list[Any]:
        key = self.encode(guard.key)
        equal = rpc.Compare.EQUAL
        found = [rpc.Compare(result=equal, target=rpc.Compare.MOD, key=key, mod_revision=guard.mod_revision)]
        if guard.lease is not None:
            found.append(rpc.Compare(result=equal, target=rpc.Compare.LEASE, key=key, lease=guard.lease))
        return found

    def _operation(self, write: Write) -> Any:
        key = self.encode(write.key)
        if isinstance(write, Put):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=write.value, lease=write.lease))
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def changed_anything(response: Any) -> bool:
    """Whether an applied transaction created a revision. Deleting keys that don't exist creates none."""
    return any(
        done.HasField("response_put") or (done.HasField("response_delete_range") and done.response_delete_range.deleted)
        for done in response.responses
    )


class Assembly:
    """Assembles whole revisions, each once and in order, from the answers of a watch's streams. A stream that breaks
    off is followed by another."""

    def __init__(self, keys: Keys, position: int) -> None:
        """Revisions up to `position` are known already, and are dropped."""
        self.position = position
        self._keys = keys
        self._revision = 0
        self._changes: list[Change] = []

    def add(self, response: Any) -> Iterator[Revision]:
        """Yields, one by one, the revisions that this answer completes. An answer may complete thousands."""
        for event in response.events:
            revision = event.kv.mod_revision
            if revision <= self.position:
                continue
            if revision != self._revision:
                yield from self._completed()
                self._revision = revision
            self._changes.append(self._change(event))
        if not response.fragment:
            yield from self._completed()
            if not response.events and not response.created:
                # This is a progress notification: the watch is up to date, and brings nothing more up to this revision.
                # The position advances, too. Where other clusters write much and this cluster writes little, that
                # spares this process a new snapshot after a compaction.
                self.position = max(self.position, response.header.revision)

    def interrupted(self) -> None:
        """Drops an incomplete revision after its stream broke off: the next stream brings the whole revision."""
        self._changes = []

    def _change(self, event: Any) -> Change:
        deleted = event.type == event.DELETE
        return Change(self._keys.decode(event.kv.key), None if deleted else self._keys.entry(event.kv))

    def _completed(self) -> list[Revision]:
        if not self._changes:
            return []
        changes, self._changes = tuple(self._changes), []
        self.position = self._revision
        return [Revision(self._revision, changes)]


def _end(first: bytes) -> bytes:
    """The first key after all keys that begin with `first`. `first` is UTF-8 text, so it never ends in 0xff."""
    return first[:-1] + bytes([first[-1] + 1])
