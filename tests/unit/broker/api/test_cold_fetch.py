"""Fetches of records that aren't in memory: the event loop never waits for the disk, and all records arrive."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.api import list_offsets
from ottla.broker.api.fetch import COLD_WAIT_MS
from ottla.broker.cold_reads import ColdReads
from ottla.broker.group.partitioning import partition_for
from ottla.broker.group.records import Committed, OffsetKey, offset_key, offset_value
from ottla.broker.log.config import LogConfig
from ottla.broker.log.index import OffsetIndex
from ottla.broker.log.log import Log
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.request import Request
from ottla.metadata.model.partitions import Partition as Replicas
from ottla.net.disk_threads import THREADS_PER_VOLUME, VolumeThreads
from ottla.net.pending import READ_AHEAD_BYTES, Pending
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_request, write_request
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.api.test_produce_and_fetch import TOPIC_ID, Stage, answer_of, asked, batch_of
from tests.unit.broker.log.cold_disk import PAGE, ColdDisk
from tests.unit.broker.log.workbench import Workbench, append
from tests.unit.broker.test_group_service import PARTITIONS, MemoryPartition, loaded
from tests.unit.broker.test_group_service import Stage as Groups
from tests.unit.waiting import until

LIST_OFFSETS = 2
BATCHES = 200  # of about 100 bytes, in segments of 4 KiB


class ColdStage(Stage):
    """Partition 0 is in a log directory whose disk can be stuck, partition 1 in another one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.disk = ColdDisk()
        self.cold_log = self.logs[0] = Workbench(folder / "cold" / "t-0", disk=self.disk).log()
        self.partition = self.partitions.find("t", 0)
        self.partition.log = self.cold_log
        for number in range(BATCHES):
            self.append(0, b"%05d" % number)
        self.append(1, b"warm")
        assert len(self.cold_log.segments) > 3

    def append(self, index: int, value: bytes) -> None:
        # all batches are appended in one turn of the event loop
        batch, quota = batch_of([value]), LoopQuota(lambda renew: None)
        assert self.partitions.find("t", index).append(batch, 0, len(batch), 9, quota) is not None

    def cool(self) -> None:
        """Removes the records of partition 0 from memory, and closes the partition's files."""
        self.disk.grow_cold()
        for segment in self.cold_log.segments:
            segment.write_out()
            segment.let_go()
        self.cold_log.segments.boundaries.clear()
        self.disk.grow_cold()
        gc.collect()

    def fetch_of(self, *partitions: dict[str, Any], **request: Any) -> Any:
        return self.fetch(topics=[{"topic": "t", "partitions": list(partitions)}], **request)


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[ColdStage], Coroutine[Any, Any, None]]], None]:
    async def scene(body: Callable[[ColdStage], Coroutine[Any, Any, None]]) -> None:
        stage = ColdStage(tmp_path)
        try:
            await asyncio.wait_for(body(stage), 25)
        finally:
            stage.disk.answers.set()
        assert not stage.disk.held, "the event loop waited for the disk"

    for name in ("0", "1", "cold"):
        (tmp_path / name).mkdir()
    return lambda body: asyncio.run(scene(body))


async def answered(reply: Any) -> Any:
    """A reply's parts, as soon as they exist."""
    if not isinstance(reply, Pending):
        return reply
    await until(lambda: reply.parts is not None)
    return reply.parts


def sizes_and_errors(parts: Any) -> list[tuple[int, int]]:
    [topic] = answer_of(parts).responses
    return [(len(each.records or b""), each.error_code) for each in topic.partitions]


def test_a_lookup_on_a_stuck_disk_holds_no_other_fetch(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        waiting = stage.fetch_of(asked(0, 100), max_wait=20_000)
        assert isinstance(waiting, Pending)
        for _ in range(5):
            assert sizes_and_errors(stage.fetch_of(asked(1)))[0][0] > 0
            # The warm partition is answered even in the same request as the stuck one.
            stuck, warm = sizes_and_errors(stage.fetch_of(asked(0, 100), asked(1), max_wait=20_000))
            assert stuck == (0, 0)
            assert warm[0] > 0
            await asyncio.sleep(0.01)
        assert waiting.parts is None
        stage.disk.answers.set()
        parts = await answered(waiting)
        [(size, error)] = sizes_and_errors(parts)
        assert (size > 0, error) == (True, 0)

    play(body)


BODY = 5 * PAGE


def with_a_cold_body(stage: ColdStage, body_bytes: int = BODY) -> int:
    """Appends a batch of which only the header stays in memory. Returns the batch's offset."""
    offset = stage.cold_log.log_end_offset
    append(stage.cold_log, batch_of([bytes(body_bytes)]))
    stage.partition.high_watermark = stage.cold_log.log_end_offset
    name = os.path.basename(stage.cold_log.active.path)
    stage.disk.warm -= {(name, page) for page in range(1, body_bytes // PAGE + 2)}
    return offset


@pytest.mark.parametrize("replica", [-1, 1], ids=["consumer", "follower"])
def test_a_body_on_a_stuck_disk_behind_a_warm_header_holds_no_other_partition_of_its_fetch(
    play: Any, replica: int
) -> None:
    """Before the fix, the answer was begun and stopped in its middle, so the partitions behind the stuck one had to
    wait for the disk."""

    async def body(stage: ColdStage) -> None:
        for index, partition in enumerate(stage.partitions):
            partition.become_leader(Replicas(TOPIC_ID, index, (0, 1), (0, 1), (1, -1), 0, leader_epoch=1))
        offset = with_a_cold_body(stage)
        stage.disk.answers.clear()
        for _ in range(5):
            both = (asked(0, offset), asked(1))
            stuck, warm = sizes_and_errors(stage.fetch_of(*both, max_wait=20_000, replica_id=replica))
            assert stuck == (0, 0)
            assert warm[0] > 0
        waiting = stage.fetch_of(asked(0, offset), max_wait=20_000, replica_id=replica)
        assert isinstance(waiting, Pending)
        stage.disk.answers.set()
        [(size, error)] = sizes_and_errors(await answered(waiting))
        assert (size > BODY, error) == (True, 0)

    play(body)


def test_an_answer_ends_where_memory_does(play: Any) -> None:
    """The answer has only the records up to the first page that isn't in memory; the next answer has the records behind
    it.
    """

    async def body(stage: ColdStage) -> None:
        log = stage.cold_log = stage.partition.log = Workbench(
            stage.folder / "one-segment", config=LogConfig(), disk=stage.disk
        ).log()
        for _ in range(50):
            stage.append(0, bytes(100_000))
        name = os.path.basename(log.active.path)
        [(start, offset)] = [
            (at, header.base_offset) for at, header in log.active.headers() if at < 690 * PAGE < at + header.size
        ]
        stage.disk.warm -= {(name, page) for page in (700, 1100)}
        stage.broker.config.fetch_bytes_max = 1 << 30
        stage.disk.answers.clear()
        request = asked(0) | {"partition_max_bytes": 1 << 30}
        [(size, _)] = sizes_and_errors(stage.fetch_of(request, max_wait=20_000, max_bytes=1 << 30))
        assert size == 700 * PAGE
        more = stage.fetch_of(request, max_wait=20_000, max_bytes=1 << 30, min_bytes=4_000_000)
        assert sizes_and_errors(more) == [(700 * PAGE, 0)], "enough bytes exist, though not all in memory"
        # A thread reads a whole piece in one step, and a page of this piece isn't in memory. So nothing can be sent
        # until the thread has read the piece.
        request |= {"fetch_offset": offset}
        waiting = stage.fetch_of(request, max_wait=20_000, max_bytes=1 << 30)
        assert isinstance(waiting, Pending)
        stage.disk.answers.set()
        [(size, _)] = sizes_and_errors(await answered(waiting))
        assert size == 1100 * PAGE - start

    play(body)


def test_a_first_batch_that_is_cold_far_behind_its_header_arrives_whole(play: Any) -> None:
    """The batch is larger than the piece that a thread reads in one step. Kafka's consumer fails if the first batch is
    cut off.
    """

    async def body(stage: ColdStage) -> None:
        large = 3 * READ_AHEAD_BYTES
        offset = with_a_cold_body(stage, large)
        name = os.path.basename(stage.cold_log.active.path)
        stage.disk.warm |= {(name, page) for page in range(2 * READ_AHEAD_BYTES // PAGE)}
        stage.disk.answers.clear()
        small, _ = sizes_and_errors(stage.fetch_of(asked(0, offset), asked(1), max_wait=20_000))
        assert small == (0, 0)
        waiting = stage.fetch_of(asked(0, offset), max_wait=20_000)
        assert isinstance(waiting, Pending)
        stage.disk.answers.set()
        [(size, _)] = sizes_and_errors(await answered(waiting))
        assert size > large

    play(body)


def test_a_whole_cold_log_arrives_as_it_was_written(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        offset, seen = 0, b""
        while offset < BATCHES:
            stage.cool()
            parts = await answered(stage.fetch_of(asked(0, offset), max_wait=20_000))
            [topic] = answer_of(parts).responses
            seen += bytes(topic.partitions[0].records)
            offset = stage.cold_log.segment_after(offset) or BATCHES
        files = [Path(segment.path) for segment in stage.cold_log.segments]
        assert seen == b"".join([await asyncio.to_thread(file.read_bytes) for file in files])

    play(body)


def test_a_fetch_that_waits_for_nothing_waits_for_the_disk_a_little(play: Any) -> None:
    """The client gives no time to wait. If the fetch didn't wait for the disk, its answer would be empty, and the
    client would ask again and again."""

    async def body(stage: ColdStage) -> None:
        stage.cool()
        assert sizes_and_errors(await answered(stage.fetch_of(asked(0, 50), max_wait=0)))[0][0] > 0
        stage.cool()
        stage.disk.answers.clear()
        began = time.monotonic()
        assert sizes_and_errors(await answered(stage.fetch_of(asked(0, 50), max_wait=0))) == [(0, 0)]
        assert time.monotonic() - began > COLD_WAIT_MS / 1000 * 0.9

    play(body)


def test_many_fetches_of_a_stuck_disk_take_few_threads_and_one_for_each_offset(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        waiting = [stage.fetch_of(asked(0, number % 20 + 60), max_wait=20_000) for number in range(200)]
        await asyncio.sleep(0.1)
        assert stage.disk.waits <= THREADS_PER_VOLUME
        assert stage.broker.cold_reads.under_way == 20
        stage.disk.answers.set()
        for each in waiting:
            assert sizes_and_errors(await answered(each))[0][0] > 0
        assert stage.broker.cold_reads.under_way == 0

    play(body)


def test_lookups_of_who_has_gone_are_bounded(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, each time that a client asked for another offset and disconnected, one more lookup stayed under
    way.
    """

    async def body(stage: ColdStage) -> None:
        monkeypatch.setattr("ottla.broker.cold_reads.UNDER_WAY_MAX", 10, raising=False)
        stage.cool()
        stage.disk.answers.clear()
        for offset in range(50):
            stage.fetch_of(asked(0, offset), max_wait=20_000).forget()
        assert stage.broker.cold_reads.under_way == 10
        waiting = stage.fetch_of(asked(0, 190), max_wait=20_000)
        stage.disk.answers.set()
        await answered(waiting)
        # This answer may have no records yet. The client then asks again, and gets the records once a lookup is free.
        async with asyncio.timeout(10):
            while sizes_and_errors(await answered(stage.fetch_of(asked(0, 190), max_wait=20_000)))[0][0] == 0:
                pass

    play(body)


def test_who_is_beyond_the_bound_has_a_turn_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, each lookup that ended woke all waiting requests. They were answered without records, and their
    clients asked again immediately.
    """
    monkeypatch.setattr("ottla.broker.cold_reads.UNDER_WAY_MAX", 1)

    async def body() -> None:
        begun: list[asyncio.Future[Any]] = []

        def run(directory: str, work: Callable[[], Any]) -> asyncio.Future[Any]:
            begun.append(asyncio.get_running_loop().create_future())
            return begun[-1]

        reads = ColdReads(cast("Any", SimpleNamespace(run=run)))

        class SomeLog:
            directory = "/data/t-0"

            def segments_read(self, offset: int) -> list[Any]:
                return []

        log = cast("Any", SomeLog())
        first, gone, second, third = (reads.read_ahead(log, offset, 9, 100) for offset in range(4))
        del gone
        for count, expected in enumerate(((True, True, False), (True, True, True))):
            begun[count].set_result(None)
            await asyncio.sleep(0.01)
            assert (first.done(), second.done(), third.done()) == expected
            reads.read_ahead(log, 2 + count, 9, 100)

    asyncio.run(body())


def test_a_lookup_of_little_prepares_no_read_of_much(play: Any) -> None:
    """A lookup may be for fewer bytes than a later fetch asks for. Before the fix, this fetch's records beyond the
    lookup's size were sent without a check that they are in memory, and the answer stopped in its middle if the disk
    was stuck.
    """

    async def body(stage: ColdStage) -> None:
        stage.cool()
        little = asked(0) | {"partition_max_bytes": 100}
        await answered(stage.fetch_of(little, max_wait=20_000, max_bytes=100))
        stage.cool()
        await until(lambda: not stage.broker.cold_reads.under_way)
        lookup = stage.broker.cold_reads.read_ahead(stage.cold_log, 0, stage.cold_log.log_end_offset, 100)
        await lookup
        stage.cool()
        stage.disk.answers.clear()
        assert isinstance(stage.fetch_of(asked(0), max_wait=20_000), Pending)

    play(body)


def test_who_hangs_up_during_a_lookup_leaves_nothing_behind(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        descriptors = len(os.listdir("/proc/self/fd"))
        stage.disk.answers.clear()
        for number in range(20):
            stage.fetch_of(asked(0, 10 * number), max_wait=20_000).forget()
        assert not stage.partition.waiters
        stage.disk.answers.set()
        await until(lambda: not stage.broker.cold_reads.under_way)
        await asyncio.sleep(0.05)
        assert len(stage.broker.cold_reads._ended) <= 20
        stage.cool()
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2 * THREADS_PER_VOLUME
        assert not [kept for kept in gc.get_objects() if type(kept).__name__ == "_Waiting"]

    play(body)


def test_a_truncation_during_the_lookup(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        waiting = stage.fetch_of(asked(0, 150), max_wait=20_000)
        await asyncio.sleep(0.05)
        stage.disk.answers.set()  # a truncation reads the disk, too, so a replica that truncates waits for it
        stage.disk.held = 0
        stage.cold_log.truncate_to(100)
        stage.disk.held = 0
        stage.partition.high_watermark = 100
        assert sizes_and_errors(await answered(waiting)) == [(0, ErrorCode.offset_out_of_range)]
        assert sizes_and_errors(await answered(stage.fetch_of(asked(0, 99), max_wait=20_000)))[0][0] > 0

    play(body)


def test_a_deletion_of_the_segment_during_the_lookup(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        waiting = stage.fetch_of(asked(0, 5), max_wait=20_000)
        await asyncio.sleep(0.05)
        stage.cold_log.delete_records_before(150)
        assert stage.cold_log.retention(2_000_000, 150) is not None
        stage.disk.answers.set()
        assert sizes_and_errors(await answered(waiting)) == [(0, ErrorCode.offset_out_of_range)]

    play(body)


@pytest.mark.parametrize("replica", [-1, 1], ids=["consumer", "follower"])
def test_a_fetch_is_read_on_the_loop_where_no_thread_can_be_begun(
    play: Any, replica: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, the connection was closed with a traceback each time."""

    async def body(stage: ColdStage) -> None:
        stage.partition.become_leader(Replicas(TOPIC_ID, 0, (0, 1), (0, 1), (1, -1), 0, leader_epoch=1))

        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        stage.cool()
        monkeypatch.setattr(threading.Thread, "start", refused)
        parts = stage.fetch_of(asked(0, 150), replica_id=replica, max_wait=20_000)
        [(size, error)] = sizes_and_errors(parts)
        assert (size > 0, error) == (True, 0)
        assert stage.broker.cold_reads.under_way == 0
        stage.disk.held = 0  # without threads the event loop has to wait

    play(body)


def test_a_disk_that_fails_during_the_lookup_is_told(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.error = OSError(5, "Input/output error")
        assert sizes_and_errors(await answered(stage.fetch_of(asked(0, 150), max_wait=20_000))) == [
            (0, ErrorCode.kafka_storage_error)
        ]

    play(body)


def test_a_disk_that_failed_long_ago_is_asked_again(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client disconnects, and then the disk fails, so no request waits for the lookup. Before the fix, the next
    client that asked for the same offset got the old error, which took the log directory offline.
    """

    async def body(stage: ColdStage) -> None:
        monkeypatch.setattr("ottla.broker.cold_reads.REMEMBERED_SECONDS", 0.0)
        stage.cool()
        stage.disk.error = OSError(5, "Input/output error")
        stage.fetch_of(asked(0, 150), max_wait=20_000).forget()
        await until(lambda: not stage.broker.cold_reads.under_way)
        stage.disk.error = None
        monkeypatch.setattr("ottla.broker.cold_reads.REMEMBERED_SECONDS", 1.0)
        stage.broker.cold_reads._ended = {
            place: ended._replace(at=ended.at - 2.0) for place, ended in stage.broker.cold_reads._ended.items()
        }
        [(size, error)] = sizes_and_errors(await answered(stage.fetch_of(asked(0, 150), max_wait=20_000)))
        assert (size > 0, error) == (True, 0)

    play(body)


def test_a_file_system_that_keeps_nothing_is_read_all_the_same(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.disk.warm = Forgetting()
        for offset in (0, 77, 199):
            stage.cold_log.segments.boundaries.clear()
            assert sizes_and_errors(await answered(stage.fetch_of(asked(0, offset), max_wait=20_000)))[0][0] > 0
        stage.disk.held = 0  # on such a file system the event loop has to wait

    play(body)


class Forgetting(set[tuple[str, int]]):
    """Pages that leave memory as soon as they are read."""

    def __ge__(self, other: Any) -> bool:
        return False

    def __ior__(self, other: Any) -> Any:
        return self


def test_a_session_comes_back_to_what_was_cold(play: Any) -> None:
    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        first = stage.fetch_of(asked(0, 100), asked(1), session_epoch=0, max_wait=20_000)
        assert [size > 0 for size, _ in sizes_and_errors(first)] == [False, True]
        session = answer_of(first).session_id
        stage.disk.answers.set()
        await until(lambda: not stage.broker.cold_reads.under_way)
        second = await answered(stage.fetch_of(asked(1, 1), session_id=session, session_epoch=1, max_wait=20_000))
        [topic] = answer_of(second).responses
        assert [each.partition_index for each in topic.partitions] == [0]
        assert topic.partitions[0].records

    play(body)


def test_a_thread_that_opens_a_file_while_it_is_moved_doesnt_bring_back_the_old_one(play: Any) -> None:
    """If the old file were used again, the broker would write to the log's old directory."""

    async def body(stage: ColdStage) -> None:
        opened = stage.disk.open
        index, segment = stage.cold_log.segments[0].offsets, stage.cold_log.segments[1]
        for mover, file_of in ((index, index.file), (segment, lambda: segment.file)):
            mover.let_go()

            def moves(path: str, *, create: bool = False, mover: Any = mover) -> Any:
                file = opened(path, create=create)
                mover.moved("/elsewhere")
                return file

            stage.disk.open = moves  # type: ignore[method-assign]
            assert file_of() is not None
            assert mover._file is None
            stage.disk.open = opened  # type: ignore[method-assign]

    play(body)


def test_entries_that_a_thread_looked_at_before_an_append_dont_mislead(play: Any) -> None:
    """A thread reads an index's first and last entry while the event loop appends. The thread then works with the
    entries from before the append.
    """

    async def body(stage: ColdStage) -> None:
        class Overtaken(OffsetIndex):
            """An index to which 400 entries are appended while its last entry is read."""

            added = False

            def _raw(self, at: int, wait: bool = True) -> tuple[int, int]:
                entry = super()._raw(at, wait)
                if at and not self.added:
                    self.added = True
                    fill(self, 401)
                return entry

        def fill(index: OffsetIndex, start: int) -> None:
            for number in range(start, start + 400):
                index.append(number, number * 100)
            index.write_out()

        index = Overtaken(stage.disk, f"{stage.cold_log.directory}/overtaken.index", 0)
        fill(index, 1)
        index.floor(200)
        assert index.added
        assert index.floor(600).offset == 600

    play(body)


async def look_up_by_time(stage: ColdStage, index: int, timestamp: int, request: Request | None = None) -> Any:
    """A ListOffsets answer for one partition."""
    partition = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
    message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [partition]}]}
    body = read_request(LIST_OFFSETS, 8, write_request(LIST_OFFSETS, 8, message))
    answer = await list_offsets.handle(stage.broker, request or request_of(LIST_OFFSETS, 8), body)
    return answer["topics"][0]["partitions"][0]


def test_lookups_by_time_on_a_stuck_disk_leave_threads_to_the_others(play: Any) -> None:
    """Before the fix, these lookups filled the event loop's own few threads, so that none was left for syncs or other
    log directories."""

    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        stuck = [asyncio.ensure_future(look_up_by_time(stage, 0, 1)) for _ in range(50)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            answer = await look_up_by_time(stage, 1, 1)
            await asyncio.to_thread(int)
        assert answer["offset"] == 0
        assert not any(each.done() for each in stuck)
        stage.disk.answers.set()
        for each in stuck:
            assert (await each)["offset"] == 0

    play(body)


def test_lookups_by_time_of_who_has_gone_wait_for_no_disk(play: Any) -> None:
    """Before the fix, the lookup of each client that disconnected waited for as long as the disk was stuck."""

    async def body(stage: ColdStage) -> None:
        stage.cool()
        stage.disk.answers.clear()
        for number in range(50):
            request = request_of(LIST_OFFSETS, 8)
            if number % 2:
                request.pending.forget()  # the client is gone before the request is begun
            looking = asyncio.ensure_future(look_up_by_time(stage, 0, 1, request))
            await asyncio.sleep(0.001)
            request.pending.forget()
            await asyncio.wait([looking])
            assert looking.cancelled()
        [volume] = stage.broker.cold_reads._threads._volumes.values()
        assert not volume._waiting
        assert stage.disk.waits <= THREADS_PER_VOLUME
        stage.disk.answers.set()
        assert (await look_up_by_time(stage, 0, 1))["offset"] == 0

    play(body)


@pytest.mark.parametrize("timestamp", [1, list_offsets.MAX_TIMESTAMP])
def test_a_lookup_by_time_is_done_on_the_loop_where_no_thread_can_be_begun(
    play: Any, timestamp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, the answer was KAFKA_STORAGE_ERROR."""

    async def body(stage: ColdStage) -> None:
        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        stage.cool()
        monkeypatch.setattr(threading.Thread, "start", refused)
        answer = await look_up_by_time(stage, 0, timestamp)
        assert (answer.get("error_code", 0), answer["offset"]) == (0, 0)
        stage.disk.held = 0  # without threads the event loop has to wait

    play(body)


@pytest.mark.parametrize("removed", [True, False], ids=["removed meanwhile", "missing"])
def test_a_segment_that_goes_during_a_lookup_by_time_fails_no_log_directory(
    play: Any, removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may remove a segment's file during the lookup. Only if the file is missing for another reason, the log
    directory has an error.
    """

    async def body(stage: ColdStage) -> None:
        log, errors, loop = stage.cold_log, list[OSError](), asyncio.get_running_loop()
        log.services.failed = lambda log, error: errors.append(error)

        async def retain() -> None:
            log.delete_records_before(150)
            assert log.retention(2_000_000, 150) is not None

        def look_up(self: Log) -> None:
            if removed:
                asyncio.run_coroutine_threadsafe(retain(), loop).result(20)
            raise FileNotFoundError(2, "No such file or directory")

        monkeypatch.setattr(Log, "offset_of_max_timestamp", look_up)
        answer = await look_up_by_time(stage, 0, list_offsets.MAX_TIMESTAMP)
        assert answer["error_code"] == ErrorCode.kafka_storage_error
        assert len(errors) == (0 if removed else 1)

    play(body)


def committed_log(folder: Path, disk: ColdDisk) -> Log:
    """A log with a group's committed offsets for 20 partitions."""
    log = Workbench(folder / "offsets", config=LogConfig(segment_bytes=300), disk=disk).log()
    for number in range(20):
        commit = Record(0, 1, offset_key(OffsetKey("g", "t", number)), offset_value(Committed(number)))
        append(log, bytearray(build_batch([commit])))
    for segment in log.segments:
        segment.let_go()
    return log


def test_loading_groups_from_a_stuck_disk_holds_nobody(tmp_path: Path) -> None:
    log = committed_log(tmp_path, disk := ColdDisk())
    disk.grow_cold()

    async def scene() -> None:
        disk.answers.clear()
        groups = Groups(**{"offsets.load.buffer.size": 1 << 20})
        partition: Any = MemoryPartition(partition_for("g", PARTITIONS), log)  # type: ignore[arg-type]
        groups.service._runtime._cold_reads = ColdReads(VolumeThreads())
        groups.partitions = [partition]
        groups.lead()
        await asyncio.sleep(0.1)
        assert disk.waits == 1
        disk.answers.set()
        await loaded(groups)
        assert [await groups.fetch("g", index) for index in range(20)] == list(range(20))
        await groups.service.stop()

    asyncio.run(scene())
    assert not disk.held, "the event loop waited for the disk"


def test_groups_are_loaded_on_the_loop_where_no_thread_can_be_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = committed_log(tmp_path, disk := ColdDisk())
    disk.grow_cold()

    async def scene() -> None:
        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refused)
        groups = Groups(**{"offsets.load.buffer.size": 1 << 20})
        partition: Any = MemoryPartition(partition_for("g", PARTITIONS), log)  # type: ignore[arg-type]
        groups.service._runtime._cold_reads = ColdReads(VolumeThreads())
        groups.partitions = [partition]
        groups.lead()
        await loaded(groups)
        assert [await groups.fetch("g", index) for index in range(20)] == list(range(20))
        await groups.service.stop()

    asyncio.run(scene())
