"""The committed offsets of the groups of one shard, which is one partition of `__consumer_offsets`. Pure.

The table of offsets has two views. The *latest* view has every appended record; commits, deletions and expiries are
decided by it. The *committed* view has only the records below the high watermark. OffsetFetch shows this view, because
a consumer must not start from an offset that an election could still revert. If both views have the same value for a
key, as nearly always, the value is kept once.

An offset of a transaction is in neither view until the transaction's COMMIT marker: it waits in `UndecidedOffsets`. For
both views a marker is one record, which changes all offsets of the transaction together.

Source: Kafka's OffsetMetadataManager; KIP-211 and KIP-496 (expiry).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.protocol.batches import NO_PRODUCER_ID

from .group import FROM_COMMIT, Group
from .records import Committed, OffsetKey
from .undecided import UndecidedOffsets

Partitions = dict[int, Committed]


class _Appended(NamedTuple):
    """A record that isn't visible yet: its log offset, a key, the key's value after the record, and the number of
    undecided offsets of the key that the record has decided. A marker has one entry for each offset that it decides."""

    log_offset: int
    key: OffsetKey
    value: Committed | None
    decided: int


class Offsets:
    """Every committed offset in one partition of `__consumer_offsets`, by group, topic and partition."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, Partitions]] = {}
        self._count = 0  # how many values `_latest` has
        # By group and key, only for keys with records that aren't visible yet: the visible value, and the number of
        # these records.
        self._shown: dict[str, dict[OffsetKey, tuple[Committed | None, int]]] = {}
        self._appended: deque[_Appended] = deque()
        self._undecided = UndecidedOffsets()

    def __len__(self) -> int:
        return self._count

    def appended(
        self, log_offset: int, key: OffsetKey, value: Committed | None, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Applies a record (None: tombstone) that was appended at `log_offset`. It becomes visible by a call of
        `committed`. With a producer id ≥ 0 the value belongs to a transaction, and waits for `decided`."""
        if value is not None and producer_id >= 0:
            self._undecided.add(producer_id, key, value, log_offset)
        else:
            self._hide(log_offset, key, value, self._overtake(log_offset, key, value))
            self._put(key, value)

    def committed(self, high_watermark: int, records_max: int | None = None) -> None:
        """Makes the records below `high_watermark` visible: all of them, or the `records_max` oldest that aren't
        visible yet. The offsets of one transaction become visible together."""
        appended = self._appended
        left = len(appended) if records_max is None else records_max
        shown = -1  # the log offset of the last record that this call has made visible
        while appended and appended[0].log_offset < high_watermark and (left > 0 or appended[0].log_offset == shown):
            shown, key, value, decided = appended.popleft()
            by_key = self._shown[key.group]
            writes = by_key[key][1] - 1
            if writes:
                by_key[key] = (value, writes)
            else:
                del by_key[key]
                if not by_key:
                    del self._shown[key.group]
            if decided:
                self._undecided.show(key, decided)
            left -= 1

    @property
    def first_unshown(self) -> int | None:
        """The log offset of the oldest record that was appended and isn't visible yet; None where all records are
        visible."""
        return self._appended[0].log_offset if self._appended else None

    @property
    def unshown_count(self) -> int:
        """How many records were appended and aren't visible yet. A marker counts once for each offset that it
        decided."""
        return len(self._appended)

    def replayed(
        self, log_offset: int, key: OffsetKey, value: Committed | None, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Applies a record that was read back from below the high watermark, and is visible at once. `producer_id` is
        as in `appended`."""
        if value is not None and producer_id >= 0:
            self._undecided.add(producer_id, key, value, log_offset)
        else:
            self._overtake(log_offset, key, value)
            self._put(key, value)

    def decided(self, producer_id: int, commit: bool, log_offset: int, visible: bool) -> list[OffsetKey]:
        """Applies the marker at `log_offset` of a producer's transaction: the transaction's offsets count from now on
        (`commit`), or are dropped. Unless the marker is `visible` at once, it becomes visible by a call of `committed`.
        Returns the keys of the decided offsets."""
        decided = self._undecided.decide(producer_id, commit)
        for key, value in decided:
            after = self.latest(key) if value is None else value
            if not visible:
                self._hide(log_offset, key, after, 1)
            if value is not None:
                self._put(key, value)
        return [key for key, _ in decided]

    def latest(self, key: OffsetKey) -> Committed | None:
        """The last appended value of a key, whether its record is committed or not."""
        return self._latest.get(key.group, {}).get(key.topic, {}).get(key.partition)

    def show(self, key: OffsetKey) -> Committed | None:
        """The visible value of a key."""
        by_key = self._shown.get(key.group)
        shown = None if by_key is None else by_key.get(key)
        return self.latest(key) if shown is None else shown[0]

    def undecided(self, key: OffsetKey) -> bool:
        """Whether the visible value of a key may be out of date: an offset of a transaction was appended for the key,
        and the transaction's marker isn't visible yet."""
        return key in self._undecided

    def all_undecided(self, group: str) -> Iterable[OffsetKey]:
        """The keys of a group that are `undecided`."""
        return self._undecided.keys_for_readers(group)

    def show_all(self, group: str) -> dict[str, Partitions]:
        """All visible values of a group, by topic and partition."""
        found = {topic: dict(partitions) for topic, partitions in self._latest.get(group, {}).items()}
        for key, (value, _) in self._shown.get(group, {}).items():
            if value is not None:
                found.setdefault(key.topic, {})[key.partition] = value
            else:
                found.get(key.topic, {}).pop(key.partition, None)
        return {topic: partitions for topic, partitions in found.items() if partitions}

    def keys_of(self, group: str) -> Iterator[OffsetKey]:
        """The keys of all offsets of a group, including the offsets of open transactions."""
        for topic, partitions in self._latest.get(group, {}).items():
            for partition in partitions:
                yield OffsetKey(group, topic, partition)
        yield from (key for key in self._undecided.keys_of(group) if self.latest(key) is None)

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[OffsetKey, Sequence[Committed]]]:
        """The keys of all groups' offsets for these topics, including the offsets of open transactions, and the values
        of each key (see `values`)."""
        wanted = frozenset(topics)
        for group, by_topic in self._latest.items():
            for topic in wanted & by_topic.keys():
                for partition in by_topic[topic]:
                    key = OffsetKey(group, topic, partition)
                    yield key, self.values(key)
        for key in self._undecided.keys_of_topics(wanted):
            if self.latest(key) is None:
                yield key, self.values(key)

    def values(self, key: OffsetKey) -> Sequence[Committed]:
        """The last appended value of a key, and the values that open transactions have for it."""
        latest = self.latest(key)
        undecided = self._undecided.values(key)
        return undecided if latest is None else [latest, *undecided]

    def has(self, group: str) -> bool:
        """Whether a group has any offset. An offset of an open transaction counts, too."""
        return next(self.keys_of(group), None) is not None

    def expired(self, group: Group, retention_ms: int, now_ms: int) -> list[OffsetKey]:
        """The keys of the offsets of `group` that have expired at `now_ms` (wall clock): the retention time, which
        begins at `group.retention_begins_ms`, is over, no member subscribes to the topic, and no open transaction has
        an offset for the key.

        If an offset has an expiry time of its own, this time replaces the end of the retention time. While
        `group.retention_begins_ms` is None, no offset expires.
        """
        begins_ms = group.retention_begins_ms
        if begins_ms is None:
            return []
        found = []
        for topic, partitions in self._latest.get(group.group_id, {}).items():
            if group.is_subscribed_to(topic):
                continue
            for partition, value in partitions.items():
                key = OffsetKey(group.group_id, topic, partition)
                since_ms = value.commit_ms if begins_ms == FROM_COMMIT else begins_ms
                due_ms = value.expire_ms if value.expire_ms >= 0 else since_ms + retention_ms
                if now_ms >= due_ms and not self.undecided(key):
                    found.append(key)
        return found

    def _overtake(self, log_offset: int, key: OffsetKey, value: Committed | None) -> int:
        """Tells the waiting offsets of transactions that a record without a transaction has come after them. Returns
        how many of them the record has decided."""
        if value is None:
            return self._undecided.drop(key)
        self._undecided.supersede(key, log_offset)
        return 0

    def _hide(self, log_offset: int, key: OffsetKey, value: Committed | None, decided: int) -> None:
        """Keeps the visible value of a key, which has `value` after the record at `log_offset`."""
        by_key = self._shown.get(key.group)
        if by_key is None:
            by_key = self._shown[key.group] = {}
        shown = by_key.get(key)
        by_key[key] = (self.latest(key), 1) if shown is None else (shown[0], shown[1] + 1)
        self._appended.append(_Appended(log_offset, key, value, decided))
        if decided:
            self._undecided.hide(key, decided)

    def _put(self, key: OffsetKey, value: Committed | None) -> None:
        if value is not None:
            partitions = self._latest.setdefault(key.group, {}).setdefault(key.topic, {})
            self._count += key.partition not in partitions
            partitions[key.partition] = value
            return
        topics = self._latest.get(key.group, {})
        partitions = topics.get(key.topic, {})
        self._count -= partitions.pop(key.partition, None) is not None
        if not partitions:
            topics.pop(key.topic, None)
        if not topics:
            self._latest.pop(key.group, None)
