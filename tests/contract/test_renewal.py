"""A broker's lease lives while the broker's event loop waits for a disk, but only up to a bound."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from ottla.metadata import keys
from ottla.metadata import renewal as renewals
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.model.brokers import Broker, Endpoint
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import Renewal, RenewalTask, RenewalThread
from ottla.metadata.store import LeaseExpired, LeaseId, StoreUnavailable

LEASE, SESSION_S = LeaseId(7), 0.4


def hold_the_loop(seconds: float) -> None:
    """Blocks the event loop, as a read does that waits for its disk."""
    time.sleep(seconds)


class Line:
    """A stand-in for the store's lease line. It records each keep-alive, and raises `error` if that is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[LeaseId, float]] = []
        self.error: Exception | None = None
        self.closed = False
        self.again = threading.Event()

    def keep_alive(self, lease: LeaseId, timeout_s: float) -> None:
        self.asked.append((lease, time.monotonic()))
        self.again.set()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True


def run(scene: Callable[[Line, RenewalThread], Awaitable[None]], stall_s: float = 30.0) -> Line:
    line = Line()

    async def main() -> None:
        renewal = RenewalThread(line, stall_s)
        try:
            async with asyncio.timeout(60):
                await scene(line, renewal)
        finally:
            await renewal.close()

    asyncio.run(main())
    assert line.closed
    return line


def nobody_ended() -> None:
    raise AssertionError("the lease hasn't ended")


def test_a_lease_is_renewed_while_the_event_loop_stands_still() -> None:
    async def scene(line: Line, renewal: RenewalThread) -> None:
        renewal.hold(LEASE, SESSION_S, nobody_ended)
        await asyncio.sleep(0.05)
        hold_the_loop(6 * SESSION_S)
        times = [time.monotonic() - 6 * SESSION_S] + [at for _, at in line.asked] + [time.monotonic()]
        assert len(line.asked) > 6
        assert max(after - before for before, after in pairwise(times)) < SESSION_S
        assert renewal.unconfirmed_s < SESSION_S

    run(scene)


def test_a_loop_that_stands_still_for_longer_than_the_bound_loses_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(line: Line, renewal: RenewalThread) -> None:
        renewal.hold(LEASE, SESSION_S, nobody_ended)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        hold_the_loop(4)
        last = line.asked[-1][1]
        assert 1.0 - SESSION_S < last - began < 2.0
        line.again.clear()
        await asyncio.to_thread(line.again.wait, 10)
        assert line.asked[-1][1] > began + 4  # as soon as the loop turns again

    run(scene, stall_s=1.0)
    assert "stood still" in caplog.text
    assert "runs again" in caplog.text


WHOLE_PROCESS = """
import asyncio, logging, sys
from ottla.metadata.renewal import RenewalThread
from tests.contract.test_renewal import LEASE, SESSION_S, Line, nobody_ended

async def main():
    line = Line()
    renewal = RenewalThread(line, stall_s=1.0)
    renewal.hold(LEASE, SESSION_S, nobody_ended)
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    asked = len(line.asked)
    await asyncio.sleep(3 * SESSION_S)
    assert len(line.asked) > asked
    await renewal.close()

logging.basicConfig(stream=sys.stdout)
asyncio.run(main())
"""


def test_a_process_that_stood_still_is_not_taken_for_a_loop_that_did() -> None:
    """While the machine sleeps, or after SIGSTOP, the renewal thread doesn't run either. So this time doesn't count as
    a blocked event loop."""
    command = [sys.executable, "-c", WHOLE_PROCESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        for _ in range(3):  # three times, so that the thread is stopped at different places
            time.sleep(0.3)
            process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert said == ""


class Late(threading.Event):
    """An event whose waiting ends late, as on a machine whose processors are all taken."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            time.sleep(timeout + 0.4)
            return self.is_set()
        return super().wait()


def test_a_loop_that_stands_still_loses_its_lease_also_where_the_thread_is_late_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The renewal thread asks the event loop at intervals for an answer, and here wakes up late by more than an
    interval each time. Before the fix, each delay made the thread count the loop's silence from zero again, so a loop
    that never turned again kept its lease for ever."""

    monkeypatch.setattr(renewals, "threading", SimpleNamespace(Event=Late, Thread=threading.Thread))

    async def scene(line: Line, renewal: RenewalThread) -> None:
        renewal.hold(LEASE, SESSION_S, nobody_ended)
        await asyncio.sleep(1)
        assert line.asked
        began = time.monotonic()
        hold_the_loop(12)
        assert line.asked[-1][1] - began < 8
        assert renewal._stalled

    run(scene, stall_s=1.0)


def test_a_loop_that_turns_is_not_taken_for_one_that_stands_still_where_renewals_are_rare(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session of 12 s is renewed every 3 s. If the event loop were asked only at a renewal, its last answer would be
    older than the bound of 2 s, and the loop would seem to stand still."""

    async def scene(line: Line, renewal: RenewalThread) -> None:
        renewal.hold(LEASE, 12.0, nobody_ended)
        await asyncio.sleep(7.5)
        assert len(line.asked) == 2

    run(scene, stall_s=2.0)
    assert "stood still" not in caplog.text


def test_who_holds_a_lease_hears_of_its_end_and_of_nothing_else() -> None:
    async def scene(line: Line, renewal: RenewalThread) -> None:
        ended = asyncio.Event()
        renewal.hold(LEASE, SESSION_S, ended.set)
        line.error = StoreUnavailable("away")
        await asyncio.sleep(2 * SESSION_S)
        assert not ended.is_set()
        assert renewal.unconfirmed_s > SESSION_S
        line.error = ZeroDivisionError("a fault of ours")
        await asyncio.sleep(SESSION_S)
        line.error = None
        await asyncio.sleep(SESSION_S)
        assert renewal.unconfirmed_s < SESSION_S
        line.error = LeaseExpired("over")
        await asyncio.wait_for(ended.wait(), 10)
        asked = len(line.asked)
        await asyncio.sleep(SESSION_S)
        assert len(line.asked) == asked

    run(scene)


def test_only_the_last_lease_is_renewed() -> None:
    async def scene(line: Line, renewal: RenewalThread) -> None:
        renewal.hold(LEASE, SESSION_S, nobody_ended)
        await asyncio.sleep(SESSION_S)
        renewal.hold(LeaseId(8), SESSION_S, nobody_ended)
        line.asked.clear()
        await asyncio.sleep(2 * SESSION_S)
        assert {lease for lease, _ in line.asked} == {LeaseId(8)}
        renewal.let_go()
        await asyncio.sleep(0.05)
        line.asked.clear()
        await asyncio.sleep(2 * SESSION_S)
        assert line.asked == []

    run(scene)


# ---- the registration of a broker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata"


def held_broker(
    path: Path, hold_s: float, renewal_of: Callable[[EmbeddedStore], Renewal], registered: list[int]
) -> threading.Thread:
    """Runs a stand-in for a broker's process in a thread: it registers, blocks its event loop for `hold_s`, goes on for
    three seconds, and withdraws its registration."""

    async def main() -> None:
        store = await EmbeddedStore.open(path)
        broker = Broker(1, 0, {"L": Endpoint("L", "h", 9092)})
        registration = Registration(
            store, broker, renewal_of(store), 1.0, told=lambda broker: registered.append(broker.epoch)
        )
        await registration.register()
        keeping = asyncio.create_task(registration.run())
        await asyncio.sleep(0.1)
        hold_the_loop(hold_s)
        await asyncio.sleep(3)
        keeping.cancel()
        await registration.withdraw()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    return thread


def seen_for(path: Path, process: threading.Thread) -> list[tuple[bool, float]]:
    """Reads the registration over another connection, again and again until the thread ends. Returns for each read
    whether the registration was there, and the seconds since the first read."""

    async def main() -> list[tuple[bool, float]]:
        store = await EmbeddedStore.open(path)
        seen = []
        began = time.monotonic()
        while process.is_alive():
            seen.append((bool((await store.read(keys.broker(1))).entries), time.monotonic() - began))
            await asyncio.sleep(0.05)
        await store.close()
        return seen

    return asyncio.run(main())


def away(seen: list[tuple[bool, float]]) -> list[float]:
    """The times, in seconds since the first read, of the reads without a registration, between the first and the last
    read that found one."""
    first = next(at for there, at in seen if there)
    last = max(at for there, at in seen if there)
    return [at for there, at in seen if not there and first < at < last]


def test_a_registration_outlives_a_disk_stall(path: Path) -> None:
    epochs: list[int] = []
    process = held_broker(path, 4.0, lambda store: RenewalThread(store.lease_line(), 30.0), epochs)
    assert away(seen_for(path, process)) == []
    assert len(epochs) == 1


def test_a_registration_ends_with_a_stall_beyond_the_bound_and_is_made_anew(path: Path) -> None:
    epochs: list[int] = []
    process = held_broker(path, 6.0, lambda store: RenewalThread(store.lease_line(), 2.0), epochs)
    gone = away(seen_for(path, process))
    assert 2.0 < gone[0] < 5.0
    assert len(epochs) == 2
    assert epochs[0] < epochs[1]


def test_without_the_thread_a_stall_costs_the_registration(path: Path) -> None:
    """Shows why a thread renews the lease: RenewalTask renews it on the event loop itself."""
    epochs: list[int] = []
    process = held_broker(path, 4.0, RenewalTask, epochs)
    assert away(seen_for(path, process))
    assert len(epochs) == 2
