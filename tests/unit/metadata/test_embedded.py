"""The embedded store between real processes: deaths, hangs, and writes that were under way."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata import tables
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.store import Committed, Compacted, Guard, Put, StoreUnavailable, UnknownOutcome

OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from ottla.metadata import tables
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.store import Put, Guard

async def main():
    store = await EmbeddedStore.open(Path(sys.argv[1]))
    lease = await store.grant(float(sys.argv[2]))
    await store.transact([], [Put("eph", b"", lease)])
    print("registered", flush=True)

    async def keep():
        while True:
            await asyncio.sleep(0.1)
            await store.keep_alive(lease)

    task = asyncio.ensure_future(keep())
    number = 0
    if sys.argv[3] == "quiet":
        await task
    while not task.done():
        number += 1
        await store.transact([], [Put(f"pair/{side}", b"%d" % number) for side in "ab"])
    task.result()

asyncio.run(main())
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[[float, str], subprocess.Popen[str]]]:
    """Starts a process that registers, keeps its lease alive, and if "busy" writes pairs of keys without a pause."""
    started: list[subprocess.Popen[str]] = []

    def start(ttl_s: float, manner: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "metadata.db"), str(ttl_s), manner]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "registered\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def until_gone(store: EmbeddedStore, key: str) -> float:
    """The seconds until a watch shows that the key is deleted."""
    began = time.monotonic()
    async with asyncio.timeout(20):
        snapshot = await store.read(key)
        if not snapshot.entries:
            return 0.0
        async for revision in store.watch(key, snapshot.revision):
            if any(change.entry is None for change in revision.changes):
                break
    return time.monotonic() - began


def test_a_killed_process_is_noticed_before_its_session_ends(other: Any, tmp_path: Path) -> None:
    process = other(30.0, "busy")

    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db")
        gone = asyncio.ensure_future(until_gone(store, "eph"))
        await asyncio.sleep(0.1)
        assert not gone.done()
        os.kill(process.pid, signal.SIGKILL)
        assert await gone < 10
        values = {entry.value for entry in (await store.read("pair/")).entries}
        assert len(values) == 1  # both keys of a pair have the same value: written together or not at all
        await store.close()

    asyncio.run(body())


def test_a_silent_process_loses_its_lease_when_the_session_ends_and_learns_of_it(other: Any, tmp_path: Path) -> None:
    process = other(1.0, "quiet")  # a "busy" process might be stopped inside a write, and would hold the file
    os.kill(process.pid, signal.SIGSTOP)

    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=20)
        assert await until_gone(store, "eph") < 15
        await store.close()

    try:
        asyncio.run(body())
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait(20) == 1  # the process has met LeaseExpired


def test_writes_share_a_sync_but_not_their_fate(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db")
        results = await asyncio.gather(*(store.transact([Guard("k", 0)], [Put("k", b"%d" % i)]) for i in range(50)))
        assert [isinstance(result, Committed) for result in results] == [True] + [False] * 49
        assert (await store.read("k")).entries[0].value == b"0"
        await store.close()

    asyncio.run(body())


def test_a_file_that_somebody_holds_is_unavailable_not_unknown(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=30)
        store._tables._db.execute("PRAGMA busy_timeout=50")
        holder = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await store.transact([], [Put("k", b"")])
        holder.execute("ROLLBACK")
        assert isinstance(await store.transact([], [Put("k", b"")]), Committed)
        holder.close()
        await store.close()

    asyncio.run(body())


def test_a_worker_that_does_not_answer_in_time_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=0.3)
        transact = store._tables.transact

        def slowly(*arguments: Any) -> Any:
            time.sleep(1)
            return transact(*arguments)

        store._tables.transact = slowly  # type: ignore[method-assign]
        with pytest.raises(UnknownOutcome):
            await store.transact([], [Put("k", b"")])
        await store.close()  # the transaction was committed after all
        again = await EmbeddedStore.open(tmp_path / "metadata.db")
        assert len((await again.read("k")).entries) == 1
        await again.close()

    asyncio.run(body())


@pytest.mark.parametrize("given_up", ["by its time", "by its caller"])
def test_a_transaction_that_was_given_up_while_it_waited_is_never_carried_out(tmp_path: Path, given_up: str) -> None:
    """The transactions wait for a locked file, or for other work of the store. If they were carried out later, no
    caller would learn their outcome."""

    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=0.5)
        lease = await store.grant(60)
        holder = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.ensure_future(store.transact([], [Put(key, b"")])) for key in ("held", "queued")]
        waiting.append(asyncio.ensure_future(store.revoke(lease)))
        await asyncio.sleep(0.1)
        if given_up == "by its caller":
            for each in waiting:
                each.cancel()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, StoreUnavailable if given_up == "by its time" else asyncio.CancelledError)
        with pytest.raises(StoreUnavailable):
            store.lease_line().keep_alive(lease, 0.1)
        holder.execute("ROLLBACK")
        holder.close()
        revision = (await store.read()).revision
        assert isinstance(await store.transact([Guard("held", 0), Guard("queued", 0)], []), Committed)
        await store.keep_alive(lease)
        assert (await store.read()).revision == revision
        await store.close()

    asyncio.run(body())


def hold_the_loop(seconds: float) -> None:
    """Blocks the event loop, as on a machine that is starved of CPU."""
    time.sleep(seconds)


def test_an_answer_that_came_while_the_event_loop_stood_still_counts(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=0.5)
        writing = asyncio.ensure_future(store.transact([], [Put("k", b"")]))
        await asyncio.sleep(0)
        hold_the_loop(2)  # the store's worker has answered long before the end
        assert isinstance(await writing, Committed)
        await store.close()

    asyncio.run(body())


def test_a_place_where_no_file_can_be_says_so(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").mkdir()
    with pytest.raises(StoreUnavailable, match=r"metadata\.db can't be opened"):
        asyncio.run(EmbeddedStore.open(tmp_path / "metadata.db"))


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        await (await EmbeddedStore.open(tmp_path / "metadata.db")).close()
        connection = sqlite3.connect(tmp_path / "metadata.db")
        connection.execute("PRAGMA user_version=99")
        connection.close()
        with pytest.raises(StoreUnavailable, match="newer version of Ottla"):
            await EmbeddedStore.open(tmp_path / "metadata.db")

    asyncio.run(body())


def test_files_of_processes_that_are_gone_are_cleared_away(tmp_path: Path) -> None:
    async def body() -> None:
        owners = tmp_path / "metadata.db.owners"
        first = await EmbeddedStore.open(tmp_path / "metadata.db")
        (owners / "of-a-dead-process").touch()
        second = await EmbeddedStore.open(tmp_path / "metadata.db")
        assert len(list(owners.iterdir())) == 2
        await first.close()
        await second.close()
        assert not list(owners.iterdir())

    asyncio.run(body())


def test_a_bug_in_one_call_reaches_its_caller_and_writes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db")
        wrong: Any = object()  # neither bytes nor text, so SQLite can't bind it
        with pytest.raises(StoreUnavailable):
            await store.transact([], [Put("a", b""), Put("b", wrong)])
        assert (await store.read()).entries == ()
        assert isinstance(await store.transact([], [Put("a", b"")]), Committed)
        await store.close()

    asyncio.run(body())


def test_old_changes_are_forgotten_but_not_what_is_there_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HISTORY_CHANGES", 100)
    monkeypatch.setattr(tables, "_COMPACT_EVERY_REVISIONS", 10)

    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db")
        for number in range(100):
            await store.transact([], [Put(f"{key}/{number}", b"") for key in "abc"])
        assert len((await store.read()).entries) == 300
        with pytest.raises(Compacted):
            await anext(store.watch("", 60))
        assert (await anext(store.watch("", 70))).revision == 71
        count = store._tables._db.execute("SELECT count(*) FROM change").fetchone()[0]
        assert 99 <= count <= 130
        await store.close()

    asyncio.run(body())


def test_what_follows_a_keep_alive_that_failed_is_synced_all_the_same(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=30)
        connection = store._tables._db
        connection.execute("PRAGMA busy_timeout=50")
        lease = await store.grant(60)
        holder = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await store.keep_alive(lease)
        holder.execute("ROLLBACK")
        holder.close()
        await store.transact([], [Put("k", b"")])
        full = 2
        assert connection.execute("PRAGMA synchronous").fetchone() == (full,)
        await store.close()

    asyncio.run(body())


def fails_once(owner: Any, method: str, error: Exception) -> None:
    working = getattr(owner, method)

    def fails(*_: Any) -> Any:
        setattr(owner, method, working)
        raise error

    setattr(owner, method, fails)


def test_the_store_goes_on_when_a_look_at_the_leases_or_the_changes_failed(tmp_path: Path) -> None:
    """The store's worker looks regularly for ended leases and for other processes' changes. This look fails for want of
    file descriptors, or because of a disk error. If the worker ended, the store would never answer again."""

    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=3)
        watch = store.watch("", 0)
        first = asyncio.ensure_future(anext(watch))
        await store.transact([], [Put("a", b"")])
        assert (await first).changes[0].key == "a"
        full = OSError(errno.EMFILE, "Too many open files")
        for method, error in (("alone", full), ("changes_after", sqlite3.OperationalError("disk I/O error"))):
            fails_once(store._tables, method, error)
            await store.transact([], [Put(method, b"")])
            assert (await asyncio.wait_for(anext(watch), 3)).changes[0].key == method
            await asyncio.sleep(0.6)
            assert isinstance(await store.transact([], [Put("b", b"")]), Committed)
            assert (await asyncio.wait_for(anext(watch), 3)).changes[0].key == "b"
        await watch.aclose()
        await store.close()

    asyncio.run(body())


def test_a_watch_that_came_too_late_for_its_reader_keeps_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db", timeout_s=0.1)
        with pytest.raises(StoreUnavailable):
            await store._ask(lambda: time.sleep(0.4))
        with pytest.raises(StoreUnavailable):
            await anext(store.watch("", 0))
        await asyncio.sleep(0.5)
        assert not store._watches
        await store.close()

    asyncio.run(body())


def test_a_file_that_others_create_at_the_same_time_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When several connections switch to the write-ahead log, SQLite detects a deadlock, and tells one connection
    without a wait that the file is locked.
    """

    class Contended(sqlite3.Connection):
        refusals = 2

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "PRAGMA journal_mode=WAL" and Contended.refusals:
                Contended.refusals -= 1
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            return super().execute(statement, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **more: connect(*a, factory=Contended, **more))
    opened = tables.Tables(tmp_path / "metadata", lambda: 0)
    assert opened.revision() == 0
    assert not Contended.refusals
    opened.close()


def test_a_file_that_stays_locked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BUSY_S", 0.05)
    holder = sqlite3.connect(tmp_path / "metadata", isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="locked"):
        tables.Tables(tmp_path / "metadata", lambda: 0)
    holder.close()
