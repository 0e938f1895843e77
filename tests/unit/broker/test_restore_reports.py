"""A broker reports its logs once for each registration, whatever the store does, and in the end withdraws the
report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from ottla.broker import restore_reports
from ottla.broker.restore_reports import RestoreReports
from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.reports import MISSING, UNREADABLE, LogEnd
from ottla.metadata.reports import reported, reporters
from ottla.metadata.store import Put
from tests.unit.metadata.faulty import DONE_BUT_UNKNOWN, LOST, REFUSED, FaultyStore

T = UUID("12345678-1234-4321-8765-123456789abc")
PARTITIONS = 7


class Logs:
    """The logs of some partitions: one can't be read, and one is missing."""

    def __init__(self) -> None:
        self.stopped_epoch = -1
        self.lost = {(T, 2): OSError()}
        self.logs = {
            (T, index): SimpleNamespace(last_leader_epoch=index, log_end_offset=10 * index) for index in (0, 1, 4, 5, 6)
        }

    def get(self, topic_id: UUID, index: int) -> Any:
        return self.logs.get((topic_id, index))


class Table:
    def get_by_id(self, topic_id: UUID, index: int) -> Any:
        return SimpleNamespace(epoch=9) if index == 1 else None


class Setting:
    """A store with restored partitions, its follower, and one broker's reports."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.faulty = FaultyStore(store)
        self.follower = Follower(store)
        self.logs = Logs()
        self.reports = RestoreReports(3, cast("Any", self.faulty), cast("Any", self.logs), cast("Any", Table()))

    async def register(self) -> None:
        """Registers anew, with a new lease."""
        lease = await self.store.grant(60)
        result = await self.store.transact([], [Put(keys.broker(3), Broker(3, 0, {}).encode(), lease)])
        self.reports.registered(result.revision, lease)  # type: ignore[union-attr]
        self.lease = lease

    async def until(self, holds: Callable[[], bool]) -> None:
        await self.follower.wait(lambda image: True if holds() else None, 10)

    async def write(
        self, *, restored: bool, isr: tuple[int, ...] = (3,), indexes: range = range(PARTITIONS), epoch: int = -1
    ) -> None:
        state = Partition(T, 0, isr, isr, (epoch,) * len(isr), -1, restored=restored)
        puts = [Put(keys.partition(T, index), state.encode()) for index in indexes]
        await self.store.transact([], puts)

    @property
    def image(self) -> Any:
        return self.follower.image


@asynccontextmanager
async def setting(path: Path) -> AsyncIterator[Setting]:
    store = await EmbeddedStore.open(path / "metadata")
    made = Setting(store)
    await made.write(restored=True)
    made.follower.listen(made.reports.changed)
    await made.follower.start()
    tasks = [asyncio.ensure_future(run()) for run in (made.follower.run, made.reports.run)]
    try:
        async with asyncio.timeout(30):
            yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_reports, "PART_LOGS_MAX", 2)
    monkeypatch.setattr(restore_reports, "_AGAIN_S", 0.01)


@pytest.mark.parametrize("plan", [[], [REFUSED], [LOST], ["ok", DONE_BUT_UNKNOWN, LOST], ["ok", REFUSED, "ok", LOST]])
def test_all_logs_are_reported(tmp_path: Path, plan: list[str]) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            made.faulty.plan.extend(plan)
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))
            ends = {index: reported(made.image, 3, (T, index)) for index in range(PARTITIONS)}
            assert ends == {
                0: LogEnd(0, 0, 0), 1: LogEnd(1, 10, 9), 2: UNREADABLE, 3: None,
                4: LogEnd(4, 40, 4), 5: LogEnd(5, 50, 5), 6: LogEnd(6, 60, 6),
            }  # fmt: skip
            await made.write(restored=False)
            await made.until(lambda: not made.image.reports)

    asyncio.run(run())


def test_a_log_that_could_not_be_read_is_reported_once_it_can_be(tmp_path: Path) -> None:
    """A directory that was full at the start has room again. Before the fix, the partition waited for this log for
    ever."""

    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))
            del made.logs.lost[T, 2]
            made.logs.logs[T, 2] = SimpleNamespace(last_leader_epoch=2, log_end_offset=20)
            made.reports.logs_opened()
            await made.until(lambda: reported(made.image, 3, (T, 2)) == LogEnd(2, 20, 2))
            revision = made.image.reports[3, 0]
            made.reports.logs_opened()
            await asyncio.sleep(0.1)
            assert made.image.reports[3, 0] is revision, "no other log was opened"

    asyncio.run(run())


def test_a_log_that_is_opened_while_the_report_is_written_is_reported_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            transact = made.faulty.transact

            async def meanwhile(guards: Any, writes: Any) -> Any:
                if made.logs.lost:
                    made.logs.lost.clear()
                    made.logs.logs[T, 2] = SimpleNamespace(last_leader_epoch=2, log_end_offset=20)
                    made.reports.logs_opened()
                return await transact(guards, writes)

            made.faulty.transact = meanwhile  # type: ignore[method-assign]
            await made.register()
            await made.until(lambda: reported(made.image, 3, (T, 2)) == LogEnd(2, 20, 2))

    asyncio.run(run())


def test_a_report_that_may_be_whole_is_taken_back_before_it_is_made_again(tmp_path: Path) -> None:
    """A report has several parts. Without the withdrawal, parts of two reports could be taken for one report. A log
    that neither part names would then count as missing.
    """

    async def run() -> None:
        async with setting(tmp_path) as made:
            made.faulty.plan.extend(["ok", "ok", DONE_BUT_UNKNOWN])
            written: list[tuple[bool, str]] = []
            transact = made.faulty.transact

            async def noted(guards: Any, writes: Any) -> Any:
                written.extend((isinstance(write, Put), write.key) for write in writes)
                return await transact(guards, writes)

            made.faulty.transact = noted  # type: ignore[method-assign]
            await made.register()
            await made.until(lambda: len(written) >= 7)
            whole = [(True, keys.report(3, part)) for part in (2, 1, 0)]
            assert written == [*whole, (False, keys.report(3, 0)), *whole]

    asyncio.run(run())


def test_each_registration_reports_anew(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))
            await made.store.revoke(made.lease)
            await made.until(lambda: not made.image.reports)
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))
            assert reported(made.image, 3, (T, 6)) == LogEnd(6, 60, 6)

    asyncio.run(run())


def test_who_lost_the_claim_of_a_clean_stop_before_the_registration_reports(tmp_path: Path) -> None:
    """A log directory failed between the start and the registration. Before the fix, the partition waited for this
    broker for ever."""

    async def run() -> None:
        async with setting(tmp_path) as made:
            made.logs.stopped_epoch = 7
            await made.write(restored=False, isr=(3, 4), epoch=7)
            await made.until(lambda: not made.image.partition(T, 0).restored)
            made.logs.stopped_epoch = -1
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))
            assert reported(made.image, 3, (T, 1)) == LogEnd(1, 10, 9)

    asyncio.run(run())


def test_without_restored_partitions_nothing_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.write(restored=False)
            await made.until(lambda: not made.image.partition(T, 0).restored)
            await made.register()
            await made.until(lambda: 3 in made.image.brokers)
            await asyncio.sleep(0.1)
            assert not made.faulty.transactions

    asyncio.run(run())


def test_who_was_in_sync_and_stopped_uncleanly_reports_what_nobody_leads(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.write(restored=False)
            await made.write(restored=False, isr=(3, 4), indexes=range(2, 4))
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))
            ends = {index: reported(made.image, 3, (T, index)) for index in range(PARTITIONS)}
            assert ends == dict.fromkeys(range(PARTITIONS)) | {2: UNREADABLE, 3: MISSING}
            # these partitions lose their leader later
            await made.write(restored=False, isr=(3, 4), indexes=range(4, 7))
            await made.until(lambda: reported(made.image, 3, (T, 6)) == LogEnd(6, 60, 6))
            assert reported(made.image, 3, (T, 2)) == UNREADABLE

    asyncio.run(run())


def test_who_stopped_cleanly_and_lost_its_registration_reports(tmp_path: Path) -> None:
    """The new registration is compared with the lost registration, and no longer with the registration before the clean
    stop."""

    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.write(restored=False)
            made.reports._logs.stopped_epoch = 7  # type: ignore[misc]
            await made.write(restored=False, isr=(3, 4), indexes=range(4, 6), epoch=7)
            await made.register()
            await made.until(lambda: 3 in made.image.brokers)
            await made.store.revoke(made.lease)
            await made.register()
            await made.until(lambda: reported(made.image, 3, (T, 5)) == LogEnd(5, 50, 5))
            await made.write(restored=False, isr=(3, 4), indexes=range(6, 7), epoch=7)
            await made.until(lambda: reported(made.image, 3, (T, 6)) == LogEnd(6, 60, 6))

    asyncio.run(run())


def test_who_stopped_cleanly_has_nothing_to_report(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.write(restored=False)
            made.reports._logs.stopped_epoch = 7  # type: ignore[misc]
            await made.write(restored=False, isr=(3, 4), epoch=7)
            await made.register()
            await made.until(lambda: 3 in made.image.brokers)
            await asyncio.sleep(0.1)
            assert not made.faulty.transactions

    asyncio.run(run())


def test_who_stopped_cleanly_after_an_unclean_stop_reports_all_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as made:
            await made.write(restored=False)
            made.reports._logs.stopped_epoch = 9  # type: ignore[misc]
            await made.write(restored=False, isr=(3, 4), epoch=7)
            await made.register()
            await made.until(lambda: 3 in reporters(made.image))

    asyncio.run(run())
