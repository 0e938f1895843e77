"""A broker as a follower: its fetchers and their sessions, against a leader that can be held, cut and changed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ottla.broker import follower_log, replica_fetcher
from ottla.broker.counters import TopicCounters
from ottla.broker.log.log import Log
from ottla.broker.partition import Partition
from ottla.broker.replication import Replication
from ottla.metadata.model.brokers import Endpoint
from ottla.protocol.errors import ErrorCode
from ottla.protocol.fetch import PartitionAnswer, diverging_epoch_tags
from ottla.settings.config import BrokerConfig
from tests.unit.broker.leader_stand_in import TOPIC_ID, LeaderStandIn
from tests.unit.broker.log.workbench import Workbench, append, batch_of

LEADER = 1


class World:
    """Broker 0 follows broker 1, which is a stand-in."""

    def __init__(self, folder: Path, partitions: int = 1, **settings: str) -> None:
        self.leader = LeaderStandIn(folder / "leader", partitions)
        values = {"node.id": "0", "replica.fetch.backoff.ms": "50"} | settings
        self.config = BrokerConfig.from_sources("\n".join(f"{name}={value}" for name, value in values.items()))
        self.registered = SimpleNamespace(epoch=11, endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "one", 1)})
        self.brokers: dict[int, Any] = {LEADER: self.registered}
        self.topic_settings: dict[str, str] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.broker_epoch = 99
        self.shortened: list[Log] = []
        self.replication = Replication(
            0,
            lambda: self.broker_epoch,
            self._image,
            lambda: self.config,
            self._spawn,
            self.shortened.append,
            self.leader.connect,
        )
        (folder / "follower").mkdir()
        self.benches = [Workbench(folder / "follower" / str(index)) for index in range(partitions)]
        self.partitions = [
            Partition("t", TOPIC_ID, index, bench.log(), TopicCounters(), lambda: 1000, Mock())
            for index, bench in enumerate(self.benches)
        ]

    def _image(self) -> Any:
        return SimpleNamespace(brokers=self.brokers, config=lambda kind, name: self.topic_settings)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(coroutine, name=name))
        return self.tasks[-1]

    def follow(self, *indexes: int, epoch: int = 1, leader: int = LEADER) -> None:
        self.leader.epoch = epoch
        for index in indexes or range(len(self.partitions)):
            self.partitions[index].leader = leader
            self.partitions[index].epoch = epoch
            self.replication.follow(self.partitions[index])

    def write(self, index: int, *values: bytes, epoch: int = 1) -> None:
        append(self.leader.logs[index], batch_of(list(values)), epoch)

    def alike(self, *indexes: int) -> bool:
        return all(
            contents(self.partitions[index].log) == contents(self.leader.logs[index])
            for index in indexes or range(len(self.partitions))
        )


def contents(log: Any) -> tuple[int, int, bytes]:
    data = log.read_bytes(log.log_start_offset, 1 << 20, log.log_end_offset)
    return log.log_start_offset, log.log_end_offset, data


async def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def run(
    scene: Callable[[World], Coroutine[Any, Any, None]], folder: Path, partitions: int = 1, **settings: str
) -> None:
    async def main() -> None:
        world = World(folder, partitions, **settings)
        try:
            await asyncio.wait_for(scene(world), 20)
        finally:
            await world.replication.stop()
        assert all(task.done() for task in world.tasks)
        assert not [task for task in world.tasks if not task.cancelled() and task.exception()]
        assert world.leader.open_connections == 0

    asyncio.run(main())


def test_records_watermark_and_start_follow_the_leaders(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        for index in range(3):
            world.write(index, b"a", b"b")
        world.follow()
        await eventually(world.alike)
        world.write(1, b"c")
        world.write(1, b"d", epoch=1)
        await eventually(world.alike)
        assert [partition.high_watermark for partition in world.partitions] == [2, 4, 2]
        world.leader.logs[1].delete_records_before(3)
        await eventually(lambda: world.partitions[1].log.log_start_offset == 3)
        assert world.replication.bytes_in == sum(log.size for log in world.leader.logs)
        assert world.replication.max_lag == 0
        assert len(world.leader.connections) == 1
        request = world.leader.requests[0]
        assert (request.replica_id, request.replica_epoch, request.max_wait_ms) == (0, 99, 500)

    run(scene, tmp_path, 3)


def test_an_answer_of_many_small_batches_is_applied_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher, "_BATCHES_AT_ONCE", 3)

    async def scene(world: World) -> None:
        for number in range(20):
            world.write(0, b"%d" % number)
        for number in range(6):
            world.write(1, b"%d" % number)
        world.follow()
        await eventually(world.alike)
        assert world.replication.bytes_in == sum(log.size for log in world.leader.logs)
        for number in range(9):
            world.write(0, b"%d" % number)
        await eventually(lambda: world.partitions[0].log.log_end_offset > 20)
        world.replication.unfollow(world.partitions[0])  # may happen between two steps of a fetch
        await asyncio.sleep(0.05)
        assert world.partitions[0].log.log_end_offset in (23, 26, 29)
        world.follow()
        await eventually(world.alike)

    run(scene, tmp_path, 2)


def test_idle_partitions_arent_named_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow()
        world.write(7, b"a")
        await eventually(world.alike)
        await eventually(lambda: world.replication.min_fetch_rate > 0)
        seen = len(world.leader.requests)
        await eventually(lambda: len(world.leader.requests) > seen + 5)
        assert len(world.leader.requests[0].topics[0][1]) == 40
        assert not any(request.topics for request in world.leader.requests[seen:])

    run(scene, tmp_path, 40)


def test_under_a_new_registration_every_partition_is_named_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow()
        await eventually(lambda: len(world.leader.requests) > 3)
        world.broker_epoch = 100
        await eventually(lambda: sum(bool(request.topics) for request in world.leader.requests) == 2)
        named = [request for request in world.leader.requests if request.topics]
        assert [request.replica_epoch for request in named] == [99, 100]
        assert [len(request.topics[0][1]) for request in named] == [3, 3]

    run(scene, tmp_path, 3)


def test_a_log_that_took_another_turn_is_truncated_by_epochs(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        for log in (world.leader.logs[0], world.partitions[0].log):
            append(log, batch_of([b"shared"]), 1)
        append(world.partitions[0].log, batch_of([b"lost", b"lost"]), 1)
        append(world.partitions[0].log, batch_of([b"lost"]), 2)
        world.write(0, b"kept", epoch=3)
        world.follow(epoch=3)
        await eventually(world.alike)
        assert world.partitions[0].log.epochs.entries == [(1, 0), (3, 1)]

    run(scene, tmp_path)


def test_after_a_truncation_the_watermark_is_heard_that_came_with_it(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        for log in (world.leader.logs[0], world.partitions[0].log):
            append(log, batch_of([b"shared"]), 1)
        append(world.partitions[0].log, batch_of([b"lost"]), 1)
        world.leader.logs[0].epochs.assign(2, 1)
        world.follow(epoch=2)
        await eventually(world.alike)
        await eventually(lambda: world.partitions[0].high_watermark == 1)

    run(scene, tmp_path)


@pytest.mark.parametrize(
    ("in_sync", "uncleanly", "anew"), [(False, False, True), (False, True, False), (True, False, False)]
)
def test_a_compacted_log_starts_anew_where_nobody_elects_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_sync: bool, uncleanly: bool, anew: bool
) -> None:
    restarted: list[int] = []
    restart_at = follower_log.restart_at

    def noted(partition: Partition, offset: int) -> None:
        restarted.append(offset)
        restart_at(partition, offset)

    monkeypatch.setattr(follower_log, "restart_at", noted)

    async def scene(world: World) -> None:
        partition = world.partitions[0]
        for log in (world.leader.logs[0], partition.log):
            append(log, batch_of([b"shared"]), 1)
        append(partition.log, batch_of([b"lost"]), 1)
        partition.log.compacted_to = partition.log.log_end_offset
        world.leader.logs[0].epochs.assign(2, 1)
        world.write(0, b"kept", epoch=2)
        partition.isr = [world.replication.broker_id] if in_sync else []
        partition.elected_uncleanly = uncleanly
        world.follow(epoch=2)
        await eventually(world.alike)
        assert restarted == ([0] if anew else [])

    run(scene, tmp_path)


@pytest.mark.parametrize("synced", [False, True])
def test_a_truncation_below_what_is_checkpointed_is_told(tmp_path: Path, synced: bool) -> None:
    async def scene(world: World) -> None:
        for log in (world.leader.logs[0], world.partitions[0].log):
            append(log, batch_of([b"shared"]), 1)
        append(world.partitions[0].log, batch_of([b"lost"]), 1)
        if synced:
            world.partitions[0].log.flush()
        world.leader.logs[0].epochs.assign(2, 1)
        world.write(0, b"kept", epoch=2)
        world.follow(epoch=2)
        await eventually(world.alike)
        assert bool(world.shortened) == synced

    run(scene, tmp_path)


def test_who_is_out_of_range_asks_for_the_range(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        for number in range(3):
            world.write(0, b"%d" % number)
        append(world.partitions[0].log, batch_of([b"0"]), 1)
        world.leader.logs[0].delete_records_before(2)
        world.follow()
        await eventually(world.alike)
        assert world.leader.listed == 2
        assert world.partitions[0].log.log_start_offset == 2

    run(scene, tmp_path)


def test_who_is_out_of_range_of_many_asks_for_all_at_once(tmp_path: Path) -> None:
    """Two requests ask the leader for the offsets of all these partitions. With two requests for each of thousands of
    partitions, the follower would fetch nothing from this leader for long.
    """

    async def scene(world: World) -> None:
        for index in range(5):
            for number in range(3):
                world.write(index, b"%d" % number)
            if index:
                world.leader.logs[index].delete_records_before(2)
            append(world.partitions[index].log, batch_of([b"0"]), 1)
        world.follow()
        await eventually(world.alike)
        assert world.leader.listed == 2
        assert [partition.log.log_start_offset for partition in world.partitions] == [0, 2, 2, 2, 2]

    run(scene, tmp_path, 5)


def test_an_answer_for_what_is_no_longer_followed_changes_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.leader.held.clear()
        world.write(0, b"a")
        world.write(1, b"b")
        world.follow()
        await world.leader.asked.wait()
        world.replication.unfollow(world.partitions[0])
        world.leader.held.set()
        await eventually(lambda: world.alike(1))
        assert world.partitions[0].log.log_end_offset == 0
        world.follow(0)
        await eventually(world.alike)

    run(scene, tmp_path, 2)


def test_an_answer_of_an_earlier_epoch_changes_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.leader.held.clear()
        world.write(0, b"a")
        world.follow()
        await world.leader.asked.wait()
        world.partitions[0].epoch = 2  # the metadata has another epoch …
        world.leader.held.set()
        seen = len(world.leader.requests)
        await eventually(lambda: len(world.leader.requests) > seen + 2)
        assert world.partitions[0].log.log_end_offset == 0
        world.follow(epoch=2)  # … and then this replica gets a leader to follow
        await eventually(world.alike)
        again = world.leader.requests[seen]  # it asks again for the records of the answer that didn't count
        assert (again.session_epoch, [len(asked) for _, asked in again.topics]) == (1, [1])

    run(scene, tmp_path)


def test_what_is_newly_followed_doesnt_wait_for_the_end_of_a_fetch(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow(0)
        await eventually(lambda: len(world.leader.requests) > 1)
        world.leader.held.clear()
        await asyncio.sleep(0.05)  # now a fetch waits for records
        seen = len(world.leader.requests)
        world.follow(1, 2)
        await eventually(lambda: len(world.leader.requests) > seen)
        assert len(world.leader.requests[-1].topics[0][1]) == 3
        for index in range(3):
            world.write(index, b"a")
        world.leader.held.set()
        await eventually(world.alike)

    run(scene, tmp_path, 3)


def test_what_is_newly_followed_again_and_again_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    """A newly followed partition may end a waiting fetch early, but not every fetch. Otherwise a slow leader's answers
    would all come too late.
    """

    async def scene(world: World) -> None:
        world.follow(0)
        await eventually(lambda: len(world.leader.requests) > 1)
        world.leader.takes_s = 0.08
        seen = len(world.leader.requests)
        await eventually(lambda: len(world.leader.requests) > seen)
        world.write(0, b"a")
        for newly in range(1, 40):
            world.follow(newly)
            await asyncio.sleep(0.02)
            if world.alike(0):
                break
        assert world.alike(0), "other partitions kept it waiting"
        world.leader.takes_s = 0.002
        world.follow()
        await eventually(world.alike)

    run(scene, tmp_path, 40, **{"replica.fetch.wait.max.ms": "50"})


def test_who_follows_thousands_does_not_name_them_all_for_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During an election of thousands of partitions, some are newly followed all the time. The follower doesn't send a
    new request for each: its fetches wait at the leader for a shorter time for a while.
    """
    monkeypatch.setattr(replica_fetcher, "_NAMED_AT_ONCE_MAX", 1)
    monkeypatch.setattr(replica_fetcher, "_ELECTIONS_SECONDS", 0.2)

    async def scene(world: World) -> None:
        world.follow(0, 1)
        await eventually(lambda: len(world.leader.requests) > 1)
        assert world.leader.requests[-1].max_wait_ms == 50
        await asyncio.sleep(0.25)
        seen = len(world.leader.requests)
        await eventually(lambda: len(world.leader.requests) > seen)
        assert world.leader.requests[-1].max_wait_ms == 500
        world.leader.held.clear()
        await asyncio.sleep(0.05)
        seen = len(world.leader.requests)
        world.follow(2)
        await asyncio.sleep(0.1)
        assert len(world.leader.requests) == seen
        world.leader.held.set()
        world.write(2, b"a")
        await eventually(world.alike)
        asked = [len(topic[1]) for request in world.leader.requests for topic in request.topics]
        assert asked == [2, 1, 1], "each partition once, and again after its records"

    run(scene, tmp_path, 3)


def test_following_the_same_leader_again_is_nothing_new(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow()
        await eventually(lambda: len(world.leader.requests) > 2)
        for _ in range(3):
            world.follow()
        seen = len(world.leader.requests)
        await eventually(lambda: len(world.leader.requests) > seen + 2)
        assert not any(request.topics or request.forgotten for request in world.leader.requests[seen:])

    run(scene, tmp_path)


@pytest.mark.parametrize("error", [ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error, 119, 9999])
def test_a_partition_in_trouble_pauses_alone(tmp_path: Path, error: int) -> None:
    async def scene(world: World) -> None:
        world.leader.errors[0] = error
        world.follow()
        for number in range(10):
            world.write(0, b"%d" % number)
            world.write(1, b"%d" % number)
            await eventually(lambda: world.alike(1))
        assert world.partitions[0].log.log_end_offset == 0
        assert any(request.forgotten for request in world.leader.requests)
        world.leader.errors.clear()
        await eventually(world.alike)
        assert len(world.leader.connections) == 1

    run(scene, tmp_path, 2)


def test_an_error_that_nobody_foresaw_ends_the_copying_of_its_partition_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition isn't copied before another leader epoch begins. Before the fix, the error ended the fetcher's
    task, and with it the broker's process."""
    replicate = follower_log.append_replicated

    def failing(partition: Partition, *arguments: Any) -> None:
        if partition.index == 0 and partition.epoch == 1:
            raise AssertionError("a rule that this log breaks")
        replicate(partition, *arguments)

    monkeypatch.setattr(follower_log, "append_replicated", failing)

    async def scene(world: World) -> None:
        for index in range(2):
            world.write(index, b"a")
        world.follow()
        await eventually(lambda: world.alike(1))
        await eventually(lambda: world.replication.failed_count == 1)
        for number in range(3):
            world.write(0, b"%d" % number)
            world.write(1, b"%d" % number)
            await eventually(lambda: world.alike(1))
        assert world.partitions[0].log.log_end_offset == 0
        assert len([record for record in caplog.records if record.exc_info]) == 1, "the copy isn't tried again"
        world.follow(epoch=2)
        await eventually(world.alike)
        assert world.replication.failed_count == 0

    run(scene, tmp_path, 2)


def test_a_leader_that_asks_for_a_truncation_for_ever_isnt_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        with monkeypatch.context() as patch:
            nonsense = PartitionAnswer(0, 0, 5, 5, 0, tags=diverging_epoch_tags(1, 5))
            patch.setattr(world.leader, "_partition", lambda asked: nonsense)
            world.follow()
            await asyncio.sleep(0.2)
            assert 1 < len(world.leader.requests) < 10
        world.write(0, b"a")
        await eventually(world.alike)

    run(scene, tmp_path)


def test_damaged_records_are_not_appended_and_their_place_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(world: World) -> None:
        world.leader.spoiled = {0}
        world.write(0, b"a")
        world.write(1, b"b")
        world.follow()
        await eventually(lambda: world.alike(1))
        await asyncio.sleep(0.1)
        assert world.partitions[0].log.log_end_offset == 0
        ((partition, leader, refused),) = world.replication.refused()
        assert (partition, leader, refused.offset) == (world.partitions[0], LEADER, 0)
        assert "fetching from broker 1: corrupt_message: offset 0: the batch has a wrong CRC" in caplog.text
        world.leader.spoiled.clear()
        await eventually(world.alike)
        assert list(world.replication.refused()) == []

    run(scene, tmp_path, 2)


def test_a_disk_without_room_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        log = type(world.partitions[0].log)
        tries = 0

        def fails(self: Any, *arguments: Any) -> None:
            nonlocal tries
            tries += 1
            raise OSError(errno.ENOSPC, "no room")

        world.write(0, b"a")
        with monkeypatch.context() as patch:
            patch.setattr(log, "append_replicated", fails)
            world.follow()
            await eventually(lambda: tries > 1)
        await eventually(world.alike)

    run(scene, tmp_path)


def test_a_cut_connection_is_opened_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow()
        for number in range(4):
            await eventually(lambda: bool(world.leader.open_connections))
            world.write(0, b"%d" % number)
            world.leader.connections[-1].close()
            await eventually(world.alike)
        world.leader.refusing = True
        world.leader.connections[-1].close()
        world.write(0, b"last")
        await asyncio.sleep(0.1)
        world.leader.refusing = False
        await eventually(world.alike)

    run(scene, tmp_path)


def test_a_leader_that_isnt_registered_is_waited_for(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.brokers.clear()
        world.write(0, b"a")
        world.follow()
        await asyncio.sleep(0.1)
        world.brokers[LEADER] = world.registered
        await eventually(world.alike)

    run(scene, tmp_path)


def test_a_leader_that_registered_anew_isnt_waited_for_at_its_old_address(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow()
        await eventually(lambda: len(world.leader.requests) > 1)
        world.leader.held.clear()  # the leader's host fails without closing its connections
        seen = len(world.leader.requests)
        await asyncio.sleep(0.02)
        world.write(0, b"a")
        world.registered.epoch = 12
        world.follow(epoch=2)
        world.leader.held.set()
        await eventually(world.alike)
        assert len(world.leader.connections) == 2
        assert len(world.leader.requests) > seen

    run(scene, tmp_path)


def test_a_fetcher_without_partitions_ends(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.follow()
        await eventually(lambda: bool(world.leader.requests))
        for partition in world.partitions:
            world.replication.unfollow(partition)
        await eventually(lambda: world.tasks[0].done())
        assert world.leader.open_connections == 0
        world.write(0, b"a")
        world.follow()
        await eventually(world.alike)
        world.follow(epoch=2, leader=-1)  # no broker leads
        await eventually(lambda: world.tasks[1].done())
        world.follow(epoch=3, leader=0)  # this broker leads itself
        assert len(world.tasks) == 2

    run(scene, tmp_path, 2)


def test_throttled_replicas_that_are_behind_come_slowly_and_the_others_at_once(tmp_path: Path) -> None:
    settings = {"follower.replication.throttled.rate": "2000", "replica.fetch.max.bytes": "500"}

    async def scene(world: World) -> None:
        world.topic_settings = {"follower.replication.throttled.replicas": "1:5,0:0,7:1"}
        for number in range(12):
            world.write(0, b"%d" % number * 300)
            world.write(1, b"%d" % number * 300)
        world.follow()
        began = asyncio.get_running_loop().time()
        await eventually(lambda: world.alike(1))
        assert asyncio.get_running_loop().time() - began < 1
        assert world.partitions[0].log.log_end_offset < 12
        assert world.replication.max_lag > 0
        await eventually(lambda: world.alike(0), 15)
        expected = world.leader.logs[0].size / 2000
        assert expected - 1.5 < asyncio.get_running_loop().time() - began < expected + 1.5

    run(scene, tmp_path, 2, **settings)
