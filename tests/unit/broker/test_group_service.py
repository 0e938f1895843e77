"""The group coordinator's service, over a partition in memory: the test sets the partition's high watermark, failures
and leader epoch.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from ottla.broker.cold_reads import ColdReads
from ottla.broker.coordination import replay
from ottla.broker.coordination.certainty import SURE_S
from ottla.broker.coordination.committed_view import SLICE_RECORDS
from ottla.broker.coordination.runtime import BATCH_RECORDS_MAX, Runtime
from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.effects import Join, Leaver, Sync
from ottla.broker.group.group import GroupType
from ottla.broker.group.offsets import Offsets
from ottla.broker.group.partitioning import partition_for
from ottla.broker.group.records import Committed, GroupKey, OffsetKey, group_key, offset_key, offset_value, read_key
from ottla.broker.group.shard import GroupShard, OffsetToCommit
from ottla.broker.group.states import State
from ottla.broker.group_service import GroupService
from ottla.broker.log.config import LogConfig
from ottla.broker.log.segment import Segment
from ottla.broker.verification import Guard
from ottla.protocol.batches import Record, assign, build_batch, iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import Marker, marker_batch
from tests.simulation.machine import LoopThreads
from tests.unit.broker.log.workbench import Workbench, append

T = TypeVar("T")
FIXTURES = Path(__file__).parent / "group" / "fixtures"
PARTITIONS = 3
SETTINGS = {
    "group.min.session.timeout.ms": 1_000,
    "group.max.session.timeout.ms": 1_800_000,
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 10_000,
    "offset.metadata.max.bytes": 4_096,
    "offsets.retention.minutes": 1,
    "offsets.commit.timeout.ms": 5_000,
    "offsets.retention.check.interval.ms": 600_000,
    "offsets.load.buffer.size": 4_096,
    "offsets.topic.compression.codec": 0,
}


class VirtualTime(selectors.DefaultSelector):
    """A selector that never waits: the time jumps to the next timer."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.now += timeout
        return super().select(0 if timeout is not None else 0.5)


def virtually(main: Callable[[], Awaitable[T]]) -> T:
    selector = VirtualTime()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_bounded(main))


async def _bounded(main: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(100_000):
        return await main()


class MemoryFile:
    def __init__(self, data: bytearray) -> None:
        self.data = data

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self.data[position : position + size])


class Piece:
    def __init__(self, file: MemoryFile, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size


class MemoryLog:
    """Batches in one file. A read may cut off the last batch, as a real log's does."""

    log_start_offset = 0
    directory = "/logs/__consumer_offsets-0"

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    @property
    def log_end_offset(self) -> int:
        return max((header.last_offset + 1 for _, header in iterate_headers(self.data)), default=0)

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, minimum_one: bool = True, wait: bool = True
    ) -> list[Piece]:
        for position, header in iterate_headers(self.data):
            if header.last_offset >= offset:
                return [Piece(MemoryFile(self.data), position, max(header.size, max_bytes))]
        return []

    def segment_after(self, offset: int) -> int | None:
        return None

    def segments_read(self, offset: int) -> list[Segment]:
        return []


class MemoryPartition:
    def __init__(self, index: int, log: MemoryLog | None = None) -> None:
        self.index = index
        self.log = log or MemoryLog()
        self.leader_epoch = 1
        self.held_at: int | None = None  # the high watermark while replication is interrupted
        self.failing: ErrorCode | None = None
        self.batches = 0
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.damage_met: tuple[int, str] | None = None

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset if self.held_at is None else self.held_at

    def append_batch(self, batch: bytearray, leader_epoch: int, guard: Guard | None = None) -> int:
        if self.failing is not None:
            raise KafkaError(self.failing)
        if leader_epoch != self.leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        base = self.log.log_end_offset
        assign(batch, 0, base, leader_epoch)
        self.log.data += batch
        self.batches += 1
        if self.held_at is None:
            self.replicate()
        return base

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, committed: bool, transaction_version: int
    ) -> int:
        marker = marker_batch(producer_id, epoch, Marker(committed, coordinator_epoch, 1_000_000))
        return self.append_batch(marker, self.leader_epoch)

    def guard_for(self, producer_id: int, epoch: int, first_sequence: int, *, bumps: bool) -> Guard | None:
        return None

    def committed(self, offset: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if offset < self.high_watermark:
            future.set_result(None)
        else:
            self.waiting.append((offset, future))
        return future

    def hold(self) -> None:
        self.held_at = self.log.log_end_offset

    def replicate(self) -> None:
        self.held_at = None
        waiting, self.waiting = self.waiting, []
        for offset, future in waiting:
            if offset >= self.log.log_end_offset:
                self.waiting.append((offset, future))
            elif not future.done():
                future.set_result(None)

    def records(self) -> Iterator[Record]:
        for position, header in iterate_headers(self.log.data):
            yield from records(bytes(self.log.data[position : position + header.size]))


class Stage:
    """A started service, and the partitions that it may lead."""

    def __init__(self, **settings: int) -> None:
        self.wall_ms = 1_000_000
        values = {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
        self.leads_for_sure = True
        cold_reads = ColdReads(LoopThreads())
        self.service = GroupService(
            values, lambda: PARTITIONS, lambda: self.wall_ms, cold_reads, lambda: self.leads_for_sure
        )
        self.partitions = [MemoryPartition(index) for index in range(PARTITIONS)]
        self.ids = count()

    def lead(self) -> None:
        self.service.start()
        for partition in self.partitions:
            self.service.became_leader(partition)

    def of(self, group: str) -> MemoryPartition:
        return self.partitions[partition_for(group, PARTITIONS)]

    def join(self, group: str, member_id: str = "", session_ms: int = 10_000) -> asyncio.Future[Any]:
        join = Join(
            self.service.ticket(),
            member_id,
            f"m{next(self.ids)}",
            "consumer",
            (("range", b""),),
            session_ms,
            60_000,
            requires_known_id=False,
        )
        return self.service.join(group, join)

    async def sync(self, group: str, member_id: str, generation: int, plan: dict[str, bytes]) -> Any:
        return await self.service.sync(group, Sync(self.service.ticket(), member_id, generation, plan))

    async def stable(self, group: str, **more: Any) -> str:
        answer = await self.join(group, **more)
        member: str = answer["member_id"]
        await self.sync(group, member, answer["generation_id"], {member: b"plan"})
        return member

    async def commit(self, group: str, offset: int, partition: int = 0) -> ErrorCode:
        (code,) = await self.service.commit(group, "", -1, None, [OffsetToCommit("t", None, partition, offset, -1, "")])
        return code

    async def fetch(self, group: str, partition: int = 0, stable: bool = False) -> int | None:
        (value,) = await self.service.fetch(group, [("t", partition)], stable)
        return value.offset if isinstance(value, Committed) else None


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def code_of(task: asyncio.Task[Any]) -> ErrorCode:
    error = task.exception()
    assert isinstance(error, KafkaError)
    return error.code


def test_a_group_lives_on_a_partition() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        member = await stage.stable("g")
        assert stage.service.heartbeat("g", member, 1, None) is ErrorCode.none
        codes = await stage.service.commit("g", member, 1, None, [OffsetToCommit("t", None, 0, 5, -1, "")])
        assert codes == [ErrorCode.none]
        assert await stage.fetch("g") == 5
        await stage.service.leave("g", [Leaver(member)])
        assert stage.service.counts(GroupType.CLASSIC)[State.EMPTY.value] == 1
        keys = [read_key(record.key or b"") for record in stage.of("g").records()]
        assert keys == [GroupKey("g"), GroupKey("g"), OffsetKey("g", "t", 0), GroupKey("g")]
        await stage.service.stop()

    virtually(scene)


def test_an_answer_waits_for_the_high_watermark() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 1)
        stage.of("g").hold()
        second = asyncio.ensure_future(stage.commit("g", 2))
        stable = asyncio.ensure_future(stage.fetch("g", stable=True))
        await turns()
        assert not second.done()
        assert not stable.done()
        assert await stage.fetch("g") == 1
        stage.of("g").replicate()
        assert await second is ErrorCode.none
        assert await stable == 2
        assert await stage.fetch("g") == 2

    virtually(scene)


def test_an_assignment_waits_for_the_high_watermark() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        joined = await stage.join("g")
        stage.of("g").hold()
        synced = asyncio.ensure_future(stage.sync("g", joined["member_id"], 1, {joined["member_id"]: b"plan"}))
        await turns()
        assert not synced.done()
        stage.of("g").replicate()
        assert (await synced)["assignment"] == b"plan"

    virtually(scene)


def test_replication_that_takes_too_long() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        stage.of("g").hold()
        with pytest.raises(KafkaError) as error:
            await stage.commit("g", 2)
        assert error.value.code is ErrorCode.coordinator_not_available
        fetched = await stage.service.fetch("g", [("t", 0), ("t", 1)], require_stable=True)
        assert fetched == [ErrorCode.unstable_offset_commit] * 2
        with pytest.raises(KafkaError) as error:
            await stage.service.fetch_all("g", require_stable=True)
        assert error.value.code is ErrorCode.not_coordinator
        stage.leads_for_sure = False
        with pytest.raises(KafkaError) as error:
            await stage.fetch("g", stable=True)
        assert error.value.code is ErrorCode.not_coordinator
        stage.of("g").replicate()
        assert await stage.fetch("g") == 2  # the commit succeeded, although it was answered with an error

    virtually(scene)


def test_commits_of_one_turn_are_one_batch() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await asyncio.gather(*(stage.commit("g", number, number) for number in range(50)))
        assert stage.of("g").batches == 1
        assert await stage.fetch("g", 49) == 49

    virtually(scene)


def test_a_group_that_only_commits_costs_no_memory_for_each_commit() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        shard = stage.service._runtime.partitions[stage.of("g").index]
        for number in range(30):
            await asyncio.gather(*(stage.commit("g", number, partition) for partition in range(20)))
            assert shard.core.offsets.unshown_count == 0
        assert await stage.fetch("g", 19) == 29
        stage.of("g").hold()
        late = [asyncio.ensure_future(stage.commit("g", 30, partition)) for partition in range(20)]
        await turns()
        assert shard.core.offsets.unshown_count == 20
        stage.of("g").replicate()
        await asyncio.gather(*late)
        assert shard.core.offsets.unshown_count == 0
        await stage.service.stop()

    virtually(scene)


def test_an_offset_fetch_that_waits_is_sent_away_by_a_resignation() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        stage.of("g").hold()
        commits = [asyncio.ensure_future(stage.commit("g", 1, partition)) for partition in range(2 * SLICE_RECORDS)]
        await turns()
        stage.of("g").replicate()
        read = asyncio.ensure_future(stage.fetch("g"))
        await asyncio.sleep(0)
        stage.service.lost_leadership(stage.of("g").index)
        with pytest.raises(KafkaError) as error:
            await read
        assert error.value.code is ErrorCode.not_coordinator
        await asyncio.gather(*commits, return_exceptions=True)
        await stage.service.stop()

    virtually(scene)


def test_a_coordinator_that_may_have_a_successor_looks_before_it_answers_offsets() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 2)
        stage.leads_for_sure = False
        read = asyncio.ensure_future(stage.fetch("g"))
        await asyncio.sleep(SURE_S / 2)
        assert not read.done()
        stage.service.lost_leadership(stage.of("g").index)
        with pytest.raises(KafkaError) as error:
            await read
        assert error.value.code is ErrorCode.not_coordinator
        await stage.service.stop()

    virtually(scene)


def test_offsets_are_answered_while_the_metadata_store_answers_nobody() -> None:
    """Many requests wait together, once in the silence of the store."""

    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 2)
        loop = asyncio.get_running_loop()
        for _ in range(2):
            stage.leads_for_sure = False
            begin = loop.time()
            assert set(await asyncio.gather(*(stage.fetch("g") for _ in range(1_000)))) == {2}
            assert loop.time() - begin == pytest.approx(SURE_S, rel=0.1)
            begin = loop.time()
            for _ in range(100):
                assert await stage.fetch("g") == 2
            assert loop.time() == begin
            stage.leads_for_sure = True
            assert await stage.fetch("g") == 2
        await stage.service.stop()

    virtually(scene)


@pytest.mark.parametrize("again", [False, True], ids=["another leads", "leads again"])
@pytest.mark.parametrize("commits", [1, 2 * SLICE_RECORDS])
def test_an_offset_fetch_whose_coordinator_resigns_as_the_wait_ends_is_sent_away(commits: int, again: bool) -> None:
    """The coordinator refuses the OffsetFetch. An answer with offsets would be outdated, and would never come if many
    records were still to be made visible.
    """

    async def scene() -> None:
        stage = Stage()
        stage.lead()
        stage.of("g").hold()
        written = [asyncio.ensure_future(stage.commit("g", 1, partition)) for partition in range(commits)]
        await turns()
        read = asyncio.ensure_future(stage.fetch("g", stable=True))
        await turns()
        assert not read.done()
        stage.of("g").replicate()
        stage.service.lost_leadership(stage.of("g").index)
        if again:
            stage.service.became_leader(stage.of("g"))
        with pytest.raises(KafkaError) as error:
            await asyncio.wait_for(read, 60)
        assert error.value.code is ErrorCode.not_coordinator
        await asyncio.gather(*written, return_exceptions=True)
        await stage.service.stop()

    virtually(scene)


def test_a_deletion_sees_the_commits_before_it() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        commit = asyncio.ensure_future(stage.commit("g", 1))
        delete = asyncio.ensure_future(stage.service.delete_group("g"))
        assert await commit is ErrorCode.none
        assert await delete is ErrorCode.none
        assert await stage.fetch("g") is None
        assert [record.value for record in stage.of("g").records()][1:] == [None, None]

    virtually(scene)


def test_an_append_that_fails_changes_nothing() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 1)
        stage.of("g").failing = ErrorCode.not_leader_or_follower
        for work in (stage.commit("g", 2), stage.service.delete_offsets("g", [("t", 0)])):
            with pytest.raises(KafkaError) as error:
                await work
            assert error.value.code is ErrorCode.not_coordinator
        assert await stage.service.delete_group("g") is ErrorCode.not_coordinator
        assert await stage.fetch("g", stable=True) == 1
        other = next(f"g{number}" for number in range(99) if stage.of(f"g{number}") is stage.of("g"))
        assert (await stage.join(other))["error_code"] is ErrorCode.not_coordinator
        assert stage.service.group(other) is None
        stage.of("g").failing = None
        await stage.commit("g", 9, partition=1)
        offsets = await stage.service.fetch_all("g", False)
        assert {index: value.offset for index, value in offsets["t"].items()} == {0: 1, 1: 9}

    virtually(scene)


def test_appends_carry_the_epoch_that_was_loaded() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        stage.of("g").leader_epoch = 2  # another election, which the service doesn't know of yet
        with pytest.raises(KafkaError) as error:
            await stage.commit("g", 1)
        assert error.value.code is ErrorCode.not_coordinator
        stage.service.became_leader(stage.of("g"))
        assert await stage.commit("g", 1) is ErrorCode.none

    virtually(scene)


def test_resigning_sends_everybody_away() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        member = await stage.stable("g")
        newcomer = stage.join("g")
        await turns()
        assert stage.service.heartbeat("g", member, 1, None) is ErrorCode.rebalance_in_progress
        stage.service.lost_leadership(stage.of("g").index)
        assert (await newcomer)["error_code"] is ErrorCode.not_coordinator
        assert stage.service.heartbeat("g", member, 1, None) is ErrorCode.not_coordinator
        with pytest.raises(KafkaError) as error:
            await stage.fetch("g")
        assert error.value.code is ErrorCode.not_coordinator

    virtually(scene)


def test_who_is_not_served() -> None:
    async def scene() -> None:
        stage = Stage()
        with pytest.raises(KafkaError) as error:
            await stage.join("g")
        assert error.value.code is ErrorCode.coordinator_not_available
        stage.lead()
        with pytest.raises(KafkaError) as error:
            await stage.join("")
        assert error.value.code is ErrorCode.invalid_group_id
        # as in Kafka, which stores offsets for the empty group id
        assert await stage.commit("", 3) is ErrorCode.none
        await stage.service.stop()
        with pytest.raises(KafkaError) as error:
            await stage.commit("g", 1)
        assert error.value.code is ErrorCode.coordinator_not_available

    virtually(scene)


# --- time ---


def test_sessions_end_by_the_one_timer() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        member = await stage.stable("g", session_ms=10_000)
        for _ in range(10):
            await asyncio.sleep(8)
            assert stage.service.heartbeat("g", member, 1, None) is ErrorCode.none
        await asyncio.sleep(9.9)
        assert stage.service.counts(GroupType.CLASSIC)[State.STABLE.value] == 1
        await asyncio.sleep(0.2)
        assert stage.service.counts(GroupType.CLASSIC)[State.EMPTY.value] == 1

    virtually(scene)


def test_idle_consumers_are_nearly_free(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = 0

    async def scene() -> None:
        nonlocal woken
        stage = Stage()
        stage.lead()
        members = {group: await stage.stable(group) for group in (f"g{number}" for number in range(100))}
        wake = stage.service._timers._wakeups._wake

        def counted(seat: Any) -> None:
            nonlocal woken
            woken += 1
            wake(seat)

        monkeypatch.setattr(stage.service._timers._wakeups, "_wake", counted)
        assert len(asyncio.all_tasks()) < 5
        for _ in range(20):  # a minute of heartbeats, every three seconds
            await asyncio.sleep(3)
            for group, member in members.items():
                assert stage.service.heartbeat(group, member, 1, None) is ErrorCode.none
        assert len(stage.service._timers._wakeups._heap) < 4 * 100

    virtually(scene)
    assert 0 < woken <= 10 * 100  # at most one for each group and session time-out, despite 20 heartbeats


def test_expiry_writes_tombstones() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 1)
        stage.wall_ms += 59_000
        await stage.service.expire()
        assert await stage.fetch("g") == 1
        stage.wall_ms += 1_000
        await stage.service.expire()
        assert stage.service.group("g") is None
        assert [record.value for record in stage.of("g").records()][1:] == [None, None]
        assert stage.service.counters.offset_expirations == 1

    virtually(scene)


def test_offsets_of_deleted_topics_go() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 1)
        await stage.commit("h", 1)
        stage.service.topics_deleted(["t"])
        assert await stage.fetch("g") is None
        assert await stage.fetch("h") is None

    virtually(scene)


def test_many_offsets_of_deleted_topics_go_in_many_turns() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        groups = [f"g{number}" for number in range(5 * BATCH_RECORDS_MAX)]
        await asyncio.gather(*(stage.commit(group, 1) for group in groups))
        counters = stage.service.counters
        stage.service.topics_deleted(["t"])
        assert counters.offset_deletions <= PARTITIONS * BATCH_RECORDS_MAX < len(groups)
        while (deleted := counters.offset_deletions) < len(groups):
            await asyncio.sleep(0)
            assert counters.offset_deletions - deleted <= PARTITIONS * BATCH_RECORDS_MAX
        assert await stage.fetch(groups[-1]) is None

    virtually(scene)


# --- loading, on a real loop ---


async def loaded(stage: Stage) -> None:
    for _ in range(10_000):
        if not any(shard.loading for shard in stage.service._runtime.partitions.values()):
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never loaded")


def test_a_restart_is_a_replay() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        member = await stage.stable("g", session_ms=1_000_000)
        for number in range(200):
            await stage.commit("h", number, number)
        await stage.service.delete_offsets("h", [("t", 7)])
        before = stage.service.group("g")
        assert before is not None

        again = Stage()
        again.partitions = [MemoryPartition(part.index, part.log) for part in stage.partitions]
        again.lead()
        with pytest.raises(KafkaError) as error:
            await again.commit("g", 1)
        assert error.value.code is ErrorCode.coordinator_load_in_progress
        assert again.service.heartbeat("g", member, 1, None) is ErrorCode.none
        with pytest.raises(KafkaError):
            again.service.groups()
        await loaded(again)
        assert again.service.heartbeat("g", member, 1, None) is ErrorCode.none
        after = again.service.group("g")
        assert after is not None
        assert after.membership.snapshot() == before.membership.snapshot()
        assert await again.service.fetch_all("h", False) == await stage.service.fetch_all("h", False)
        assert again.service.offset_count == 199
        assert (await again.sync("g", member, 1, {}))["assignment"] == b"plan"
        await again.service.stop()
        await stage.service.stop()

    asyncio.run(scene())


def test_what_a_real_kafka_wrote_is_loaded() -> None:
    async def scene() -> None:
        for name, partition in (("readers", 28), ("statics", 37), ("simple", 26), ("deleted", 1)):
            stage = Stage()
            stage.service._partition_count = lambda: 50
            stage.partitions = [MemoryPartition(partition, MemoryLog((FIXTURES / f"{name}.log").read_bytes()))]
            stage.lead()
            await loaded(stage)
            groups = {group.group_id: group for group in stage.service.groups()}
            assert list(groups) == ([] if name == "deleted" else [name])
            if name == "readers":
                membership = groups[name].membership
                assert (membership.state, membership.generation) == (State.EMPTY, 2)
                offsets = await stage.service.fetch_all(name, False)
                assert {index: value.offset for index, value in offsets["flights"].items()} == {0: 10, 1: 10, 2: 10}
            await stage.service.stop()

    asyncio.run(scene())


def test_a_new_leader_answers_when_it_knows_what_its_predecessor_answered() -> None:
    """An offset that the predecessor reported as committed may be above the new leader's first high watermark."""

    async def scene() -> None:
        stage = Stage()
        stage.lead()
        await stage.commit("g", 1)
        await stage.commit("g", 2)
        again = Stage()
        again.partitions = [MemoryPartition(part.index, part.log) for part in stage.partitions]
        again.of("g").held_at = 1
        again.lead()
        for _ in range(3):
            await asyncio.sleep(0.05)
            with pytest.raises(KafkaError) as error:
                await again.fetch("g")
            assert error.value.code is ErrorCode.coordinator_load_in_progress
        again.of("g").replicate()
        await loaded(again)
        assert await again.fetch("g") == 2
        await again.service.stop()

    asyncio.run(scene())


def test_loading_leaves_the_loop_to_others() -> None:
    async def scene() -> None:
        entries = [
            Record(number, 1, offset_key(OffsetKey("g", "t", number)), offset_value(Committed(number)))
            for number in range(20_000)
        ]
        stage = Stage(**{"offsets.load.buffer.size": 1 << 20})
        log = MemoryLog(build_batch(entries))
        stage.partitions = [MemoryPartition(partition_for("g", PARTITIONS), log)]
        stage.lead()
        ticks = 0
        while any(shard.loading for shard in stage.service._runtime.partitions.values()):
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 400, "20,000 looks at the clock are 2 s, which are 500 slices of 4 ms"
        assert await stage.fetch("g", 19_999) == 19_999
        await stage.service.stop()

    looks = count()
    with patch.object(replay, "perf_counter", lambda: next(looks) * 0.0001):
        asyncio.run(scene())


def test_unreadable_and_foreign_records_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        good = offset_value(Committed(4))
        entries = [
            (offset_key(OffsetKey("g", "t", 0)), good),
            (b"\x00\x03\x00\x01g", b"\x00\x00"),  # a KIP-848 group
            (b"\x00\x01\x00", good),
            (offset_key(OffsetKey("g", "t", 1)), b"\x00\x09"),
            (group_key("g"), b"\x00\x03\x00"),
            (offset_key(OffsetKey("g", "t", 2)), good),
        ]
        batch = build_batch([Record(index, 1, key, value) for index, (key, value) in enumerate(entries)])
        stage = Stage()
        stage.partitions = [MemoryPartition(partition_for("g", PARTITIONS), MemoryLog(batch))]
        stage.lead()
        await loaded(stage)
        assert [await stage.fetch("g", index) for index in range(3)] == [4, None, 4]
        await stage.service.stop()

    asyncio.run(scene())
    assert "3 records could not be read" in caplog.text


@pytest.mark.parametrize(
    ("position", "bytes_there", "expected"),
    [
        (61 + 4, b"\x7f", [None, 1, 2, 3]),  # inside the first record: this batch is skipped
        (57, b"\x7f\xff\xff\xff", [0, 1, 2, 3]),  # the count: the existing record is read
        (8, b"\x00\x00\x00\x01", [None, None, 2, 3]),  # an impossible length: the rest of the segment is skipped
        (8, b"\x00\xff\xff\xff", [None, None, 2, 3]),  # a length beyond the segment's end
        (23, b"\xff\xff\xff\xf0", [None, None, 2, 3]),  # a last offset before the first
        (23, b"\x7f\xff\xff\xff", [None, None, 2, 3]),  # a last offset beyond the log's end
        (21, b"\x00\x07", [None, 1, 2, 3]),  # an unknown codec
    ],
)
def test_one_bad_batch_doesnt_keep_a_shard_from_loading(
    tmp_path: Path, position: int, bytes_there: bytes, expected: list[int | None], caplog: pytest.LogCaptureFixture
) -> None:
    """Each segment has two batches; the first batch is damaged on the disk."""
    batches = [
        build_batch([Record(0, 1, offset_key(OffsetKey("g", "t", number)), offset_value(Committed(number)))])
        for number in range(4)
    ]
    bench = Workbench(tmp_path, config=LogConfig(segment_bytes=2 * len(batches[0]) + 10))
    log = bench.log()
    for batch in batches:
        append(log, bytearray(batch))
    assert len(log.segments) == 2
    with Path(log.segments[0].path).open("r+b") as file:
        file.seek(position)
        file.write(bytes_there)

    async def scene() -> None:
        stage = Stage(**{"offsets.load.buffer.size": 1 << 20})
        stage.partitions = [MemoryPartition(partition_for("g", PARTITIONS), log)]  # type: ignore[arg-type]
        stage.lead()
        await loaded(stage)
        assert [await stage.fetch("g", index) for index in range(4)] == expected
        assert stage.service.counters.unreadable_records >= 1
        if None in expected:
            assert stage.partitions[0].damage_met is not None
            assert stage.partitions[0].damage_met[0] == 0
        await stage.service.stop()

    asyncio.run(scene())
    assert "left out" in caplog.text


def test_one_bad_record_doesnt_keep_a_shard_from_loading(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has a control record that ends too early, a control batch that compaction has emptied, and a record whose
    handling raises an error."""

    async def scene() -> None:
        good = offset_value(Committed(4))
        marker = build_batch([Record(0, 1, b"\x00", b"")], control=True, producer_id=7, producer_epoch=0)
        emptied = build_batch([], control=True, producer_id=7, producer_epoch=0, base_offset=1, last_offset=1)
        entries = [(offset_key(OffsetKey("g", "t", index)), good) for index in range(3)]
        batch = build_batch(
            [Record(index, 1, key, value) for index, (key, value) in enumerate(entries, 2)], base_offset=2
        )
        stage = Stage()
        stage.partitions = [MemoryPartition(partition_for("g", PARTITIONS), MemoryLog(marker + emptied + batch))]
        stage.lead()
        await loaded(stage)
        assert [await stage.fetch("g", index) for index in range(3)] == [4, None, 4]
        assert stage.service.counters.unreadable_records == 2
        assert stage.service.partition_states() == {"loading": 0, "active": 1, "failed": 0}
        await stage.service.stop()

    def surprised(self: GroupShard, key: bytes, value: bytes | None, *rest: Any) -> bool:
        assert read_key(key) != OffsetKey("g", "t", 1)
        return _replayed(self, key, value, *rest)

    monkeypatch.setattr(GroupShard, "replayed", surprised)
    asyncio.run(scene())
    assert "offset 0 has no transaction marker" in caplog.text
    assert "offset 3 can't be read: AssertionError" in caplog.text


def test_a_load_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage()
        entry = Record(0, 1, offset_key(OffsetKey("g", "t", 0)), offset_value(Committed(4)))
        stage.partitions = [MemoryPartition(partition_for("g", PARTITIONS), MemoryLog(build_batch([entry])))]
        stage.lead()
        await asyncio.sleep(0.1)
        assert stage.service.counters.errors == 1
        assert stage.service.partition_states() == {"loading": 0, "active": 0, "failed": 1}
        with pytest.raises(KafkaError) as error:
            await stage.fetch("g")
        assert error.value.code is ErrorCode.coordinator_load_in_progress
        await loaded(stage)
        assert await stage.fetch("g") == 4
        assert stage.service.counters.errors == 2
        await stage.service.stop()

    failures = iter([RuntimeError("one"), ValueError("two")])
    run = replay.Replay.run

    async def failing(self: replay.Replay) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        await run(self)

    monkeypatch.setattr(replay.Replay, "run", failing)
    monkeypatch.setattr("ottla.broker.coordination.runtime.LOAD_AGAIN_SECONDS", 0.5)
    asyncio.run(scene())


def test_a_commit_that_cant_be_written_down_fails_alone() -> None:
    """From version 8 on, the protocol allows longer strings than the format of `__consumer_offsets` does."""

    async def scene() -> None:
        stage = Stage()
        stage.lead()
        long = "g" * 40_000
        other = next(f"g{number}" for number in range(99) if stage.of(f"g{number}") is stage.of(long))
        good, bad, joined = await asyncio.gather(
            stage.commit(other, 1), stage.commit(long, 1), stage.join(long), return_exceptions=True
        )
        assert good is ErrorCode.none
        assert isinstance(bad, KafkaError)
        assert bad.code is ErrorCode.unknown_server_error
        assert joined["error_code"] is not ErrorCode.none  # type: ignore[index]
        assert stage.service.group(long) is None
        assert await stage.commit(other, 2) is ErrorCode.none

    virtually(scene)


def test_an_unexpected_error_of_one_append_fails_its_commits_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage()
        stage.lead()
        monkeypatch.setattr(stage.of("g"), "append_batch", surprised)
        with pytest.raises(KafkaError) as error:
            await stage.commit("g", 1)
        assert error.value.code is ErrorCode.unknown_server_error
        assert stage.service.counters.errors == 1
        monkeypatch.undo()
        assert await stage.commit("g", 2) is ErrorCode.none

    def surprised(batch: bytearray, leader_epoch: int, guard: Guard | None) -> int:
        raise RuntimeError("nobody foresaw this")

    virtually(scene)


def test_an_unexpected_error_of_one_group_ends_neither_expiry_nor_time_outs_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        stage = Stage(offsets_retention_check_interval_ms=1_000)
        stage.lead()
        groups = [f"g{number}" for number in range(6)]
        for group in groups:
            await stage.stable(group, session_ms=10_000)
            await stage.commit(f"simple-{group}", 1)
        monkeypatch.setattr(GroupShard, "expire", expire_with_a_fault)
        monkeypatch.setattr(ClassicGroup, "time_passed", time_passed_with_a_fault)
        stage.wall_ms += 3_600_000
        await asyncio.sleep(5)
        assert stage.service.counters.offset_expirations == 5  # all but those of simple-g2, at which the fault occurs
        await asyncio.sleep(6)
        assert stage.service.counts(GroupType.CLASSIC)[State.STABLE.value] == 1
        assert stage.service.counters.errors > 5
        monkeypatch.undo()
        await asyncio.sleep(20)
        assert stage.service.counts(GroupType.CLASSIC)[State.STABLE.value] == 0
        assert stage.service.counters.offset_expirations == 6
        await stage.service.stop()

    expire, time_passed = GroupShard.expire, ClassicGroup.time_passed

    def expire_with_a_fault(self: GroupShard, group_id: str, now: Any) -> Any:
        assert group_id != "simple-g2"
        return expire(self, group_id, now)

    def time_passed_with_a_fault(self: ClassicGroup, now: Any) -> Any:
        assert self.group_id != "g2"
        return time_passed(self, now)

    virtually(scene)


# --- proofs that the tests above find planted faults ---


async def _waits_for_nothing(self: Runtime[Any], led: Any, offset: int) -> None:
    return


def _appends_in_any_epoch(self: Runtime[Any], led: Any, changes: Any, encoded: Any, *rest: Any) -> int:
    led.leader_epoch = led.partition.leader_epoch
    return _append(self, led, changes, encoded, *rest)


def _follows_before_it_appends(self: Runtime[Any], led: Any, changes: Any, encoded: Any, *rest: Any) -> int:
    led.core.appended(changes, led.partition.log.log_end_offset)
    return _append(self, led, changes, encoded, *rest)


def _commits_one_by_one(self: Runtime[Any], led: Any) -> None:
    commits, led.gathered = led.gathered, []
    for commit in commits:
        led.gathered = [commit]
        _flush(self, led)


def _forgets_tombstones(self: GroupShard, key: bytes, value: bytes | None, *rest: Any) -> bool:
    return value is None or _replayed(self, key, value, *rest)


_append, _flush, _replayed = Runtime.append, Runtime.flush, GroupShard.replayed


@pytest.mark.parametrize(
    ("owner", "name", "broken", "test"),
    [
        (Offsets, "show", Offsets.latest, test_an_answer_waits_for_the_high_watermark),
        (Runtime, "committed", _waits_for_nothing, test_an_answer_waits_for_the_high_watermark),
        (Runtime, "committed", _waits_for_nothing, test_an_assignment_waits_for_the_high_watermark),
        (Runtime, "append", _appends_in_any_epoch, test_appends_carry_the_epoch_that_was_loaded),
        (Runtime, "append", _follows_before_it_appends, test_an_append_that_fails_changes_nothing),
        (Runtime, "flush", _commits_one_by_one, test_commits_of_one_turn_are_one_batch),
        (GroupShard, "replayed", _forgets_tombstones, test_a_restart_is_a_replay),
        (replay, "SLICE_SECONDS", 1e9, test_loading_leaves_the_loop_to_others),
    ],
)
def test_planted_bugs_are_found(
    owner: Any, name: str, broken: Any, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
