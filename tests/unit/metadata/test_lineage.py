"""A process recognises the store that it knew before: by the random strings (words) in the store's lineage, the ids of
restores (generations), and the epochs of partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata import keys
from ottla.metadata.image import Image
from ottla.metadata.lineage import (
    ROWS_MAX,
    WORDS_PER_ROW,
    Known,
    check_logs,
    check_successor,
    is_due,
    judge,
    next_word,
)
from ottla.metadata.model.cluster import Cluster, LineageRow, new_restore_id
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.settings import Config
from ottla.metadata.model.topics import Tombstone, TopicIntent
from ottla.metadata.store import Delete, Entry, ForeignStore, Put, Snapshot

CLUSTER = Cluster("own")
TOPIC = UUID(int=7)


class History:
    """The rows of lineage words that the controller of one store has written."""

    def __init__(self, seed: int, rows: Mapping[int, LineageRow] = {}) -> None:
        self.rows = dict(rows)
        self._random = Random(seed)

    def add(self, count: int) -> Known:
        for _ in range(count):
            word = "".join(self._random.choices("abcdefghijklmnopqrstuvwxyzABCDEFGH0123456789-_", k=8))
            _, writes = next_word(self.rows, word)
            for write in writes:
                if not write.key.startswith(keys.lineage.prefix):
                    continue
                row = keys.lineage.of(write.key)
                if isinstance(write, Put):
                    self.rows[row] = LineageRow.decode(Entry(write.key, write.value, 1, 1))
                else:
                    assert isinstance(write, Delete)
                    del self.rows[row]
        return judge(None, CLUSTER, self.rows)

    def fork(self, seed: int) -> History:
        return History(seed, self.rows)


@given(before=st.integers(1, 200), since=st.integers(0, 300))
def test_the_same_store_is_known_however_far_it_has_gone(before: int, since: int) -> None:
    store = History(1)
    known = store.add(before)
    assert known.number == before - 1
    assert judge(known, CLUSTER, store.rows).number == before - 1
    store.add(since)
    assert judge(known, CLUSTER, store.rows).number == before + since - 1


@given(copied=st.integers(0, 200), seen=st.integers(1, 200), since=st.integers(0, 500))
def test_a_copy_is_told_however_far_it_has_gone(copied: int, seen: int, since: int) -> None:
    store = History(1)
    store.add(copied)
    copy = store.fork(2)
    known = store.add(seen)
    copy.add(since)
    with pytest.raises(ForeignStore, match="is an older copy"):
        judge(known, CLUSTER, copy.rows)


def test_a_day_is_kept_and_not_more() -> None:
    store = History(1)
    first = store.add(1)
    second = store.add(WORDS_PER_ROW)
    store.add(ROWS_MAX * WORDS_PER_ROW - WORDS_PER_ROW - 1)
    assert len(store.rows) == ROWS_MAX
    judge(first, CLUSTER, store.rows)
    copy = History(2)
    copy.add(ROWS_MAX * WORDS_PER_ROW)
    with pytest.raises(ForeignStore, match="so it has diverged"):
        judge(first, CLUSTER, copy.rows)
    store.add(1)
    assert len(store.rows) == ROWS_MAX
    judge(first, CLUSTER, store.rows)  # after such a long absence only epochs can decide
    judge(second, CLUSTER, store.rows)
    assert sum(len(row.encode()) + len(keys.lineage(0)) for row in store.rows.values()) < 160_000


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (None, "the metadata store is empty"),
        (Cluster("other"), "holds cluster other, and this process belongs to cluster own"),
        (
            Cluster("own", generation=1),
            "holds generation 1 of cluster own, which has since been restored as generation 2",
        ),
        (
            Cluster("own", generation=2),
            "has none of the random words that controllers write to it, and this process has seen word 5",
        ),
    ],
)
def test_what_isnt_the_own_store_is_said_in_one_sentence(cluster: Cluster | None, says: str) -> None:
    with pytest.raises(ForeignStore, match=says) as caught:
        judge(Known("own", 2, 5, "aaaaaaaa"), cluster, {})
    assert "\n" not in str(caught.value)
    assert "put the" in str(caught.value), "the message says what a person can do"


def test_who_has_seen_no_word_accepts_a_store_of_before_there_were_words() -> None:
    assert judge(None, CLUSTER, {}) == judge(Known("own", 0), CLUSTER, {}) == Known("own", 0)


def test_a_later_generation_needs_no_word() -> None:
    store = History(1)
    known = store.add(10)
    assert judge(known, Cluster("own", generation=1), {}) == Known("own", 1)


@pytest.mark.parametrize("number", [-1, 5])
def test_a_restore_by_an_earlier_version_that_kept_the_id_of_the_one_before_is_a_restore_of_its_own(
    number: int,
) -> None:
    """A version without restore ids keeps unknown fields. So its restore copies the restore id from the backup,
    although this is the id of the restore before."""
    first = Cluster("own", 1, restored_ms=1000, restore=new_restore_id(1, "AAAAAAAA"), past=("0@5",))
    document = json.loads(first.encode())
    document |= {"generation": 2, "restored_ms": 99_999}
    later = Cluster.decode(Entry(keys.cluster.key, json.dumps(document).encode(), 7, 1))
    known = judge(Known("own", 1, number, "aaaaaaaa", 1000, first.restore, first.past), later, {})
    assert (known.restore_id, known.past) == ("2@99999", ("0@5", first.restore))
    assert Cluster.decode(Entry(keys.cluster.key, later.encode(), 7, 1)) == later
    with pytest.raises(ForeignStore, match="has since been restored as generation 2"):
        judge(known, first, {})


def test_a_restore_of_an_earlier_version_is_told_from_later_ones() -> None:
    """A restore by an earlier version has no restore id: its generation and time together serve as its id."""
    first, second = Cluster("own", 1, restored_ms=2000), Cluster("own", 1, restored_ms=1000)
    known = judge(Known("own", 0, 5, "aaaaaaaa"), second, {})
    known = judge(known, first, {})
    with pytest.raises(ForeignStore):
        judge(known, second, {})
    with pytest.raises(ForeignStore):
        judge(judge(None, first, {}), second, {})
    with_an_id = Cluster("own", 1, restored_ms=500, restore="AAAAAAAA")
    known = judge(known, with_an_id, {})
    assert known.past == ("1@1000", "1@2000")
    for past in (first, second, Cluster("own")):
        with pytest.raises(ForeignStore):
            judge(known, past, {})


def test_of_restores_a_hundred_are_remembered() -> None:
    known = judge(None, CLUSTER, {})
    for number in range(1, 300):
        known = judge(known, Cluster("own", 1, restore=f"id-{number}"), {})
    assert len(known.past) == 100
    with pytest.raises(ForeignStore):
        judge(known, Cluster("own", 1, restore="id-298"), {})


def check(before: Image, after: Image, broker_id: int) -> None:
    for _ in check_successor(before, after, broker_id):
        pass


def partition(leader_epoch: int = 3, partition_epoch: int = 5, **rest: bool) -> Partition:
    return Partition(TOPIC, 0, (1, 2), (1,), (9,), 1, leader_epoch, partition_epoch, **rest)


def image(state: Partition | None, changed: int = 2, *, deleted: bool = False, revision: int = 10) -> Image:
    entries = [Entry(keys.topic("t"), TopicIntent("t", TOPIC, ((1, 2),)).encode(), 1, 1)]
    if state is not None:
        entries.append(Entry(keys.partition(TOPIC, 0), state.encode(), changed, 2))
    if deleted:
        entries.append(Entry(keys.tombstone(TOPIC), Tombstone(TOPIC, "t", (1,)).encode(), 11, 11))
    return Image.of(Snapshot(revision, tuple(entries)))


@pytest.mark.parametrize("state", [partition(2, 9), partition(9, 4)])
def test_a_snapshot_with_a_lower_epoch_is_an_older_one(state: Partition) -> None:
    with pytest.raises(ForeignStore, match="has t-0 in leader epoch"):
        check(image(partition()), image(state, 11, revision=11), 1)


@pytest.mark.parametrize("state", [partition(), partition(3, 6), partition(4, 6)])
def test_epochs_that_stay_or_grow_are_those_of_the_same_store(state: Partition) -> None:
    check(image(partition()), image(partition()), 1)
    check(image(partition()), image(state, 11, revision=11), 1)


@pytest.mark.parametrize(
    "older",
    [
        image(partition(), revision=9),
        image(partition(3, 5), 1, revision=20),  # the last change of t-0 that was seen is missing here
        image(partition(3, 6), 9, revision=20),
    ],
)
def test_a_snapshot_that_is_ahead_by_its_revision_only_is_an_older_one(older: Image) -> None:
    with pytest.raises(ForeignStore, match="is an older copy"):
        check(image(partition()), older, 1)


def test_what_was_deleted_before_doesnt_come_back() -> None:
    with pytest.raises(ForeignStore, match="has another state of t-0"):
        check(image(None), image(partition(), 9, revision=20), 3)
    settings = Entry("configs/topic/t", Config({"retention.ms": "1"}).encode(), 4, 4)
    with pytest.raises(ForeignStore, match="has other values of `configs` than this process saw"):
        check(image(None), Image.of(Snapshot(20, (settings,))), 3)


def test_a_replica_goes_only_with_a_tombstone() -> None:
    before = image(partition())
    with pytest.raises(ForeignStore, match="doesn't know t-0, although this broker has a replica of it"):
        check(before, image(None), 1)
    check(before, image(None, deleted=True, revision=11), 1)
    check(before, image(None), 3)  # a broker without a replica may have missed the tombstone
    # The watch was cut after the tombstone. The broker had confirmed the deletion, and the controller has removed every
    # key of the topic.
    check(image(partition(), deleted=True, revision=11), image(None, revision=15), 1)


def test_a_log_that_knows_a_later_epoch_says_that_the_store_is_older() -> None:
    check_logs(image(partition(3)), [((TOPIC, 0), 3), ((TOPIC, 1), 8)])
    check_logs(image(partition(3, restored=True)), [((TOPIC, 0), 8)])
    with pytest.raises(ForeignStore, match="has t-0 in leader epoch 3, and this broker's log has records of epoch 4"):
        check_logs(image(partition(3)), [((TOPIC, 0), 4)])


def test_a_word_is_due_when_something_has_changed_since_the_last() -> None:
    assert is_due(image(partition()))
    row = Entry(keys.lineage(0), LineageRow("aaaaaaaa").encode(), 10, 10)
    assert not is_due(Image.of(Snapshot(10, (row,))))
    assert is_due(Image.of(Snapshot(11, (row,))))
