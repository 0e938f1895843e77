"""The groups of one partition of `__consumer_offsets`, and their offsets. Pure.

Methods for requests do no I/O. A method for a request to one group returns `Effects`. A method for a request that
changes offsets or deletes groups returns a `Plan`: the records to append as one batch, and the response, which is sent
when they are committed. Groups and offsets change in `appended` (for appended records) and `replayed` (for records read
back). Both methods lead to the same state, so a replay restores the state after a restart.

Source: Kafka's GroupCoordinatorShard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.protocol.errors import ErrorCode, KafkaError

from .classic import ClassicGroup
from .effects import Answer, Created, Effects, Join, Leaver, Limits, Now, Store, Sync
from .group import Group
from .offsets import Offsets
from .records import (
    Committed,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from .states import State

Change = tuple[OffsetKey | GroupKey, Committed | GroupMetadata | None]  # None: tombstone


class OffsetToCommit(NamedTuple):
    """One partition of an OffsetCommit."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(slots=True)
class Plan:
    """Records to append as one batch, and the response that waits until they are committed."""

    changes: list[Change] = field(default_factory=list)
    response: Any = None

    def encoded(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The records' keys and values."""
        return (encode(change) for change in self.changes)


def encode(change: Change) -> tuple[bytes, bytes | None]:
    """A record's key and value."""
    key, value = change
    data = offset_key(key) if isinstance(key, OffsetKey) else group_key(key.group)
    if isinstance(value, Committed):
        return data, offset_value(value)
    return data, None if value is None else group_value(value)


class GroupShard:
    """Groups by id, and `offsets`.

    Requests of the classic protocol are for classic groups. If the group is of another type, a JoinGroup is answered
    INCONSISTENT_GROUP_PROTOCOL, and the other requests of the classic protocol as if the group didn't exist.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()

    # --- membership ---

    def join(self, group_id: str, join: Join, now: Now) -> Effects:
        """Answers a JoinGroup. If the group doesn't exist, a client without a member id creates it, and a client with a
        member id is answered UNKNOWN_MEMBER_ID."""
        effects = Effects()
        limits = self.limits
        if not limits.group_min_session_timeout_ms <= join.session_timeout_ms <= limits.group_max_session_timeout_ms:
            effects.answer_join(join.ticket, ErrorCode.invalid_session_timeout, join.member_id)
            return effects
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.join(join, now)
        if group is not None:
            effects.answer_join(join.ticket, ErrorCode.inconsistent_group_protocol, "")
            return effects
        if join.member_id:
            effects.answer_join(join.ticket, ErrorCode.unknown_member_id, join.member_id)
            return effects
        group = ClassicGroup(group_id, limits, now.wall_ms)
        empty = group.membership.snapshot()
        effects = group.join(join, now)
        roster = group.membership.roster
        if not roster.members and not roster.pending:
            return effects  # refused
        self.groups[group_id] = group
        # The first record of the group, so that a replay doesn't restore an older record of a group of the same name.
        effects.stores.insert(0, Store(empty, Created()))
        return effects

    def sync(self, group_id: str, sync: Sync, now: Now) -> Effects:
        """Answers a SyncGroup."""
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup) and group.membership.state is not State.EMPTY:
            return group.sync(sync, now)
        effects = Effects()
        effects.answer_sync(sync.ticket, ErrorCode.unknown_member_id)
        return effects

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        """Answers a Heartbeat."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return ErrorCode.unknown_member_id
        return group.heartbeat(member_id, generation, instance_id, now)

    def leave(self, group_id: str, leavers: Sequence[Leaver], now: Now) -> tuple[list[Answer], Effects]:
        """Handles a LeaveGroup request: returns an answer for each member that leaves, and the effects."""
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.leave(leavers, now)
        unknown = [
            {
                "member_id": leaver.member_id,
                "group_instance_id": leaver.instance_id,
                "error_code": ErrorCode.unknown_member_id,
            }
            for leaver in leavers
        ]
        return list(unknown), Effects()

    def stored(self, group: Group, store: Store, error: ErrorCode, now: Now) -> Effects:
        """Tells a group that its metadata in `store` was committed or, with an `error`, wasn't."""
        effects = group.stored(store, error, now)
        if group.is_dead and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        return effects

    # --- offsets ---

    def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        retention_ms: int,
        now: Now,
    ) -> Plan:
        """Handles an OffsetCommit request; the response is an error code for each of `offsets`.

        `retention_ms` is −1 unless an old client asks for a retention time. Raises KafkaError if the group refuses the
        commit, and GROUP_ID_NOT_FOUND if a client with a generation names a group that doesn't exist.
        """
        group = self.groups.get(group_id)
        if group is None and generation >= 0:
            raise KafkaError(ErrorCode.group_id_not_found)
        if group is not None:
            error = group.commit(member_id, generation, instance_id, now)
            if error is not ErrorCode.none:
                raise KafkaError(error)
        return self._commit(group_id, offsets, now.wall_ms, now.wall_ms + retention_ms if retention_ms >= 0 else -1)

    def commit_in_transaction(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        now: Now,
    ) -> Plan:
        """Handles a TxnOffsetCommit request; the response is an error code for each of `offsets`. The plan's records
        belong to the producer's transaction.

        Raises KafkaError if the group refuses the commit, and ILLEGAL_GENERATION if a client with a generation names a
        group that doesn't exist.
        """
        group = self.groups.get(group_id)
        if group is None and generation >= 0:
            raise KafkaError(ErrorCode.illegal_generation)
        if group is not None:
            error = group.commit_in_transaction(member_id, generation, instance_id)
            if error is not ErrorCode.none:
                raise KafkaError(error)
        return self._commit(group_id, offsets, now.wall_ms, -1)

    def _commit(self, group_id: str, offsets: Sequence[OffsetToCommit], commit_ms: int, expire_ms: int) -> Plan:
        plan = Plan(response=[])
        for item in offsets:
            metadata = item.metadata or ""
            if _java_length(metadata) > self.limits.offset_metadata_max_bytes:
                plan.response.append(ErrorCode.offset_metadata_too_large)
                continue
            plan.response.append(ErrorCode.none)
            value = Committed(item.offset, item.leader_epoch, metadata, commit_ms, expire_ms, item.topic_id)
            plan.changes.append((OffsetKey(group_id, item.topic, item.partition), value))
        return plan

    def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> Plan:
        """Handles an OffsetDelete request; the response is an error code for each partition.

        Raises KafkaError GROUP_ID_NOT_FOUND, or the group's own refusal.
        """
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found)
        if group.offset_deletion_error is not ErrorCode.none:
            raise KafkaError(group.offset_deletion_error)
        plan = Plan(response=[])
        known = set(self.offsets.keys_of(group_id))
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                plan.response.append(ErrorCode.group_subscribed_to_topic)
                continue
            plan.response.append(ErrorCode.none)
            key = OffsetKey(group_id, topic, partition)
            if key in known:
                plan.changes.append((key, None))
        return plan

    def delete_groups(self, group_ids: Iterable[str]) -> Plan:
        """Handles a DeleteGroups request; the response is an error code for each group."""
        plan = Plan(response=[])
        for group_id in group_ids:
            group = self.groups.get(group_id)
            error = ErrorCode.group_id_not_found if group is None else group.deletion_error
            plan.response.append(error)
            if group is not None and error is ErrorCode.none:
                plan.changes += ((key, None) for key in self.offsets.keys_of(group_id))
                plan.changes += ((key, None) for key in group.record_keys())
        return plan

    def expire(self, group_id: str, now: Now) -> Plan:
        """The tombstones of a group's expired offsets, and of the group itself if it is empty and has no offsets
        left."""
        group = self.groups.get(group_id)
        if group is None:
            return Plan()
        expired = self.offsets.expired(group, self.limits.offsets_retention_ms, now.wall_ms)
        plan = Plan([(key, None) for key in expired])
        gone = set(expired)
        deletable = group.deletion_error is ErrorCode.none
        if deletable and all(key in gone for key in self.offsets.keys_of(group_id)):
            plan.changes += ((key, None) for key in group.record_keys())
        return plan

    def topics_deleted(self, topics: Iterable[str], records_max: int) -> Iterator[Plan]:
        """Plans with the tombstones of the offsets of deleted topics, at most `records_max` in a plan. The offsets are
        determined when the method is called, not when a plan is made. So an offset that is committed later, for a new
        topic of the same name, stays. Offsets of open transactions go as well."""
        gone = list(self.offsets.of_topics(topics))
        return (
            Plan([(key, None) for key, values in gone[start : start + records_max] if self._has_only(key, values)])
            for start in range(0, len(gone), records_max)
        )

    def _has_only(self, key: OffsetKey, values: Sequence[Committed]) -> bool:
        """Whether a key has at least one of these values, and no value that is another object."""
        present = self.offsets.values(key)
        return bool(present) and all(any(value is other for other in values) for value in present)

    # --- changes of the state ---

    def appended(self, changes: Sequence[Change], base_offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Applies `changes`, which were appended, one record each from `base_offset` on; they may not be committed
        yet. With a `producer_id` ≥ 0 they belong to a transaction."""
        for offset, (key, value) in enumerate(changes, base_offset):
            if isinstance(key, GroupKey):
                if value is None:
                    self._remove(key.group)
            else:
                assert not isinstance(value, GroupMetadata)
                if value is not None:
                    self._ensure(key.group)
                self.offsets.appended(offset, key, value, producer_id)

    def replayed(
        self, key: bytes, value: bytes | None, offset: int, visible: bool, producer_id: int = NO_PRODUCER_ID
    ) -> bool:
        """Applies one record that was read back from `offset` of the log. Returns False if the record's kind is
        skipped.

        The record is `visible` to readers at once if it is below the high watermark. With a `producer_id` ≥ 0 it
        belongs to a transaction. Raises ProtocolError at malformed bytes.
        """
        about = read_key(key)
        if about is None:
            return False
        if isinstance(about, GroupKey):
            if value is None:
                self._remove(about.group)
            else:
                self.groups[about.group] = ClassicGroup.restored(about.group, self.limits, read_group_value(value))
            return True
        committed = None if value is None else read_offset_value(value)
        if committed is not None:
            self._ensure(about.group)
        apply = self.offsets.replayed if visible else self.offsets.appended
        apply(offset, about, committed, producer_id)
        return True

    def decided(self, producer_id: int, commit: bool, offset: int, visible: bool) -> int:
        """Applies the marker at `offset` of a producer's transaction: the transaction's offsets count from now on, or
        are dropped. The marker is `visible` to readers at once, or when it is committed. Returns how many offsets it
        has decided."""
        decided = self.offsets.decided(producer_id, commit, offset, visible)
        if commit:
            for key in decided:
                self._ensure(key.group)  # Kafka's older coordinators deleted groups that had no other offsets
        return len(decided)

    @property
    def unshown(self) -> Offsets:
        """The offsets, which keep the list of records that aren't visible yet."""
        return self.offsets

    def unload(self, error: ErrorCode) -> Effects:
        """Answers `error` to all waiting requests and drops all groups: this broker no longer is the coordinator."""
        effects = Effects()
        for group in self.groups.values():
            effects.answers += group.unload(error).answers
        self.groups.clear()
        return effects

    def _ensure(self, group_id: str) -> None:
        """Makes a group that only keeps offsets, unless the group exists."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, self.limits)

    def _remove(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.unload(ErrorCode.unknown_member_id)  # the group is empty, so no request waits


def _java_length(text: str) -> int:
    """The length of a text in UTF-16 code units, as Java counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
