"""A shard (the groups of one partition of `__consumer_offsets`) serves groups of any type by the Python protocol
`Group`. Only the requests of Kafka's classic group protocol need a classic group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.effects import NEVER_MS, Effects, Join, Leaver, Limits, Now, Store, Sync
from ottla.broker.group.group import FROM_COMMIT, Group, GroupType
from ottla.broker.group.records import GroupKey, OffsetKey
from ottla.broker.group.shard import GroupShard, OffsetToCommit
from ottla.protocol.errors import ErrorCode, KafkaError

NOW = Now(1_000, 1_000_000)


@dataclass(eq=False)
class ShareLikeGroup:
    """A stand-in for a share group, with only the methods that a shard calls; its members never change."""

    group_id: str
    members: list[str] = field(default_factory=list)
    topics: tuple[str, ...] = ()
    is_dead: bool = False
    wake_ms: int = NEVER_MS
    retention_begins_ms: int | None = FROM_COMMIT
    waiting: list[Any] = field(default_factory=list)  # tickets
    heard: list[Any] = field(default_factory=list)

    type = GroupType.SHARE
    protocol_type = "share"
    offset_deletion_error = ErrorCode.none

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def deletion_error(self) -> ErrorCode:
        return ErrorCode.non_empty_group if self.members else ErrorCode.none

    def record_keys(self) -> list[GroupKey]:
        return [GroupKey(self.group_id), GroupKey(self.group_id)]  # a type with two kinds of records

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics

    def commit(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def time_passed(self, now: Now) -> Effects:
        self.heard.append(now)
        self.wake_ms = NEVER_MS
        return Effects()

    def loaded(self, now: Now) -> Effects:
        self.heard.append("loaded")
        return Effects()

    def unload(self, error: ErrorCode) -> Effects:
        self.is_dead = True
        return Effects(answers=[(ticket, {"error_code": error}) for ticket in self.waiting])

    def stored(self, store: Store, error: ErrorCode, now: Now) -> Effects:
        self.is_dead = error is not ErrorCode.none
        return Effects()


def shard_with(*members: str, topics: tuple[str, ...] = ()) -> tuple[GroupShard, ShareLikeGroup]:
    shard, group = GroupShard(Limits(offsets_retention_ms=100)), ShareLikeGroup("g", list(members), topics)
    as_port: Group = group
    shard.groups["g"] = as_port
    return shard, group


def to_commit(topic: str = "t") -> OffsetToCommit:
    return OffsetToCommit(topic, None, 0, 5, -1, "")


def commit(shard: GroupShard, member_id: str, *topics: str) -> None:
    plan = shard.commit("g", member_id, 1, None, [to_commit(topic) for topic in topics or ("t",)], -1, NOW)
    shard.appended(plan.changes, 0)


# --- requests of the classic protocol ---


def test_a_classic_client_cannot_join_a_group_of_another_type() -> None:
    shard, group = shard_with("m")
    join = Join("ticket", "", "new", "consumer", (("range", b""),), 10_000, 60_000, requires_known_id=False)
    for request in (join, join._replace(member_id="m")):
        effects = shard.join("g", request, NOW)
        expected = {"error_code": ErrorCode.inconsistent_group_protocol, "member_id": ""}
        assert (effects.answers, effects.stores) == ([("ticket", expected)], [])
    assert shard.groups == {"g": group}


def test_other_classic_requests_find_no_such_member() -> None:
    shard, _ = shard_with("m")
    assert shard.heartbeat("g", "m", 1, None, NOW) is ErrorCode.unknown_member_id
    synced = shard.sync("g", Sync("ticket", "m", 1, {}), NOW)
    assert synced.answers == [("ticket", {"error_code": ErrorCode.unknown_member_id})]
    answers, effects = shard.leave("g", [Leaver("m")], NOW)
    assert [answer["error_code"] for answer in answers] == [ErrorCode.unknown_member_id]
    assert effects == Effects()


# --- the interface of groups of all types ---


def test_the_group_says_who_may_commit() -> None:
    shard, _ = shard_with("m")
    commit(shard, "m")
    assert shard.offsets.latest(OffsetKey("g", "t", 0)) is not None
    with pytest.raises(KafkaError) as error:
        commit(shard, "stranger")
    assert error.value.code is ErrorCode.unknown_member_id
    assert isinstance(shard.groups["g"], ShareLikeGroup), "the commit leaves the group's type as it is"


def test_offsets_of_topics_that_members_read_stay() -> None:
    shard, group = shard_with("m", topics=("read",))
    commit(shard, "m", "read", "left")
    plan = shard.delete_offsets("g", [("read", 0), ("left", 0)])
    assert plan.response == [ErrorCode.group_subscribed_to_topic, ErrorCode.none]
    assert shard.expire("g", NOW._replace(wall_ms=NOW.wall_ms + 100)).changes == [(OffsetKey("g", "left", 0), None)]
    group.retention_begins_ms = NOW.wall_ms + 50
    assert shard.expire("g", NOW._replace(wall_ms=NOW.wall_ms + 100)).changes == []
    group.retention_begins_ms = None
    assert shard.expire("g", NOW._replace(wall_ms=NOW.wall_ms + 10**9)).changes == []


def test_a_group_may_refuse_the_deletion_of_offsets() -> None:
    shard, group = shard_with()
    group.offset_deletion_error = ErrorCode.group_id_not_found
    with pytest.raises(KafkaError) as error:
        shard.delete_offsets("g", [("t", 0)])
    assert error.value.code is ErrorCode.group_id_not_found


def test_an_empty_group_is_deleted_by_the_tombstones_of_all_its_records() -> None:
    shard, group = shard_with("m")
    commit(shard, "m")
    assert shard.delete_groups(["g"]).response == [ErrorCode.non_empty_group]
    group.members.clear()
    plan = shard.delete_groups(["g"])
    assert plan.response == [ErrorCode.none]
    assert plan.changes == [(OffsetKey("g", "t", 0), None), (GroupKey("g"), None), (GroupKey("g"), None)]
    shard.appended(plan.changes, 1)
    assert (shard.groups, group.is_dead) == ({}, True)


def test_an_empty_group_without_offsets_expires() -> None:
    shard, group = shard_with("m")
    assert shard.expire("g", NOW).changes == []
    group.members.clear()
    assert shard.expire("g", NOW).changes == [(GroupKey("g"), None), (GroupKey("g"), None)]


def test_a_group_that_died_because_its_record_was_not_stored_is_forgotten() -> None:
    shard, group = shard_with("m")
    store: Any = "a store"
    shard.stored(group, store, ErrorCode.none, NOW)
    assert "g" in shard.groups
    shard.stored(group, store, ErrorCode.not_coordinator, NOW)
    assert "g" not in shard.groups


def test_groups_of_all_types_answer_at_the_end_of_the_leadership() -> None:
    shard, group = shard_with("m")
    group.waiting.append("ticket")
    shard.groups["classic"] = ClassicGroup("classic", shard.limits)
    effects = shard.unload(ErrorCode.not_coordinator)
    assert effects.answers == [("ticket", {"error_code": ErrorCode.not_coordinator})]
    assert (shard.groups, group.is_dead) == ({}, True)
