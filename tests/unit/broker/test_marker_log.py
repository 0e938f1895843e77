"""Markers in the partitions that this broker leads, with real logs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ottla.broker import marker_log
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.marker_log import COMMITTED_S, PATIENT_S, UNTOLD_S, PartitionMarkers
from ottla.broker.marker_sender import AGAIN_S_MAX, UNCOMMITTED_AGAIN_S, Marker
from ottla.broker.partition import Partition
from ottla.broker.partitions import PartitionTable
from ottla.broker.transaction.metadata import V1, TopicPartition
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.test_group_service import virtually
from tests.unit.broker.test_transactional_appends import PRODUCER, TOPIC_ID, begin, led

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COMMIT = Marker(PRODUCER, 0, True, 3, V1)


class Groups:
    """The coordinator of groups: partition 0 accepts every marker, 1 refuses each, 2 never answers, and 3 commits each
    marker `lag_s` later."""

    def __init__(self, lag_s: float = 0) -> None:
        self.ended: list[tuple[int, Marker]] = []
        self._lag_s = lag_s

    def end_transaction(self, index: int, marker: Marker) -> asyncio.Future[None]:
        self.ended.append((index, marker))
        if index == 1:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if index == 0:
            ended.set_result(None)
        if index == 3:
            asyncio.get_running_loop().call_later(self._lag_s, ended.set_result, None)
        return ended


def markers(*partitions: Partition, lag_s: float = 0) -> tuple[PartitionMarkers, Groups]:
    table, groups = PartitionTable(), Groups(lag_s)
    for partition in partitions:
        table.add(partition)
    return PartitionMarkers(table, groups), groups


async def coordinate(log: PartitionMarkers, marker: Marker, partition: TopicPartition) -> int:
    """Sends the marker again and again, with a coordinator's pauses, until it is confirmed. Returns how often the
    marker was sent."""
    pause_s = UNCOMMITTED_AGAIN_S
    for count in range(1, 30):
        error = (await log.append_markers(marker, [partition]))[partition]
        if error is ErrorCode.none:
            return count
        assert error is ErrorCode.request_timed_out
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, AGAIN_S_MAX)
    raise AssertionError("the marker was never confirmed")


async def commit_late(partition: Partition, lag_s: float) -> None:
    """Plays a follower that has each record `lag_s` after the leader."""
    loop = asyncio.get_running_loop()
    while True:
        loop.call_later(lag_s, partition.follower_fetched, 1, 1, partition.log.log_end_offset, 0)
        await asyncio.sleep(0.05)


def follow(partition: Partition) -> None:
    """Adds replica 1 to the ISR: records are committed once it has fetched them."""
    partition.become_leader(PartitionState(TOPIC_ID, 0, (0, 1), (0, 1), (1, 1), 0, 1))


def begun_and_followed(folder: Path) -> Partition:
    """Partition 0 with an open transaction, and with replica 1 in the ISR, which hasn't fetched anything."""
    partition = led(folder, 0)
    begin(partition)
    follow(partition)
    return partition


def follow_no_more(partition: Partition) -> None:
    partition.become_leader(PartitionState(TOPIC_ID, 0, (0, 1), (0,), (1,), 0, 1))


def test_a_marker_is_confirmed_when_it_is_committed(tmp_path: Path) -> None:
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        asked = asyncio.ensure_future(log.append_markers(COMMIT, [T0, T1]))
        await asyncio.sleep(COMMITTED_S / 2)
        assert not asked.done()
        partition.follower_fetched(1, 1, partition.log.log_end_offset, 0)
        assert await asked == {T0: ErrorCode.none, T1: ErrorCode.unknown_topic_or_partition}
        assert partition.last_stable_offset == partition.high_watermark == 2

    virtually(scene)


def test_a_marker_that_is_not_committed_in_time_is_no_success(tmp_path: Path) -> None:
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        began = asyncio.get_running_loop().time()
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.request_timed_out}
        assert asyncio.get_running_loop().time() - began == COMMITTED_S

    virtually(scene)


def test_a_marker_that_may_still_be_committed_is_not_appended_again(tmp_path: Path) -> None:
    """Before the fix, each repeat put one more marker into the log."""
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        for _ in range(20):
            assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.request_timed_out}
        assert partition.log.log_end_offset == 2
        newer = COMMIT._replace(coordinator_epoch=4)
        assert await log.append_markers(newer, [T0]) == {T0: ErrorCode.request_timed_out}
        assert partition.log.log_end_offset == 3, "a new coordinator's marker is another one"
        asked = asyncio.ensure_future(coordinate(log, newer, T0))
        await asyncio.sleep(10)
        partition.follower_fetched(1, 1, partition.log.log_end_offset, 0)
        assert await asked < 10
        assert partition.log.log_end_offset == 3
        follow_no_more(partition)
        assert await log.append_markers(newer, [T0]) == {T0: ErrorCode.none}
        assert partition.log.log_end_offset == 4, "a repeat of a committed marker is appended, as in Kafka"

    virtually(scene)


@pytest.mark.parametrize("lag_s", [0.9, 1.2, 1.4, 2.3, 5.2])
def test_a_marker_is_appended_once_and_confirmed_however_late_it_is_committed(tmp_path: Path, lag_s: float) -> None:
    """Before the fix, a marker that was always committed between two attempts was appended again at each of them."""
    partition = begun_and_followed(tmp_path)
    offsets = TopicPartition(OFFSETS_TOPIC, 3)

    async def scene() -> None:
        log, groups = markers(partition, lag_s=lag_s)
        follower = asyncio.ensure_future(commit_late(partition, lag_s))
        await asyncio.gather(*(coordinate(log, COMMIT, each) for each in (T0, offsets)))
        assert partition.log.log_end_offset == 2
        assert groups.ended == [(3, COMMIT)]
        assert not log.remembered_count
        follower.cancel()

    virtually(scene)


def test_an_equal_marker_of_the_next_transaction_is_appended(tmp_path: Path) -> None:
    """A producer of protocol V1 ends each transaction with an equal marker. Here the next transaction begins although
    the coordinator wasn't told of the last one's marker."""
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.request_timed_out}
        follow_no_more(partition)
        await asyncio.sleep(0)
        begin(partition, 1)
        assert partition.last_stable_offset == 2
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.none}
        assert partition.last_stable_offset == partition.log.log_end_offset == 4

    virtually(scene)


@pytest.mark.parametrize("anew", ["created", "elected"])
def test_a_marker_counts_no_longer_in_a_partition_that_is_created_or_elected_anew(tmp_path: Path, anew: str) -> None:
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.request_timed_out}
        follow_no_more(partition)
        await asyncio.sleep(0)
        assert log.remembered_count == 1
        now = partition
        if anew == "created":
            (tmp_path / "anew").mkdir()
            now = led(tmp_path / "anew", 0)
            log._table.remove(partition)
            log._table.add(now)
        else:
            partition.become_leader(PartitionState(TOPIC_ID, 0, (0, 1), (0,), (1,), 0, 2))
        end = now.log.log_end_offset
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.none}
        assert now.log.log_end_offset == end + 1

    virtually(scene)


def test_markers_whose_coordinators_do_not_ask_again_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_log, "UNTOLD_MAX", 10)
    partition = led(tmp_path, 0)
    follow(partition)

    async def scene() -> None:
        log, _ = markers(partition)
        several = [COMMIT._replace(producer_id=producer_id) for producer_id in range(20)]
        await asyncio.gather(*(log.append_markers(each, [T0]) for each in several))
        assert log.remembered_count == 20
        follow_no_more(partition)
        await asyncio.sleep(0)
        assert log.remembered_count == 10
        await asyncio.sleep(UNTOLD_S + 1)
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.none}
        assert not log.remembered_count

    virtually(scene)


def test_a_tool_is_told_of_a_late_commit(tmp_path: Path) -> None:
    """A tool takes REQUEST_TIMED_OUT for a failure. Before the fix, it got this answer at once if another marker had
    waited for a while."""
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        assert await log.append_markers(COMMIT._replace(producer_id=1), [T0]) == {T0: ErrorCode.request_timed_out}
        await asyncio.sleep(60)
        asked = asyncio.ensure_future(log.append_markers(COMMIT, [T0], patient=True))
        await asyncio.sleep(PATIENT_S - 1)
        partition.follower_fetched(1, 1, partition.log.log_end_offset, 0)
        assert await asked == {T0: ErrorCode.none}

    virtually(scene)


def test_a_marker_that_an_election_may_have_removed_is_appended_again(tmp_path: Path) -> None:
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.request_timed_out}
        partition.resign("the test")
        partition.become_leader(PartitionState(TOPIC_ID, 0, (0, 1), (0, 1), (1, 1), 0, 2))
        end = partition.log.log_end_offset
        asked = asyncio.ensure_future(log.append_markers(COMMIT, [T0]))
        await asyncio.sleep(COMMITTED_S / 2)
        assert partition.log.log_end_offset == end + 1
        partition.follower_fetched(1, 1, partition.log.log_end_offset, 2)
        assert await asked == {T0: ErrorCode.none}

    virtually(scene)


def test_a_partition_that_commits_nothing_holds_up_one_answer_for_a_short_time(tmp_path: Path) -> None:
    """The first marker of such a partition is waited for, and later ones are not: their coordinator's request has
    markers of other transactions."""
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        time, waits = asyncio.get_running_loop().time, []
        for producer_id in range(PRODUCER, PRODUCER + 5):
            began = time()
            marker = COMMIT._replace(producer_id=producer_id)
            assert await log.append_markers(marker, [T0]) == {T0: ErrorCode.request_timed_out}
            waits.append(time() - began)
        assert waits == [COMMITTED_S, 0, 0, 0, 0]
        partition.follower_fetched(1, 1, partition.log.log_end_offset, 0)
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.none}
        asked = asyncio.ensure_future(log.append_markers(COMMIT, [T0]))
        await asyncio.sleep(COMMITTED_S / 2)
        assert not asked.done(), "the partition commits again, so it is waited for again"
        partition.follower_fetched(1, 1, partition.log.log_end_offset, 0)
        assert await asked == {T0: ErrorCode.none}

    virtually(scene)


def test_a_leader_that_resigns_answers_so(tmp_path: Path) -> None:
    partition = begun_and_followed(tmp_path)

    async def scene() -> None:
        log, _ = markers(partition)
        asked = asyncio.ensure_future(log.append_markers(COMMIT, [T0]))
        await asyncio.sleep(COMMITTED_S / 2)
        partition.resign("the test")
        assert await asked == {T0: ErrorCode.not_leader_or_follower}
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.not_leader_or_follower}

    virtually(scene)


def test_a_coordinator_of_an_older_epoch_is_refused(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    begin(partition)

    async def scene() -> None:
        log, _ = markers(partition)
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.none}
        fenced = {T0: ErrorCode.transaction_coordinator_fenced}
        assert await log.append_markers(COMMIT._replace(coordinator_epoch=2), [T0]) == fenced
        assert await log.append_markers(COMMIT, [T0]) == {T0: ErrorCode.none}, "a repeat"

    virtually(scene)


def test_markers_for_groups_offsets_go_through_the_coordinator_of_groups() -> None:
    async def scene() -> None:
        log, groups = markers()
        offsets: list[Any] = [TopicPartition(OFFSETS_TOPIC, index) for index in range(3)]
        assert await log.append_markers(COMMIT, offsets) == {
            offsets[0]: ErrorCode.none,
            offsets[1]: ErrorCode.not_leader_or_follower,
            offsets[2]: ErrorCode.request_timed_out,
        }
        assert groups.ended == [(index, COMMIT) for index in range(3)]
        assert await log.append_markers(COMMIT, offsets[2:]) == {offsets[2]: ErrorCode.request_timed_out}
        assert len(groups.ended) == 3, "the marker may still be committed"

    virtually(scene)
