"""OffsetFetch sees committed offsets up to the high watermark. The backlog of records that aren't visible yet stays
bounded. A long backlog becomes visible in several iterations of the event loop, so that it doesn't block the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.commits import Commits
from ottla.broker.coordination import committed_view
from ottla.broker.coordination.committed_view import CommittedView
from ottla.broker.group.offsets import Offsets
from ottla.broker.group.records import Committed, OffsetKey
from ottla.protocol.errors import ErrorCode, KafkaError


class Partition:
    """A replicated partition whose high watermark the test moves."""

    def __init__(self) -> None:
        self.high_watermark = 0
        self._commits = Commits()

    def committed(self, offset: int) -> asyncio.Future[None]:
        return self._commits.wait_for(offset, self.high_watermark)

    def move_to(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self._commits.reached(high_watermark)

    def resign(self) -> None:
        self._commits.fail(KafkaError(ErrorCode.not_leader_or_follower))


class CountedOffsets(Offsets):
    """Notes how many records became visible at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.let_out: list[int] = []

    def committed(self, high_watermark: int, records_max: int | None = None) -> None:
        before = self.unshown_count
        super().committed(high_watermark, records_max)
        self.let_out.append(before - self.unshown_count)


class Shard:
    """A view of the committed offsets of group `g`. `end` is the log end offset of the partition."""

    def __init__(self) -> None:
        self.partition = Partition()
        self.offsets = CountedOffsets()
        self.view = CommittedView(self.partition, self.offsets)
        self.end = 0

    def append(self, records: int) -> None:
        for partition in range(records):
            self.offsets.appended(self.end, OffsetKey("g", "t", partition), Committed(self.end))
            self.end += 1
        self.view.appended(records)

    def shows(self, partition: int = 0) -> int | None:
        value = self.offsets.show(OffsetKey("g", "t", partition))
        return None if value is None else value.offset


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(bounded())


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_commits_that_nobody_fetches_dont_pile_up() -> None:
    async def scene() -> None:
        shard = Shard()
        for _ in range(200):
            shard.append(20)
            shard.partition.move_to(shard.end)
            await turns(2)
            assert shard.offsets.unshown_count == 0
        assert shard.shows() == shard.end - 20

    run(scene)


def test_commits_of_a_leader_without_followers_dont_pile_up() -> None:
    """Without followers the high watermark passes a record as soon as it is appended, even with many appends in one
    turn."""

    async def scene() -> None:
        shard = Shard()
        for _ in range(20):
            for _ in range(10):
                shard.partition.high_watermark = shard.end + 500
                shard.append(500)
                assert shard.offsets.unshown_count == 0
        assert shard.shows() == shard.end - 500

    run(scene)


def test_a_long_wait_for_replication_is_caught_up_with_in_slices() -> None:
    async def scene() -> None:
        shard = Shard()
        for _ in range(50):
            shard.append(1_000)
            await turns()
        assert shard.offsets.unshown_count == 50_000
        shard.offsets.let_out.clear()
        shard.partition.move_to(shard.end)
        read = shard.view.shown()
        assert shard.offsets.let_out == []  # the read itself makes no records visible
        slices = 0
        while not read.done():
            await asyncio.sleep(0)
            slices += 1
        assert shard.shows(999) == shard.end - 1
        assert max(shard.offsets.let_out) <= committed_view.SLICE_RECORDS
        assert slices >= 50_000 // committed_view.SLICE_RECORDS

    run(scene)


def test_a_backlog_shrinks_however_much_is_appended_meanwhile() -> None:
    async def scene() -> None:
        shard = Shard()
        shard.append(20_000)
        shard.partition.move_to(shard.end)
        for _ in range(30):
            before = shard.offsets.unshown_count
            shard.partition.high_watermark = shard.end + 5_000
            shard.append(5_000)
            assert shard.offsets.unshown_count < before or before == 0
            await asyncio.sleep(0)
        assert shard.offsets.unshown_count == 0

    run(scene)


def test_a_read_waits_for_what_is_committed_and_for_nothing_else() -> None:
    async def scene() -> None:
        shard = Shard()
        shard.append(10)
        shard.append(10)
        shard.partition.move_to(10)
        await asyncio.wait_for(shard.view.shown(), 10)
        assert shard.shows() == 0
        assert shard.offsets.unshown_count == 10
        assert shard.view.shown().done()
        shard.partition.move_to(20)
        await shard.view.shown()
        assert shard.shows() == 10

    run(scene)


def test_a_read_of_a_coordinator_that_resigns_is_sent_away() -> None:
    async def scene() -> None:
        shard = Shard()
        shard.append(5_000)
        shard.partition.move_to(shard.end)
        read = shard.view.shown()
        shard.view.resign(KafkaError(ErrorCode.not_coordinator))
        with pytest.raises(KafkaError) as error:
            await read
        assert error.value.code is ErrorCode.not_coordinator
        await turns(10)
        assert shard.offsets.unshown_count > 0  # no work is done for a shard that has resigned

    run(scene)


def test_a_read_that_comes_after_the_resignation_is_sent_away() -> None:
    async def scene() -> None:
        shard = Shard()
        shard.append(5_000)
        shard.partition.move_to(shard.end)
        shard.view.resign(KafkaError(ErrorCode.not_coordinator))
        await turns(10)
        with pytest.raises(KafkaError) as error:
            await asyncio.wait_for(shard.view.shown(), 10)
        assert error.value.code is ErrorCode.not_coordinator

    run(scene)


def test_a_replica_that_leads_again_goes_on() -> None:
    async def scene() -> None:
        shard = Shard()
        shard.append(10)
        shard.partition.resign()
        await turns()
        shard.partition.move_to(10)
        await shard.view.shown()
        assert shard.shows(9) == 9

    run(scene)


def _lets_out_everything(self: Any) -> None:
    self._unshown.committed(self._partition.high_watermark)
    self._go_on()


def _waits_for_a_read(self: Any, records: int) -> None:
    return


@pytest.mark.parametrize(
    ("name", "broken", "test"),
    [
        ("_slice", _lets_out_everything, test_a_long_wait_for_replication_is_caught_up_with_in_slices),
        ("appended", _waits_for_a_read, test_commits_that_nobody_fetches_dont_pile_up),
        ("appended", _waits_for_a_read, test_commits_of_a_leader_without_followers_dont_pile_up),
    ],
)
def test_planted_bugs_are_found(
    name: str, broken: Any, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommittedView, name, broken)
    with pytest.raises(AssertionError):
        test()
