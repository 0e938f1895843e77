"""The committed offsets of the groups of one shard. Pure.

The table of offsets has two views. The *latest* view has every appended record; commits, deletions and expiries are
decided by it. The *committed* view has only the records below the high watermark. OffsetFetch shows this view, because
a consumer must not start from an offset that an election could still revert. If both views have the same value for a
key, as nearly always, the value is kept once.

The offsets of a transaction are kept by producer id until the transaction's marker is read. So far, transactions occur
only in log directories that were adopted from Kafka.

Source: Kafka's OffsetMetadataManager; KIP-211 and KIP-496 (expiry).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from .group import FROM_COMMIT, Group
from .records import Committed, OffsetKey

Partitions = dict[int, Committed]


class Offsets:
    """Every committed offset of a shard, by group, topic and partition."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, Partitions]] = {}
        self._count = 0  # how many values `_latest` has
        # By group and key, only for keys with records that aren't visible yet: the visible value, and the number of
        # these records.
        self._shown: dict[str, dict[OffsetKey, tuple[Committed | None, int]]] = {}
        self._appended: deque[tuple[int, OffsetKey, Committed | None]] = deque()
        self._undecided: dict[int, dict[OffsetKey, Committed]] = {}

    def __len__(self) -> int:
        return self._count

    def appended(self, log_offset: int, key: OffsetKey, value: Committed | None) -> None:
        """Applies a record (None: tombstone) that was appended at `log_offset`. It becomes visible by a call of
        `committed`."""
        by_key = self._shown.get(key.group)
        if by_key is None:
            by_key = self._shown[key.group] = {}
        shown = by_key.get(key)
        by_key[key] = (self.latest(key), 1) if shown is None else (shown[0], shown[1] + 1)
        self._appended.append((log_offset, key, value))
        self._put(key, value)

    def committed(self, high_watermark: int, records_max: int | None = None) -> None:
        """Makes the records below `high_watermark` visible: all of them, or the `records_max` oldest that aren't
        visible yet."""
        appended = self._appended
        left = len(appended) if records_max is None else min(records_max, len(appended))
        while left and appended[0][0] < high_watermark:
            _, key, value = appended.popleft()
            by_key = self._shown[key.group]
            writes = by_key[key][1] - 1
            if writes:
                by_key[key] = (value, writes)
            else:
                del by_key[key]
                if not by_key:
                    del self._shown[key.group]
            left -= 1

    @property
    def first_unshown(self) -> int | None:
        """The log offset of the oldest record that was appended and isn't visible yet; None where all records are
        visible."""
        return self._appended[0][0] if self._appended else None

    @property
    def unshown_count(self) -> int:
        """How many records were appended and aren't visible yet."""
        return len(self._appended)

    def replayed(self, key: OffsetKey, value: Committed | None, producer_id: int = -1) -> None:
        """Applies a record that was read back. With a producer id ≥ 0 the record belongs to a transaction whose marker
        hasn't been read yet."""
        if value is not None and producer_id >= 0:
            self._undecided.setdefault(producer_id, {})[key] = value
            return
        self._put(key, value)
        for pending in self._undecided.values():
            pending.pop(key, None)  # the pending offset is older than this record

    def decided(self, producer_id: int, commit: bool) -> None:
        """Applies a transaction's marker that was read back: its offsets are kept (`commit`) or dropped."""
        pending = self._undecided.pop(producer_id, {})
        if commit:
            for key, value in pending.items():
                self._put(key, value)

    def latest(self, key: OffsetKey) -> Committed | None:
        """The last appended value of a key, whether its record is committed or not."""
        return self._latest.get(key.group, {}).get(key.topic, {}).get(key.partition)

    def show(self, key: OffsetKey) -> Committed | None:
        """The visible value of a key."""
        by_key = self._shown.get(key.group)
        shown = None if by_key is None else by_key.get(key)
        return self.latest(key) if shown is None else shown[0]

    def undecided(self, key: OffsetKey) -> bool:
        """Whether an undecided transaction has an offset for this key."""
        return any(key in pending for pending in self._undecided.values())

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
        """The keys of all offsets of a group, including the offsets of undecided transactions."""
        for topic, partitions in self._latest.get(group, {}).items():
            for partition in partitions:
                yield OffsetKey(group, topic, partition)
        for pending in self._undecided.values():
            yield from (key for key in pending if key.group == group and self.latest(key) is None)

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[OffsetKey, Committed]]:
        """The keys of all groups' offsets for these topics."""
        wanted = set(topics)
        for group, by_topic in self._latest.items():
            for topic in wanted & by_topic.keys():
                for partition, value in by_topic[topic].items():
                    yield OffsetKey(group, topic, partition), value

    def has(self, group: str) -> bool:
        """Whether a group has any offset. An offset of an undecided transaction counts, too."""
        return next(self.keys_of(group), None) is not None

    def expired(self, group: Group, retention_ms: int, now_ms: int) -> list[OffsetKey]:
        """The keys of the offsets of `group` that have expired at `now_ms` (wall clock): the retention time, which
        begins at `group.retention_begins_ms`, is over, no member subscribes to the topic, and no undecided transaction
        has an offset for the key.

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
