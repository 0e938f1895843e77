"""Offsets of transactions: what a marker, a later record and a tombstone do to them, and what readers see meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.effects import Limits, Now
from ottla.broker.group.offsets import Offsets
from ottla.broker.group.records import Committed, GroupKey, GroupMetadata, MemberMetadata, OffsetKey, group_value
from ottla.broker.group.shard import GroupShard, OffsetToCommit
from ottla.protocol.errors import ErrorCode, KafkaError

KEY, OTHER = OffsetKey("g", "t", 0), OffsetKey("g", "t", 1)
NOW = Now(0, 1_000_000)
A, B = 7, 8  # producers


def commit(
    shard: GroupShard, *keys: OffsetKey, at: int = 0, offset: int = 5, producer_id: int = -1, now: Now = NOW
) -> None:
    """Commits an offset for each of these keys, in a transaction if there is a producer id."""
    for number, (group, topic, partition) in enumerate(keys):
        offsets = [OffsetToCommit(topic, None, partition, offset, -1, "")]
        if producer_id < 0:
            plan = shard.commit(group, "", -1, None, offsets, -1, now)
        else:
            plan = shard.commit_in_transaction(group, "", -1, None, offsets, now)
        assert plan.response == [ErrorCode.none]
        shard.appended(plan.changes, at + number, producer_id)


# --- one key ---


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_decides(committed: bool) -> None:
    offsets = Offsets()
    offsets.replayed(0, KEY, Committed(1))
    offsets.appended(1, KEY, Committed(2), A)
    offsets.committed(2)
    assert (offsets.latest(KEY), offsets.show(KEY), offsets.undecided(KEY)) == (Committed(1), Committed(1), True)
    assert offsets.decided(A, committed, 2, False) == [KEY]
    offsets.committed(3)
    assert offsets.latest(KEY) == offsets.show(KEY) == Committed(2 if committed else 1)
    assert not offsets.undecided(KEY)
    assert offsets.decided(A, committed, 3, False) == [], "a repeat of the marker"


def test_the_newest_record_counts_and_not_the_newest_marker() -> None:
    offsets = Offsets()
    offsets.appended(0, KEY, Committed(10), A)
    offsets.appended(1, KEY, Committed(20), B)
    offsets.decided(B, True, 2, True)
    assert offsets.undecided(KEY)
    offsets.decided(A, True, 3, True)
    assert offsets.show(KEY) == Committed(20)
    assert not offsets.undecided(KEY)


def test_an_aborted_offset_supersedes_nothing() -> None:
    offsets = Offsets()
    offsets.appended(0, KEY, Committed(10), A)
    offsets.appended(1, KEY, Committed(20), B)
    offsets.decided(B, False, 2, True)
    offsets.decided(A, True, 3, True)
    assert offsets.show(KEY) == Committed(10)


def test_a_commit_without_a_transaction_counts_at_once_and_supersedes_older_offsets() -> None:
    offsets = Offsets()
    offsets.appended(0, KEY, Committed(10), A)
    offsets.appended(1, KEY, Committed(20))
    offsets.appended(2, KEY, Committed(30), B)
    offsets.committed(3)
    assert offsets.show(KEY) == Committed(20)
    offsets.decided(A, True, 3, True)
    assert offsets.show(KEY) == Committed(20)
    assert offsets.undecided(KEY), "the other transaction is open"
    offsets.decided(B, True, 4, True)
    assert offsets.show(KEY) == Committed(30)


def test_a_transaction_commits_an_offset_twice() -> None:
    offsets = Offsets()
    offsets.appended(0, KEY, Committed(10), A)
    offsets.appended(1, KEY, Committed(20))
    offsets.appended(2, KEY, Committed(30), A)
    offsets.committed(3)
    assert offsets.decided(A, True, 3, True) == [KEY]
    assert offsets.show(KEY) == Committed(30)


def test_a_tombstone_drops_the_offsets_that_wait() -> None:
    offsets = Offsets()
    offsets.appended(0, KEY, Committed(10), A)
    offsets.appended(1, OTHER, Committed(11), A)
    offsets.appended(2, KEY, None)
    offsets.committed(3)
    assert not offsets.undecided(KEY)
    assert offsets.decided(A, True, 3, True) == [OTHER]
    assert offsets.show_all("g") == {"t": {1: Committed(11)}}


# --- readers ---


@pytest.mark.parametrize("committed", [True, False])
def test_a_key_is_undecided_until_its_marker_is_committed(committed: bool) -> None:
    """A consumer that got the offset from before the transaction would read the transaction's input again."""
    offsets = Offsets()
    offsets.replayed(0, KEY, Committed(1))
    offsets.appended(1, KEY, Committed(2), A)
    offsets.decided(A, committed, 2, False)
    offsets.committed(2)
    assert (offsets.show(KEY), offsets.undecided(KEY)) == (Committed(1), True)
    assert list(offsets.all_undecided("g")) == [KEY]
    offsets.committed(3)
    assert not offsets.undecided(KEY)
    assert list(offsets.all_undecided("g")) == []


def test_a_key_is_undecided_until_its_tombstone_is_committed() -> None:
    offsets = Offsets()
    offsets.appended(0, KEY, Committed(2), A)
    offsets.appended(1, KEY, None)
    offsets.committed(1)
    assert offsets.undecided(KEY)
    offsets.committed(2)
    assert not offsets.undecided(KEY)


def test_a_transactions_offsets_become_visible_together() -> None:
    offsets = Offsets()
    for partition in range(5):
        offsets.appended(partition, OffsetKey("g", "t", partition), Committed(partition), A)
    offsets.decided(A, True, 5, False)
    offsets.appended(6, OffsetKey("g", "t", 9), Committed(9))
    assert offsets.show_all("g") == {}
    offsets.committed(7, records_max=1)
    assert offsets.show_all("g") == {"t": {partition: Committed(partition) for partition in range(5)}}
    offsets.committed(7, records_max=1)
    assert offsets.show(OffsetKey("g", "t", 9)) == Committed(9)


def test_nothing_is_left_behind_by_transactions_that_have_ended() -> None:
    offsets = Offsets()
    for number in range(3):
        offsets.appended(3 * number, KEY, Committed(1), A)
        offsets.appended(3 * number + 1, KEY, None if number == 1 else Committed(2))
        offsets.decided(A, True, 3 * number + 2, False)
    offsets.committed(100)
    kept = vars(offsets) | vars(offsets._undecided)
    assert {name for name, value in kept.items() if value} == {"_latest", "_count", "_undecided"}


# --- the shard ---


def stable_group(protocol_type: str = "consumer") -> GroupMetadata:
    member = MemberMetadata("m", "i", "c", "h", 1, 10_000, b"", b"")
    return GroupMetadata(protocol_type, 3, "range", "m", 500, (member,))


@pytest.mark.parametrize(
    ("member_id", "generation", "instance_id", "error"),
    [
        ("m", 3, "i", ErrorCode.none),
        ("m", 3, None, ErrorCode.none),
        ("", -1, None, ErrorCode.none),  # a request from before KIP-447
        ("m", 2, None, ErrorCode.illegal_generation),
        ("m", 4, None, ErrorCode.illegal_generation),
        ("m", -1, None, ErrorCode.illegal_generation),
        ("x", 3, None, ErrorCode.unknown_member_id),
        ("", 3, None, ErrorCode.unknown_member_id),
        ("x", 3, "i", ErrorCode.fenced_instance_id),
        ("m", 3, "other", ErrorCode.unknown_member_id),
    ],
)
def test_a_group_refuses_the_transactions_of_others_than_its_members(
    member_id: str, generation: int, instance_id: str | None, error: ErrorCode
) -> None:
    group = ClassicGroup.restored("g", Limits(), stable_group())
    assert group.commit_in_transaction(member_id, generation, instance_id) is error


def test_the_state_of_a_group_doesnt_matter_to_transactions() -> None:
    """As in Kafka, a member may commit in a transaction while a generation begins, when a plain commit is refused."""
    group = ClassicGroup.restored("g", Limits(), stable_group())
    membership = group.membership
    membership.state = type(membership.state).COMPLETING_REBALANCE
    assert group.commit("m", 3, None, NOW) is ErrorCode.rebalance_in_progress
    assert group.commit_in_transaction("m", 3, None) is ErrorCode.none
    group.unload(ErrorCode.not_coordinator)
    assert group.commit_in_transaction("m", 3, None) is ErrorCode.coordinator_not_available


def test_a_group_without_members_takes_transactions_of_clients_without_a_generation() -> None:
    group = ClassicGroup("g", Limits())
    assert group.commit_in_transaction("", -1, None) is ErrorCode.none
    assert group.commit_in_transaction("m", -1, None) is ErrorCode.none
    assert group.commit_in_transaction("m", 0, None) is ErrorCode.unknown_member_id


def test_a_group_that_doesnt_exist() -> None:
    shard = GroupShard(Limits())
    with pytest.raises(KafkaError) as refusal:
        shard.commit_in_transaction("g", "m", 3, None, [OffsetToCommit("t", None, 0, 5, -1, "")], NOW)
    assert refusal.value.code is ErrorCode.illegal_generation
    commit(shard, KEY, producer_id=A)
    assert shard.groups["g"].state_name == "Empty"


def test_metadata_that_is_too_large_is_refused_in_transactions_as_well() -> None:
    shard = GroupShard(Limits(offset_metadata_max_bytes=1))
    asked = [OffsetToCommit("t", None, 0, 5, -1, "long"), OffsetToCommit("t", None, 1, 5, -1, "1")]
    plan = shard.commit_in_transaction("g", "", -1, None, asked, NOW)
    assert plan.response == [ErrorCode.offset_metadata_too_large, ErrorCode.none]
    assert [key for key, _ in plan.changes] == [OTHER]


def test_nothing_that_a_transaction_may_change_expires() -> None:
    shard = GroupShard(Limits(offsets_retention_ms=100))
    commit(shard, KEY)
    commit(shard, KEY, OTHER, at=1, producer_id=A)
    late = Now(0, NOW.wall_ms + 1_000)
    assert shard.expire("g", late).changes == []
    shard.decided(A, False, 3, False)
    assert shard.expire("g", late).changes == [], "an election may still revert the marker"
    shard.offsets.committed(4)
    assert shard.expire("g", late).changes == [(KEY, None), (GroupKey("g"), None)]


def test_a_group_whose_only_offset_waits_doesnt_expire() -> None:
    shard = GroupShard(Limits(offsets_retention_ms=100))
    commit(shard, KEY, producer_id=A)
    late = Now(0, NOW.wall_ms + 1_000)
    assert shard.expire("g", late).changes == []
    shard.decided(A, True, 1, True)
    assert shard.expire("g", late).changes == [(KEY, None), (GroupKey("g"), None)]


def test_the_group_of_an_aborted_transaction_expires() -> None:
    shard = GroupShard(Limits())
    commit(shard, KEY, producer_id=A)
    shard.decided(A, False, 1, True)
    assert shard.expire("g", NOW).changes == [(GroupKey("g"), None)]


def test_deleting_a_group_drops_the_offsets_that_wait() -> None:
    shard = GroupShard(Limits())
    commit(shard, KEY, producer_id=A)
    commit(shard, OTHER, at=1)
    plan = shard.delete_groups(["g"])
    assert plan.changes == [(OTHER, None), (KEY, None), (GroupKey("g"), None)]
    shard.appended(plan.changes, 2)
    assert shard.decided(A, True, 5, False) == 0
    assert not shard.groups
    assert not shard.offsets.has("g")


def test_deleting_an_offset_drops_the_offsets_that_wait() -> None:
    shard = GroupShard(Limits())
    commit(shard, KEY, producer_id=A)
    plan = shard.delete_offsets("g", [("t", 0), ("t", 1)])
    assert plan.changes == [(KEY, None)]
    shard.appended(plan.changes, 1)
    assert shard.decided(A, True, 2, False) == 0


def test_the_offsets_of_a_deleted_topic_go_with_it_from_open_transactions() -> None:
    shard = GroupShard(Limits())
    commit(shard, KEY, OTHER, at=0, producer_id=A)
    commit(shard, KEY, at=2, producer_id=B)
    commit(shard, OffsetKey("g", "other", 0), OffsetKey("h", "t", 0), at=3, producer_id=B)
    commit(shard, OTHER, at=5)
    (plan,) = shard.topics_deleted(["t"], 100)
    assert plan.changes == [(OTHER, None), (KEY, None), (OffsetKey("h", "t", 0), None)]
    shard.appended(plan.changes, 6)
    assert shard.decided(A, True, 9, False) == 0
    assert shard.decided(B, True, 10, False) == 1
    assert [list(shard.offsets.keys_of(group)) for group in "gh"] == [[OffsetKey("g", "other", 0)], []]


def test_offsets_of_a_new_topic_stay_when_the_deletion_of_the_old_one_comes_late() -> None:
    shard = GroupShard(Limits())
    commit(shard, KEY, producer_id=A)
    commit(shard, OTHER, at=1)
    plans = shard.topics_deleted(["t"], 100)
    commit(shard, KEY, at=2, offset=1, producer_id=B)
    (plan,) = plans
    assert plan.changes == [(OTHER, None)]
    shard.decided(B, True, 3, True)
    shard.decided(A, True, 4, True)
    latest = shard.offsets.latest(KEY)
    assert latest is not None
    assert latest.offset == 1, "the older record is superseded"


def test_a_deletion_that_comes_late_finds_an_offset_that_was_decided_meanwhile() -> None:
    shard = GroupShard(Limits())
    commit(shard, KEY, producer_id=A)
    plans = shard.topics_deleted(["t"], 100)
    shard.decided(A, True, 1, False)
    assert [plan.changes for plan in plans] == [[(KEY, None)]]


def test_an_offset_whose_group_was_deleted_gets_a_group() -> None:
    """Older coordinators of Kafka expire a group whose only offsets belong to open transactions (KAFKA-19163)."""
    shard = GroupShard(Limits())
    commit(shard, KEY, producer_id=A)
    shard.appended([(GroupKey("g"), None)], 1)
    assert not shard.groups
    shard.decided(A, True, 2, True)
    assert shard.groups["g"].state_name == "Empty"


# --- histories, against a model that reads the log from its beginning ---


class Entry(NamedTuple):
    """A record of a log: an offset, a tombstone (no value), or a marker (no key). `value` is unique."""

    key: OffsetKey | None
    value: int | None
    producer_id: int
    commit: bool = False


def read(log: Sequence[Entry | None]) -> tuple[dict[OffsetKey, int], set[OffsetKey]]:
    """The offsets after this log by Kafka's rule, which compares the log offsets of records, and the keys for which an
    open transaction has offsets. None in `log` stands for a record that compaction has removed."""
    offsets: dict[OffsetKey, tuple[int, int]] = {}
    waiting: dict[int, dict[OffsetKey, tuple[int, int]]] = {}
    for at, entry in enumerate(log):
        if entry is None:
            continue
        if entry.key is None:
            for key, (record, value) in waiting.pop(entry.producer_id, {}).items():
                if entry.commit and (key not in offsets or offsets[key][0] < record):
                    offsets[key] = record, value
        elif entry.value is None:
            offsets.pop(entry.key, None)
            for by_key in waiting.values():
                by_key.pop(entry.key, None)
        elif entry.producer_id >= 0:
            waiting.setdefault(entry.producer_id, {})[entry.key] = at, entry.value
        else:
            offsets[entry.key] = at, entry.value
    return {key: value for key, (_, value) in offsets.items()}, {key for by_key in waiting.values() for key in by_key}


KEYS = [OffsetKey(group, "t", partition) for group in ("g", "h") for partition in range(2)]
entries = st.one_of(
    st.builds(Entry, st.sampled_from(KEYS), st.just(0), st.sampled_from([-1, A, B, 9])),
    st.builds(Entry, st.sampled_from(KEYS), st.none(), st.just(-1)),
    st.builds(Entry, st.none(), st.none(), st.sampled_from([A, B, 9]), st.booleans()),
)
logs = st.lists(st.tuples(entries, st.integers(0, 3), st.integers(1, 2) | st.none()), max_size=40)


def numbered(steps: Sequence[tuple[Entry, int, int | None]]) -> list[Entry]:
    return [entry if entry.value is None else entry._replace(value=number) for number, (entry, *_) in enumerate(steps)]


def apply(offsets: Offsets, entry: Entry, at: int, visible: bool) -> None:
    if entry.key is None:
        offsets.decided(entry.producer_id, entry.commit, at, visible)
        return
    value = None if entry.value is None else Committed(entry.value)
    (offsets.replayed if visible else offsets.appended)(at, entry.key, value, entry.producer_id)


def all_of(offsets: Offsets) -> dict[OffsetKey, int]:
    return {key: value.offset for key in KEYS if (value := offsets.latest(key)) is not None}


def all_shown(offsets: Offsets) -> dict[OffsetKey, int]:
    shown = {key: value.offset for key in KEYS if (value := offsets.show(key)) is not None}
    assert shown == {
        OffsetKey(group, topic, partition): value.offset
        for group in ("g", "h")
        for topic, partitions in offsets.show_all(group).items()
        for partition, value in partitions.items()
    }
    return shown


@given(logs)
def test_both_views_are_those_of_the_log(steps: list[tuple[Entry, int, int | None]]) -> None:
    offsets, log, high_watermark = Offsets(), numbered(steps), 0
    for end, (entry, (_, moved, records_max)) in enumerate(zip(log, steps, strict=True), 1):
        apply(offsets, entry, end - 1, False)
        high_watermark = min(high_watermark + moved, end)
        offsets.committed(high_watermark, records_max)
        assert all_of(offsets) == read(log[:end])[0]
        first = offsets.first_unshown
        below = high_watermark if first is None else min(first, high_watermark)
        if records_max is None:
            assert first is None or first >= high_watermark
        assert all_shown(offsets) == read(log[:below])[0]
        undecided = set().union(*(read(log[:upto])[1] for upto in range(below, end + 1)))
        assert {key for key in KEYS if offsets.undecided(key)} == undecided
        assert {key for group in ("g", "h") for key in offsets.all_undecided(group)} == undecided
        assert len(offsets) == len(all_of(offsets))
        assert {key for group in ("g", "h") for key in offsets.keys_of(group)} == set(all_of(offsets)) | read(
            log[:end]
        )[1]


@given(logs, st.integers(0, 40))
def test_a_replay_restores_the_offsets_and_what_is_undecided(
    steps: list[tuple[Entry, int, int | None]], high_watermark: int
) -> None:
    log, offsets = numbered(steps), Offsets()
    for at, entry in enumerate(log):
        apply(offsets, entry, at, at < high_watermark)
    assert all_of(offsets) == read(log)[0]
    assert all_shown(offsets) == read(log[:high_watermark])[0]
    offsets.committed(len(log))
    assert all_shown(offsets) == read(log)[0]
    assert {key for key in KEYS if offsets.undecided(key)} == read(log)[1]


@given(logs)
def test_a_compacted_log_restores_the_same_offsets(steps: list[tuple[Entry, int, int | None]]) -> None:
    log = numbered(steps)
    expected, waiting = read(log)
    offsets = Offsets()
    for at, entry in enumerate(compacted(log)):
        if entry is not None:
            apply(offsets, entry, at, True)
    assert all_of(offsets) == expected
    assert {key for key in KEYS if offsets.undecided(key)} == waiting


def compacted(log: Sequence[Entry]) -> list[Entry | None]:
    """Compaction cleans up to the first record of an open transaction: aborted offsets go, and of each key all records
    but the newest."""
    kept: list[Entry | None] = list(log)
    opened: dict[int, list[int]] = {}
    for at, entry in enumerate(log):
        if entry.key is None:
            for record in opened.pop(entry.producer_id, []):
                kept[record] = log[record] if entry.commit else None
        elif entry.producer_id >= 0:
            opened.setdefault(entry.producer_id, []).append(at)
    stable = min((records[0] for records in opened.values()), default=len(log))
    kept[stable:] = log[stable:]
    newest = {entry.key: at for at, entry in enumerate(kept[:stable]) if entry is not None}
    return [
        entry if entry is None or entry.key is None or at >= stable or newest[entry.key] == at else None
        for at, entry in enumerate(kept)
    ]


GROUP = group_value(GroupMetadata())


@given(logs)
def test_a_shard_that_replays_its_log_is_the_shard_that_lived_through_it(
    steps: list[tuple[Entry, int, int | None]],
) -> None:
    shard, log = GroupShard(Limits()), list[tuple[Entry, list[tuple[bytes, bytes | None]]]]()
    offset = 0
    for entry in numbered(steps):
        if entry.key is None:
            shard.decided(entry.producer_id, entry.commit, offset, False)
            log.append((entry, []))
            offset += 1
            continue
        group, topic, partition = entry.key
        asked = [OffsetToCommit(topic, None, partition, entry.value or 0, -1, "")]
        if entry.value is None:
            plan = shard.delete_groups([group])
        elif entry.producer_id >= 0:
            plan = shard.commit_in_transaction(group, "", -1, None, asked, NOW)
        else:
            plan = shard.commit(group, "", -1, None, asked, -1, NOW)
        shard.appended(plan.changes, offset, entry.producer_id)
        log.append((entry, list(plan.encoded())))
        offset += len(plan.changes)
    again, offset = GroupShard(Limits()), 0
    for entry, records in log:
        if entry.key is None:
            again.decided(entry.producer_id, entry.commit, offset, True)
            offset += 1
        for offset, (key, value) in enumerate(records, offset):  # noqa: B020
            again.replayed(key, value, offset, True, entry.producer_id)
        offset += bool(records)
    assert all_of(again.offsets) == all_of(shard.offsets)
    shard.offsets.committed(offset)
    for key in KEYS:
        assert again.offsets.undecided(key) == shard.offsets.undecided(key)
    assert set(again.groups) == set(shard.groups)
