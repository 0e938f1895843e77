"""A broker's replicas follow the metadata: logs that wait for room are opened later, and recompression follows
settings."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker.follower_log import truncate_to
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import File, RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.owner import Owner
from ottla.broker.log.segment import DamagedSegment
from ottla.broker.log.without_room import BeingOpened
from ottla.broker.partitions import PartitionTable
from ottla.broker.replicas import LOOKED_AT_AT_ONCE, Listeners, Replicas
from ottla.metadata.identities import ConfigResource
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.topics import Tombstone
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.config import BrokerConfig

TOPIC_ID = UUID(int=5)
NOTHING = {"tombstones": (), "configs": (), "partitions": ()}


class FullDisk(RealDisk):
    """A disk on which no file can be created while it is full."""

    full = False

    def open(self, path: str, *, create: bool = False) -> File:
        if self.full and create:
            raise OSError(errno.ENOSPC, "no room")
        return super().open(path, create=create)


class World:
    """The metadata of one topic `t` with one partition, led by broker 0."""

    def __init__(self, folder: Path, *properties: str, disk: FullDisk | None = None) -> None:
        self.disk = disk or FullDisk()
        self.table = PartitionTable()
        self.looked_at: list[Any] = []
        self.removed: list[UUID] = []
        owner = Owner(
            high_watermark_of=lambda log: self.replicas.high_watermark_of(log),
            went_offline=lambda logs: self.replicas.went_offline(logs),
            room_again=lambda: self.replicas.open_again(),
            none_left=lambda: None,
        )
        self.logs = LogDirectories([str(folder)], lambda: 1000, owner, disk=self.disk)
        config = BrokerConfig.from_sources("\n".join(["node.id=0", f"log.dirs={folder}", *properties]))
        listeners = Listeners(lambda partition, leads: None, self.looked_at.append, self.removed.append)
        self.replicas = Replicas(0, self.table, self.logs, config, lambda: 1000, Mock(), listeners)
        self.tried: list[Log | None] = []
        self.logs.open("c", 0, lambda topic: self.replicas.rules_of(topic).log)
        self.configs: dict[ConfigResource, Any] = {}
        self.tombstones: dict[UUID, Tombstone] = {}
        self.state = Partition(TOPIC_ID, 0, (0,), (0,), (self.replicas.broker_epoch,), 0)

    def _tried(self, topic_id: UUID, index: int) -> None:
        self.tried.append(self.logs.get(topic_id, index))
        self.replicas.log_tried_again(topic_id, index)

    async def look_for_room(self) -> None:
        """Does the same as the node: missing logs are created at once, existing logs are recovered in a thread."""
        self.logs.look_for_room()
        await self.logs.open_again(lambda topic: self.replicas.rules_of(topic).log, self._tried)

    def image(self) -> Any:
        return SimpleNamespace(
            partition=lambda topic_id, index: self.state,
            intents_by_id={TOPIC_ID: SimpleNamespace(name="t")},
            tombstones=self.tombstones,
            topics={},
            topics_by_id={},
            configs=self.configs,
            config=lambda kind, name: getattr(self.configs.get(ConfigResource(kind, name)), "entries", {}),
        )

    def news(self, **changed: Any) -> Any:
        return SimpleNamespace(**(NOTHING | changed))

    def changed(self, **changed: Any) -> None:
        self.replicas.changed(self.image(), self.news(**changed))


def test_a_partition_that_found_no_room_is_opened_when_there_is_some(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.disk.full = True
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.get("t", 0) is None
    assert list(world.logs.full) == [str(tmp_path)]
    world.disk.full = False
    world.logs.look_for_room()
    partition = world.table.get("t", 0)
    assert partition is not None
    assert partition.leads
    assert [item.name for item in tmp_path.iterdir() if item.is_dir()] == ["t-0"], "no half-created directory is left"


class Unlisted(FullDisk):
    """A disk that can't list one partition's directory until it is healed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.healed = False
        self._error = error

    def list(self, path: str) -> list[Any]:
        if path.endswith("/t-0") and not self.healed:
            raise self._error
        return super().list(path)


def test_a_replica_that_couldnt_be_opened_is_restored_by_reassigning_it_away_and_back(tmp_path: Path) -> None:
    """No restart is needed. A replica that a restored metadata store may assign again is left in its place."""
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.logs.close()
    disk = Unlisted(ValueError("no number"))
    world = World(tmp_path, disk=disk)
    ours = world.state
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.get("t", 0) is None
    assert set(world.logs.lost) == {(TOPIC_ID, 0)}
    for restored in (True, False):
        world.state = replace(ours, replicas=(1,), isr=(1,), leader=1, restored=restored)
        world.changed(partitions=[(TOPIC_ID, 0)])
        assert bool(world.logs.lost) == restored
    disk.healed = True  # the damage is in the directory that was set aside
    world.state = replace(ours, replicas=(1, 0), isr=(1,), leader=1, leader_epoch=1, partition_epoch=3)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    assert not partition.leads
    assert not partition.offline


def test_a_log_for_which_the_room_was_too_little_is_tried_again(tmp_path: Path) -> None:
    """Before the fix, the log was tried once, when some bytes were free, and never again."""
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.logs.close()
    disk = Unlisted(OSError(errno.ENOSPC, "no room"))
    world = World(tmp_path, disk=disk)
    world.changed(partitions=[(TOPIC_ID, 0)])
    for _ in range(3):
        asyncio.run(world.look_for_room())
        assert set(world.logs.lost) == {(TOPIC_ID, 0)}
        assert list(world.logs.full) == [str(tmp_path)]
    disk.healed = True
    asyncio.run(world.look_for_room())
    assert not world.logs.lost
    assert world.table.get("t", 0) is not None


class Slow(Unlisted):
    """A disk that, once healed, lists that directory only when `may` is set. `threads` has the ids of the threads that
    list it."""

    def __init__(self) -> None:
        super().__init__(OSError(errno.ENOSPC, "no room"))
        self.asked = threading.Event()
        self.may = threading.Event()
        self.threads: list[int] = []

    def listed(self, folder: Path) -> list[Any]:
        return [item for item in super().list(str(folder)) if item.is_directory]

    def list(self, path: str) -> list[Any]:
        if path.endswith("/t-0") and self.healed:
            self.threads.append(threading.get_ident())
            self.asked.set()
            assert self.may.wait(60)
        return super().list(path)


def without_room(tmp_path: Path) -> World:
    """A world whose log couldn't be opened at the start, and could be opened now."""
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.logs.close()
    disk = Slow()
    world = World(tmp_path, disk=disk)
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.get("t", 0) is None
    disk.healed = True
    return world


def test_a_log_that_there_is_room_for_is_recovered_in_a_thread(tmp_path: Path) -> None:
    """Recovery may read gigabytes. Before the fix, it read them on the event loop."""
    world = without_room(tmp_path)
    disk = world.disk
    assert isinstance(disk, Slow)

    async def scene() -> None:
        opening = asyncio.ensure_future(world.look_for_room())
        assert await asyncio.to_thread(disk.asked.wait, 60)
        assert not opening.done()
        assert world.table.get("t", 0) is None
        disk.may.set()
        await opening

    asyncio.run(scene())
    assert disk.threads
    assert threading.get_ident() not in disk.threads
    assert world.table.get("t", 0) is not None
    assert not world.logs.lost


def test_a_directory_in_which_a_thread_opens_a_log_keeps_its_name(tmp_path: Path) -> None:
    """The thread knows the directory by its path. If the partition were moved away and back, or its topic deleted and
    created anew, the thread would write into the new log."""
    world = without_room(tmp_path)
    disk = world.disk
    assert isinstance(disk, Slow)
    ours, other_id = world.state, UUID(int=6)

    async def scene() -> None:
        opening = asyncio.ensure_future(world.look_for_room())
        assert await asyncio.to_thread(disk.asked.wait, 60)
        world.state = replace(ours, replicas=(1,), isr=(1,), leader=1, partition_epoch=1)
        world.changed(partitions=[(TOPIC_ID, 0)])
        with pytest.raises(BeingOpened):
            world.logs.open_or_create("t", 0, other_id, LogConfig())
        assert [item.name for item in disk.listed(tmp_path)] == ["t-0"]
        assert not world.logs.failed
        disk.may.set()
        await opening

    asyncio.run(scene())
    assert world.logs.get(TOPIC_ID, 0) is None
    assert not world.logs.lost
    assert [item.name[-6:] for item in tmp_path.iterdir() if item.is_dir()] == ["-stray"]
    world.logs.open_or_create("t", 0, other_id, LogConfig())


def test_a_stop_waits_for_the_log_that_a_thread_opens(tmp_path: Path) -> None:
    """Otherwise the next process would open the same files meanwhile."""
    world = without_room(tmp_path)
    disk = world.disk
    assert isinstance(disk, Slow)

    async def scene() -> None:
        opening = asyncio.ensure_future(world.look_for_room())
        assert await asyncio.to_thread(disk.asked.wait, 60)
        opening.cancel()
        closing = asyncio.ensure_future(asyncio.to_thread(world.logs.close))
        await asyncio.sleep(0.05)
        assert not closing.done()
        disk.may.set()
        await closing

    asyncio.run(scene())
    assert World(tmp_path).logs.stopped_epoch == -1


def test_a_restored_partitions_log_is_opened_when_there_is_room_also_where_others_have_it(tmp_path: Path) -> None:
    """After a restore every log has to be reported. Before the fix, this log was never opened, and the leader was
    chosen without its report."""
    world = without_room(tmp_path)
    disk = world.disk
    assert isinstance(disk, Slow)
    disk.may.set()
    world.state = replace(world.state, replicas=(1,), isr=(1,), leader=-1, restored=True)
    world.changed(partitions=[(TOPIC_ID, 0)])
    asyncio.run(world.look_for_room())
    assert world.logs.get(TOPIC_ID, 0) is not None
    assert world.tried == [world.logs.get(TOPIC_ID, 0)]
    assert world.table.get("t", 0) is None


def test_what_took_the_directory_of_a_log_without_room_is_left_alone_when_there_is_room(tmp_path: Path) -> None:
    """Another log may have got the directory since. Otherwise the thread would recover the new log while it is
    served."""
    world = without_room(tmp_path)
    disk = world.disk
    assert isinstance(disk, Slow)
    disk.may.set()
    world.logs.open_or_create("t", 0, UUID(int=6), LogConfig())
    disk.threads.clear()
    asyncio.run(world.look_for_room())
    assert not disk.threads


def test_what_is_opened_later_doesnt_make_the_last_stop_a_clean_one(tmp_path: Path) -> None:
    """Before the fix, the stop counted as clean once all logs were open. The broker then withdrew a report for which a
    partition waited."""
    world = without_room(tmp_path)
    disk = world.disk
    assert isinstance(disk, Slow)
    disk.may.set()
    assert world.logs.stopped_epoch == -1
    asyncio.run(world.look_for_room())
    assert not world.logs.lost
    assert world.logs.stopped_epoch == -1


def test_room_while_a_thread_makes_a_log_makes_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.disk.full = True
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.disk.full = False
    create_ahead = world.logs.create_ahead

    async def meanwhile_room(new_logs: Any) -> None:
        world.logs.look_for_room()
        assert world.table.get("t", 0) is None
        await create_ahead(new_logs)

    monkeypatch.setattr(world.logs, "create_ahead", meanwhile_room)
    asyncio.run(world.replicas.prepare(world.image(), world.news(partitions=[(TOPIC_ID, 0)])))
    made = world.logs.get(TOPIC_ID, 0)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    assert partition.log is made is not None
    assert [item.name for item in tmp_path.iterdir() if item.is_dir()] == ["t-0"]


def test_who_waits_to_join_an_isr_may_when_the_leader_has_room_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.logs.directory_failed(str(tmp_path), OSError(errno.ENOSPC, "no room"))
    assert world.looked_at == []
    world.logs.look_for_room()
    assert world.looked_at == [world.table.get("t", 0)]


@pytest.mark.parametrize(("setting", "any_takes_turns"), [("producer", False), ("lz4", True), ("uncompressed", True)])
def test_a_brokers_own_compression_type_counts_from_the_start(
    tmp_path: Path, setting: str, any_takes_turns: bool
) -> None:
    world = World(tmp_path, f"compression.type={setting}")
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.any_takes_turns is any_takes_turns
    partition = world.table.get("t", 0)
    assert partition is not None
    assert (partition.target_codec is not None) is any_takes_turns


def test_a_topics_compression_type_counts_while_it_has_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    resource = ConfigResource("topic", "t")
    world.configs[resource] = SimpleNamespace(entries={"compression.type": "gzip"})
    world.changed(configs=[resource], partitions=[(TOPIC_ID, 0)])
    assert world.table.any_takes_turns
    world.configs[resource] = SimpleNamespace(entries={"retention.ms": "1000"})
    world.changed(configs=[resource])
    assert not world.table.any_takes_turns


def test_whether_anybody_may_lead_is_the_topics_setting(tmp_path: Path) -> None:
    world = World(tmp_path)
    resource = ConfigResource("topic", "t")
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    assert not partition.elected_uncleanly
    world.configs[resource] = SimpleNamespace(entries={"unclean.leader.election.enable": "true"})
    world.changed(configs=[resource])
    assert partition.elected_uncleanly


def test_a_partition_whose_log_directory_failed_can_be_given_to_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    world.logs.directory_failed(str(tmp_path), OSError(errno.EIO, "broken"))
    assert partition.offline
    world.state = replace(world.state, replicas=(1,), isr=(1,), isr_epochs=(5,), leader=1, leader_epoch=1)
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.get("t", 0) is None


def test_a_replica_whose_log_turns_out_to_be_damaged_is_offline_and_comes_back_by_reassignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, a follower that had to truncate such a log got KAFKA_STORAGE_ERROR for ever."""
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None

    def damaged(self: Log, offset: int) -> bool:
        raise DamagedSegment("no batch at 7")

    monkeypatch.setattr(Log, "truncate_to", damaged)
    with pytest.raises(KafkaError) as caught:
        truncate_to(partition, 0)
    assert caught.value.code == ErrorCode.kafka_storage_error
    assert partition.offline
    assert not world.logs.failed
    mine = world.state
    world.state = replace(mine, replicas=(1,), isr=(1,), isr_epochs=(5,), leader=1, leader_epoch=1, partition_epoch=1)
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.get("t", 0) is None
    world.state = replace(mine, leader_epoch=2, partition_epoch=2)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    assert not partition.offline


def test_who_waits_at_a_follower_hears_that_its_log_directory_failed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.state = replace(world.state, replicas=(0, 1), isr=(0, 1), isr_epochs=(-1, 5), leader=1)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    consumer: Any = SimpleNamespace(heard=[])
    consumer.moved = lambda partition, new_bytes: consumer.heard.append(new_bytes)
    partition.waiters.append(consumer)
    world.logs.directory_failed(str(tmp_path), OSError(errno.EIO, "broken"))
    assert consumer.heard == [0]


@pytest.mark.parametrize("pending", [(0, 1), (1,)])
def test_a_deleted_topics_replica_goes_also_where_nobody_expected_one(tmp_path: Path, pending: tuple[int, ...]) -> None:
    """A topic may be deleted while it is moved. The tombstone then names the brokers of an image that may be
    outdated."""
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.tombstones[TOPIC_ID] = Tombstone(TOPIC_ID, "t", pending)
    world.changed(tombstones=[TOPIC_ID])
    assert world.table.get("t", 0) is None
    assert world.logs.get(TOPIC_ID, 0) is None
    assert world.removed == [TOPIC_ID]


def test_a_deletion_is_not_confirmed_while_a_log_directory_has_failed(tmp_path: Path) -> None:
    """The topic's files may be in that directory, and come back with it. The next start then deletes them by the
    tombstone.
    """
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.logs.directory_failed(str(tmp_path), OSError(errno.EIO, "broken"))
    world.tombstones[TOPIC_ID] = Tombstone(TOPIC_ID, "t", (0,))
    world.changed(tombstones=[TOPIC_ID])
    assert world.table.get("t", 0) is None
    assert world.removed == []


def test_a_new_registration_ends_thousands_of_leaderships_with_pauses(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.changed()
    resigned_in: list[int] = []
    turn = 0
    for index in range(1050):
        led: Any = SimpleNamespace(
            topic="t", topic_id=TOPIC_ID, index=index, leads=True, offline=False, leader=0, epoch=0, leader_epoch=0
        )
        led.become_follower = lambda state: resigned_in.append(turn)
        world.table.add(led)
    world.replicas.broker_epoch = 7

    async def main() -> None:
        async def others() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(others())
        await world.replicas.registered()
        ticking.cancel()

    asyncio.run(main())
    assert len(resigned_in) == 1050
    assert max(Counter(resigned_in).values()) == LOOKED_AT_AT_ONCE


def test_a_leadership_that_came_before_the_registration_was_known_begins_with_it(tmp_path: Path) -> None:
    """The store's answer to the registration may come after the watch's event, and the controller may be faster than
    both."""
    world = World(tmp_path)
    world.state = replace(world.state, isr_epochs=(7,), leader_epoch=1)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    assert not partition.leads
    world.replicas.broker_epoch = 7
    asyncio.run(world.replicas.registered())
    assert partition.leader_epoch == 1


def test_what_is_led_by_the_new_registration_already_goes_on(tmp_path: Path) -> None:
    """Proposals of ISR changes may be under way. If the same state counted as a new one, these proposals would be
    forgotten."""
    world = World(tmp_path)
    world.changed(partitions=[(TOPIC_ID, 0)])
    partition = world.table.get("t", 0)
    assert partition is not None
    assert partition.leading is not None
    partition.leading.proposed((0, 1))
    asyncio.run(world.replicas.registered())
    assert partition.leading.maximal_isr == {0, 1}


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "restored", "goes"),
    [
        (4, 8, False, True),
        (3, 8, False, True),
        (3, 7, False, False),
        (2, 9, False, False),
        (4, 6, False, False),
        (4, 8, True, False),
    ],
)
def test_only_a_newer_state_gives_a_replica_to_others(
    tmp_path: Path, leader_epoch: int, partition_epoch: int, restored: bool, goes: bool
) -> None:
    """In an outdated copy of the metadata other brokers have the partition, but the only copy of its records may be
    here."""
    world = World(tmp_path)
    world.state = replace(world.state, leader_epoch=3, partition_epoch=7)
    world.changed(partitions=[(TOPIC_ID, 0)])
    world.state = replace(
        world.state,
        replicas=(1,),
        isr=(1,),
        isr_epochs=(9,),
        leader=1,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        restored=restored,
    )
    world.changed(partitions=[(TOPIC_ID, 0)])
    assert world.table.get("t", 0) is None
    assert (tmp_path / "t-0").exists() is not goes
    assert bool(list(tmp_path.glob("t-0.*-delete"))) is goes
