"""Committed offsets of the groups of one shard. Pure.

Two views of one table. The *latest* has every record that was appended: what a commit, a deletion or an expiry decides
on. The *committed* view has those below the high watermark: what OffsetFetch may show, for a consumer must not start
from an offset that an election could still take back. Where both agree (nearly always) a value is held once.

Offsets that a transaction brought (only Kafka writes those as yet, in a directory that we adopted) wait under their
producer id until the marker decides.

Source: Kafka's OffsetMetadataManager; KIP-211 and KIP-496 (expiry).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from .classic import ClassicGroup
from .records import Committed, OffsetKey
from .states import State
from .subscription import CONSUMER

Partitions = dict[int, Committed]


class Offsets:
    """Every committed offset of a shard, by group, topic and partition."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, Partitions]] = {}
        self._count = 0  # of values in `_latest`
        # By group, where an appended value is not committed yet: what to show until it is, and how many writes are on
        # the way.
        self._shown: dict[str, dict[OffsetKey, tuple[Committed | None, int]]] = {}
        self._appended: deque[tuple[int, OffsetKey, Committed | None]] = deque()
        self._undecided: dict[int, dict[OffsetKey, Committed]] = {}

    def __len__(self) -> int:
        return self._count

    def appended(self, log_offset: int, key: OffsetKey, value: Committed | None) -> None:
        """A record (None: tombstone) was written at `log_offset`; it shows once `committed` passes it."""
        by_key = self._shown.get(key.group)
        if by_key is None:
            by_key = self._shown[key.group] = {}
        shown = by_key.get(key)
        by_key[key] = (self.latest(key), 1) if shown is None else (shown[0], shown[1] + 1)
        self._appended.append((log_offset, key, value))
        self._put(key, value)

    def committed(self, high_watermark: int, records_max: int | None = None) -> None:
        """Records below `high_watermark` are committed and show from now on: all of them, or the `records_max` oldest
        of those that don't show yet."""
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
        """The log offset of the oldest record that was appended and doesn't show yet; None where all records show."""
        return self._appended[0][0] if self._appended else None

    @property
    def unshown_count(self) -> int:
        """How many records were appended and don't show yet."""
        return len(self._appended)

    def replayed(self, key: OffsetKey, value: Committed | None, producer_id: int = -1) -> None:
        """A record was read back. With a producer id it belongs to a transaction that is not decided yet."""
        if value is not None and producer_id >= 0:
            self._undecided.setdefault(producer_id, {})[key] = value
            return
        self._put(key, value)
        for pending in self._undecided.values():
            pending.pop(key, None)  # written before this: whatever is decided, this is newer

    def decided(self, producer_id: int, commit: bool) -> None:
        """A transaction's marker was read back."""
        pending = self._undecided.pop(producer_id, {})
        if commit:
            for key, value in pending.items():
                self._put(key, value)

    def latest(self, key: OffsetKey) -> Committed | None:
        """The last value written, committed or not."""
        return self._latest.get(key.group, {}).get(key.topic, {}).get(key.partition)

    def show(self, key: OffsetKey) -> Committed | None:
        """The last committed value."""
        by_key = self._shown.get(key.group)
        shown = None if by_key is None else by_key.get(key)
        return self.latest(key) if shown is None else shown[0]

    def undecided(self, key: OffsetKey) -> bool:
        """Whether a transaction that isn't decided yet has an offset here."""
        return any(key in pending for pending in self._undecided.values())

    def show_all(self, group: str) -> dict[str, Partitions]:
        """All committed values of a group, by topic and partition."""
        found = {topic: dict(partitions) for topic, partitions in self._latest.get(group, {}).items()}
        for key, (value, _) in self._shown.get(group, {}).items():
            if value is not None:
                found.setdefault(key.topic, {})[key.partition] = value
            else:
                found.get(key.topic, {}).pop(key.partition, None)
        return {topic: partitions for topic, partitions in found.items() if partitions}

    def keys_of(self, group: str) -> Iterator[OffsetKey]:
        """Whatever a group has an offset for, decided or not."""
        for topic, partitions in self._latest.get(group, {}).items():
            for partition in partitions:
                yield OffsetKey(group, topic, partition)
        for pending in self._undecided.values():
            yield from (key for key in pending if key.group == group and self.latest(key) is None)

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[OffsetKey, Committed]]:
        """Whatever any group has for these topics."""
        wanted = set(topics)
        for group, by_topic in self._latest.items():
            for topic in wanted & by_topic.keys():
                for partition, value in by_topic[topic].items():
                    yield OffsetKey(group, topic, partition), value

    def has(self, group: str) -> bool:
        """Whether a group has any offset."""
        return next(self.keys_of(group), None) is not None

    def expired(self, group: ClassicGroup, retention_ms: int, now_ms: int) -> list[OffsetKey]:
        """The offsets of `group` that nobody will miss at `now_ms` (wall clock).

        | group | counts from |
        |---|---|
        | simple (no protocol type) | the commit |
        | Empty | when it became empty, or the commit where that is not known |
        | Stable consumer group, topics known | the commit, for topics that nobody subscribes to |
        | any other | never |

        An offset with an expiry time of its own goes by that, but also only if its group is one of these.
        """
        simple = group.roster.protocol_type is None
        empty = group.state is State.EMPTY
        reading = group.roster.protocol_type == CONSUMER and group.state is State.STABLE and group.topics is not None
        if not (simple or empty or reading):
            return []
        found = []
        for topic, partitions in self._latest.get(group.group_id, {}).items():
            if group.is_subscribed_to(topic):
                continue
            for partition, value in partitions.items():
                key = OffsetKey(group.group_id, topic, partition)
                since_ms = value.commit_ms
                if empty and not simple and group.state_since_ms is not None:
                    since_ms = group.state_since_ms
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
