"""Committed offsets: two views of one table, expiry, and the same state after an append and after its replay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.effects import Limits, Now
from ottla.broker.group.offsets import Offsets
from ottla.broker.group.partitioning import partition_for
from ottla.broker.group.records import Committed, GroupMetadata, MemberMetadata, OffsetKey
from ottla.broker.group.shard import GroupShard, OffsetToCommit
from ottla.broker.group.states import State
from ottla.broker.group.subscription import subscribed_topics
from ottla.protocol.errors import ErrorCode, KafkaError

KEY = OffsetKey("g", "t", 0)
NOW = Now(0, 1_000_000)
DAY_MS = 86_400_000
SUBSCRIPTION = bytes.fromhex("0001 00000002 0001 61 0001 62 00000000 00000000".replace(" ", ""))


def to_commit(offset: int = 5, partition: int = 0, metadata: str | None = "", topic: str = "t") -> OffsetToCommit:
    return OffsetToCommit(topic, None, partition, offset, -1, metadata)


def commit(
    shard: GroupShard, group: str = "g", *offsets: OffsetToCommit, at: int = 0, now: Now = NOW
) -> list[ErrorCode]:
    plan = shard.commit(group, "", -1, None, offsets or [to_commit()], -1, now)
    shard.appended(plan.changes, at)
    codes: list[ErrorCode] = plan.response
    return codes


# --- two views ---


def test_only_what_is_committed_is_shown() -> None:
    offsets = Offsets()
    offsets.appended(10, KEY, Committed(1))
    assert (offsets.show(KEY), offsets.latest(KEY)) == (None, Committed(1))
    assert offsets.show_all("g") == {}
    offsets.appended(11, KEY, Committed(2))
    offsets.committed(11)
    assert (offsets.show(KEY), offsets.latest(KEY)) == (Committed(1), Committed(2))
    assert offsets.show_all("g") == {"t": {0: Committed(1)}}
    offsets.appended(12, KEY, None)
    offsets.committed(12)
    assert (offsets.show(KEY), offsets.latest(KEY)) == (Committed(2), None)
    offsets.committed(13)
    assert offsets.show(KEY) is None
    assert offsets.show_all("g") == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3) | st.none(), st.integers(0, 3)),
        max_size=30,
    )
)
def test_the_committed_view_is_a_prefix_of_the_log(steps: list[tuple[int, int | None, int]]) -> None:
    """The view is compared with a model that keeps the whole log and reads it up to the high watermark."""
    offsets, log, high_watermark = Offsets(), list[tuple[OffsetKey, Committed | None]](), 0
    for partition, value, committed in steps:
        key = OffsetKey("g", "t", partition)
        record = None if value is None else Committed(value)
        offsets.appended(len(log), key, record)
        log.append((key, record))
        high_watermark = min(high_watermark + committed, len(log))
        offsets.committed(high_watermark)
        for index in range(3):
            key = OffsetKey("g", "t", index)
            latest = dict(log).get(key)
            shown = dict(log[:high_watermark]).get(key)
            assert (offsets.latest(key), offsets.show(key)) == (latest, shown)
            assert offsets.show_all("g").get("t", {}).get(index) == shown
        assert offsets.unshown_count == len(log) - high_watermark
        assert len(offsets) == len(list(offsets.keys_of("g")))


# --- commits ---


def test_a_commit_without_a_group_makes_a_simple_one() -> None:
    shard = GroupShard(Limits())
    assert commit(shard) == [ErrorCode.none]
    group = shard.groups["g"]
    assert (group.membership.state, group.membership.roster.protocol_type) == (State.EMPTY, None)
    with pytest.raises(KafkaError) as error:
        shard.commit("other", "m", 3, None, [to_commit()], -1, NOW)
    assert error.value.code is ErrorCode.group_id_not_found


def test_metadata_is_counted_as_java_counts() -> None:
    shard = GroupShard(Limits(offset_metadata_max_bytes=4))
    metadata = ["abcd", "abcde", "éééé", "😀😀", "😀😀a", None]
    plan = shard.commit("g", "", -1, None, [to_commit(1, i, text) for i, text in enumerate(metadata)], -1, NOW)
    fits, large = ErrorCode.none, ErrorCode.offset_metadata_too_large
    assert plan.response == [fits, large, fits, fits, large, fits]
    assert len(plan.changes) == 4


# --- deleting ---


def stable_group(*topics: bytes) -> GroupMetadata:
    member = MemberMetadata("m", None, "c", "h", 1, 10_000, SUBSCRIPTION, b"")
    return GroupMetadata("consumer", 3, "range", "m", 500, (member,))


def test_deleting_offsets() -> None:
    shard = GroupShard(Limits())
    commit(shard, "g", to_commit(topic="a"), to_commit(topic="z"))
    shard.groups["g"] = ClassicGroup.restored("g", shard.limits, stable_group())
    plan = shard.delete_offsets("g", [("a", 0), ("z", 0), ("z", 9)])
    assert plan.response == [ErrorCode.group_subscribed_to_topic, ErrorCode.none, ErrorCode.none]
    assert plan.changes == [(OffsetKey("g", "z", 0), None)]
    with pytest.raises(KafkaError):
        shard.delete_offsets("nobody", [])


def test_deleting_offsets_of_workers() -> None:
    shard = GroupShard(Limits())
    value = stable_group()
    connect = GroupMetadata("connect", 3, "sessioned", "m", 500, value.members)
    shard.groups["g"] = ClassicGroup.restored("g", shard.limits, connect)
    with pytest.raises(KafkaError) as error:
        shard.delete_offsets("g", [("a", 0)])
    assert error.value.code is ErrorCode.non_empty_group


def test_deleting_groups() -> None:
    shard = GroupShard(Limits())
    commit(shard, "g", to_commit(), to_commit(partition=1))
    shard.groups["busy"] = ClassicGroup.restored("busy", shard.limits, stable_group())
    plan = shard.delete_groups(["g", "busy", "nobody"])
    assert plan.response == [ErrorCode.none, ErrorCode.non_empty_group, ErrorCode.group_id_not_found]
    assert len(plan.changes) == 3
    shard.appended(plan.changes, 10)
    assert set(shard.groups) == {"busy"}
    assert not shard.offsets.has("g")


def test_offsets_of_deleted_topics() -> None:
    shard = GroupShard(Limits())
    commit(shard, "g", to_commit(topic="a"), to_commit(topic="b"))
    commit(shard, "h", to_commit(topic="a", partition=3))
    [plan] = shard.topics_deleted(["a", "c"], 10)
    assert [key for key, _ in plan.changes] == [OffsetKey("g", "a", 0), OffsetKey("h", "a", 3)]


def test_what_is_committed_for_a_topic_made_anew_stays_while_the_old_ones_offsets_go() -> None:
    shard = GroupShard(Limits())
    for group in ("g", "h", "i"):
        commit(shard, group, to_commit(topic="a"))
    plans = shard.topics_deleted(["a"], 1)
    assert next(plans).changes == [(OffsetKey("g", "a", 0), None)]
    commit(shard, "h", to_commit(topic="a"))
    assert [plan.changes for plan in plans] == [[], [(OffsetKey("i", "a", 0), None)]]


# --- expiry: the table of Offsets.expired ---


def group_of(kind: str, limits: Limits) -> ClassicGroup:
    if kind == "simple":
        return ClassicGroup("g", limits)
    value = stable_group()
    if kind == "empty":
        return ClassicGroup.restored("g", limits, GroupMetadata("consumer", 4, None, None, 5 * DAY_MS))
    if kind == "empty, since when unknown":
        return ClassicGroup.restored("g", limits, GroupMetadata("consumer", 4, None, None, -1))
    if kind == "workers":
        return ClassicGroup.restored("g", limits, GroupMetadata("connect", 4, "p", "m", 1, value.members))
    group = ClassicGroup.restored("g", limits, value)
    if kind == "rebalancing":
        group.membership.state = State.PREPARING_REBALANCE
    if kind == "unreadable":
        group.membership.topics = None
    return group


@pytest.mark.parametrize(
    ("kind", "expires_on"),
    [
        ("simple", 1 + 7),
        ("empty", 5 + 7),  # counted from the departure of the last member
        ("empty, since when unknown", 1 + 7),
        ("stable", 1 + 7),  # no member subscribes to the topic any more
        ("rebalancing", None),
        ("unreadable", None),
        ("workers", None),
    ],
)
def test_when_offsets_expire(kind: str, expires_on: int | None) -> None:
    limits = Limits()
    offsets = Offsets()
    offsets.replayed(0, KEY, Committed(5, commit_ms=1 * DAY_MS))
    group = group_of(kind, limits)
    for day in range(40):
        due = expires_on is not None and day >= expires_on
        assert offsets.expired(group, limits.offsets_retention_ms, day * DAY_MS) == ([KEY] if due else [])


def test_subscribed_topics_do_not_expire() -> None:
    offsets = Offsets()
    offsets.replayed(0, OffsetKey("g", "a", 0), Committed(5, commit_ms=0))
    group = group_of("stable", Limits())
    assert offsets.expired(group, 1, 100 * DAY_MS) == []


def test_an_expiry_of_its_own() -> None:
    offsets = Offsets()
    offsets.replayed(0, KEY, Committed(5, commit_ms=0, expire_ms=1_000))
    group = group_of("simple", Limits())
    assert offsets.expired(group, DAY_MS, 999) == []
    assert offsets.expired(group, DAY_MS, 1_000) == [KEY]


def test_a_group_goes_with_its_last_offset() -> None:
    shard = GroupShard(Limits(offsets_retention_ms=100))
    commit(shard, now=Now(0, 1_000))
    commit(shard, "g", to_commit(partition=1), at=1, now=Now(0, 1_050))
    assert shard.expire("g", Now(0, 1_099)).changes == []
    first = shard.expire("g", Now(0, 1_120)).changes
    assert first == [(KEY, None)]
    shard.appended(first, 5)
    last = shard.expire("g", Now(0, 1_150)).changes
    assert len(last) == 2
    shard.appended(last, 6)
    assert not shard.groups


# --- replay ---


GROUPS = ["g", "h"]
actions = st.tuples(
    st.sampled_from(["commit", "commit", "commit", "delete offset", "delete group", "expire"]),
    st.sampled_from(GROUPS),
    st.integers(0, 2),
    st.integers(0, 50),
)


@given(st.lists(actions, max_size=40))
def test_a_replay_ends_where_the_appends_did(steps: list[tuple[str, str, int, int]]) -> None:
    shard, log, now_ms = GroupShard(Limits(offsets_retention_ms=100)), list[tuple[bytes, bytes | None]](), 0
    for what, group, partition, number in steps:
        now_ms += number
        now = Now(now_ms, now_ms)
        try:
            if what == "commit":
                plan = shard.commit(group, "", -1, None, [to_commit(number, partition)], -1, now)
            elif what == "delete offset":
                plan = shard.delete_offsets(group, [("t", partition)])
            elif what == "delete group":
                plan = shard.delete_groups([group])
            else:
                plan = shard.expire(group, now)
        except KafkaError:
            continue
        shard.appended(plan.changes, len(log))
        log += plan.encoded()
    again = GroupShard(shard.limits)
    for offset, (key, value) in enumerate(log):
        assert again.replayed(key, value, offset, True)
    for group in GROUPS:
        keys = set(shard.offsets.keys_of(group))
        assert set(again.offsets.keys_of(group)) == keys
        assert [again.offsets.latest(key) for key in keys] == [shard.offsets.latest(key) for key in keys]
    assert {name: group.membership.snapshot() for name, group in again.groups.items()} == {
        name: group.membership.snapshot() for name, group in shard.groups.items()
    }


# --- small things ---


@pytest.mark.parametrize(
    ("group", "partition"), [("readers", 28), ("statics", 37), ("simple", 26), ("ret", 1), ("", 0)]
)
def test_groups_live_where_kafka_puts_them(group: str, partition: int) -> None:
    assert partition_for(group, 50) == partition


@pytest.mark.parametrize(
    ("data", "topics"),
    [
        ([SUBSCRIPTION], {"a", "b"}),
        ([SUBSCRIPTION, bytes.fromhex("000300000001000163ffffffff")], {"a", "b", "c"}),
        ([], set()),
        ([b""], None),
        ([bytes.fromhex("00010000000200")], None),
        ([bytes.fromhex("0001ffffffff")], None),
        ([bytes.fromhex("00010000000100ff61")], None),
    ],
)
def test_reading_subscriptions(data: list[bytes], topics: Any) -> None:
    assert subscribed_topics(data) == topics
