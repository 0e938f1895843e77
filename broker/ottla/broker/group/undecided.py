"""The offsets that open transactions have committed, until each transaction's marker decides about them. Pure.

An offset waits here under the id of its producer. A COMMIT marker of the producer makes it the group's offset, an ABORT
marker drops it. Three rules:

1. The newest record counts, not the newest marker. If a later record of the same partition takes effect, a commit
   without a transaction or the offset of another transaction, the waiting offset is *superseded*: its own COMMIT marker
   changes nothing any more. Compaction keeps the newest record as well, so a compacted log restores the same offsets.
2. A tombstone drops all waiting offsets of its partition.
3. To readers a partition is undecided for longer: until the record that decided, a marker or a tombstone, is committed.
   An election may still revert that record, and the transaction would be open again.

Source: Kafka's OffsetMetadataManager (pendingTransactionalOffsets, openTransactions).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .records import Committed, OffsetKey


class _Waiting(NamedTuple):
    """An offset, None if it is superseded, and the log offset of its record."""

    value: Committed | None
    log_offset: int


class UndecidedOffsets:
    """The undecided offsets of the groups of one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[OffsetKey, dict[int, _Waiting]]] = {}  # by group, key and producer id
        self._by_producer: dict[int, dict[OffsetKey, None]] = {}
        # By group and key: how many offsets were decided by records that readers don't see yet.
        self._unshown: dict[str, dict[OffsetKey, int]] = {}

    def __contains__(self, key: OffsetKey) -> bool:
        """Whether readers must take the key's offset for undecided."""
        group = key.group
        return key in self._by_key.get(group, ()) or key in self._unshown.get(group, ())

    def keys_of(self, group: str) -> Iterator[OffsetKey]:
        """The keys of a group's waiting offsets."""
        yield from self._by_key.get(group, ())

    def keys_for_readers(self, group: str) -> Iterator[OffsetKey]:
        """The keys of a group that readers must take for undecided."""
        waiting = self._by_key.get(group, {})
        yield from waiting
        yield from (key for key in self._unshown.get(group, ()) if key not in waiting)

    def keys_of_topics(self, topics: frozenset[str]) -> Iterator[OffsetKey]:
        """The keys of all groups' waiting offsets for these topics."""
        for by_key in self._by_key.values():
            yield from (key for key in by_key if key.topic in topics)

    def values(self, key: OffsetKey) -> list[Committed]:
        """The waiting offsets of a key that aren't superseded."""
        waiting = self._by_key.get(key.group, {}).get(key, {})
        return [value for value, _ in waiting.values() if value is not None]

    def add(self, producer_id: int, key: OffsetKey, value: Committed, log_offset: int) -> None:
        """Keeps an offset until `producer_id` ends its transaction. It replaces an earlier offset of the same producer
        for the key."""
        self._by_key.setdefault(key.group, {}).setdefault(key, {})[producer_id] = _Waiting(value, log_offset)
        self._by_producer.setdefault(producer_id, {})[key] = None

    def supersede(self, key: OffsetKey, log_offset: int) -> None:
        """Notes that the record at `log_offset` has become the key's offset: older waiting offsets are superseded."""
        waiting = self._by_key.get(key.group, {}).get(key) if self._by_key else None
        if waiting is not None:
            for producer_id, (_, own_log_offset) in waiting.items():
                if own_log_offset < log_offset:
                    waiting[producer_id] = _Waiting(None, own_log_offset)

    def drop(self, key: OffsetKey) -> int:
        """Drops the waiting offsets of a key, because of a tombstone; returns how many these were."""
        waiting = self._forget(key)
        for producer_id in waiting:
            keys = self._by_producer[producer_id]
            del keys[key]
            if not keys:
                del self._by_producer[producer_id]
        return len(waiting)

    def decide(self, producer_id: int, commit: bool) -> list[tuple[OffsetKey, Committed | None]]:
        """Ends a producer's transaction. Returns the key of each of its waiting offsets, and the offset if it counts
        from now on; None if it was superseded, or if the transaction is aborted."""
        decided: list[tuple[OffsetKey, Committed | None]] = []
        for key in self._by_producer.pop(producer_id, ()):
            waiting = self._by_key[key.group][key]
            value, log_offset = waiting.pop(producer_id)
            if not waiting:
                self._forget(key)
            if not commit:
                value = None
            elif value is not None:
                self.supersede(key, log_offset)
            decided.append((key, value))
        return decided

    def hide(self, key: OffsetKey, count: int) -> None:
        """Notes that `count` offsets of the key were decided by a record that readers don't see yet."""
        by_key = self._unshown.setdefault(key.group, {})
        by_key[key] = by_key.get(key, 0) + count

    def show(self, key: OffsetKey, count: int) -> None:
        """Notes that readers see a record that has decided `count` offsets of the key (see `hide`)."""
        by_key = self._unshown[key.group]
        by_key[key] -= count
        if not by_key[key]:
            del by_key[key]
            if not by_key:
                del self._unshown[key.group]

    def _forget(self, key: OffsetKey) -> dict[int, _Waiting]:
        by_key = self._by_key.get(key.group, {})
        waiting = by_key.pop(key, {})
        if not by_key:
            self._by_key.pop(key.group, None)
        return waiting
