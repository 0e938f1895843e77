"""The contract of metadata stores: each test runs once for each store, over connections like those of two processes."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.etcd import EtcdStore
from ottla.metadata.etcd_connection import EtcdAddress
from ottla.metadata.image import Image
from ottla.metadata.lineage import next_word
from ottla.metadata.own_store import OwnStore
from ottla.metadata.store import (
    NO_LEASE,
    TRANSACTION_OPERATIONS_MAX,
    Committed,
    Compacted,
    Delete,
    ForeignStore,
    Guard,
    LeaseExpired,
    LeaseId,
    Put,
    Rejected,
    Revision,
    Store,
    StoreUnavailable,
)
from tests.peers.etcd import Etcd, etcd_3_6
from tests.simulation.loop import SimulationLoop
from tests.simulation.loop import run as run_simulation
from tests.simulation.store import StoreServer

Opener = Callable[[], Awaitable[Any]]
Test = Callable[[Opener], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One etcd for all tests. Each test has a prefix of its own, as each cluster has."""
    etcd = Etcd(tmp_path_factory.mktemp("etcd"))
    yield etcd
    etcd.kill()


@pytest.fixture(scope="module")
def newer_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path_factory.mktemp("etcd"), binary=etcd_3_6())
    yield etcd
    etcd.kill()


@pytest.fixture(params=["embedded", "etcd", "newer_etcd", "simulated"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    """A function that runs a test, and passes it a function that opens connections to a new store."""
    servers: list[StoreServer] = []
    if request.param in ("etcd", "newer_etcd"):
        # The fixture comes before the test's time-out begins, because building etcd may take longer.
        request.getfixturevalue(request.param)

    async def connect() -> Store:
        if request.param == "simulated":
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulationLoop)
            if not servers:
                servers.append(StoreServer(loop, Random(1)))
            return servers[0].connect()
        if request.param == "embedded":
            return await EmbeddedStore.open(tmp_path / "metadata.db")
        endpoint = request.getfixturevalue(request.param).endpoint
        return EtcdStore(EtcdAddress((endpoint,)), f"/ottla/{request.node.name}/", page_entries=3)

    def runner(test: Test) -> None:
        async def body() -> None:
            opened: list[Store] = []

            async def opener() -> Store:
                store = await connect()
                opened.append(store)
                return store

            try:
                async with asyncio.timeout(30):
                    await test(opener)
            finally:
                for store in opened:
                    await store.close()

        if request.param == "simulated":
            run_simulation(Random(0), lambda loop: body())
        else:
            asyncio.run(body())

    return runner


async def put(store: Store, key: str, value: bytes, lease: LeaseId = NO_LEASE) -> int:
    result = await store.transact([], [Put(key, value, lease)])
    assert isinstance(result, Committed)
    return result.revision


@asynccontextmanager
async def watching(store: Store, prefix: str, after: int) -> AsyncIterator[Callable[[], Awaitable[Revision]]]:
    revisions = store.watch(prefix, after)
    try:
        yield lambda: asyncio.wait_for(anext(revisions), 10)
    finally:
        await revisions.aclose()


def test_reads_what_was_written_at_one_revision(run: Any) -> None:
    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()
        assert (await one.read()).entries == ()
        first = await put(one, "a/1", b"x")
        second = await put(two, "a/2", b"y")
        await put(two, "b", b"z")
        third = await put(one, "a/1", b"xx")
        assert first < second < third
        snapshot = await two.read("a/")
        assert snapshot.revision == third
        assert [(e.key, e.value, e.mod_revision, e.create_revision) for e in snapshot.entries] == [
            ("a/1", b"xx", third, first),
            ("a/2", b"y", second, second),
        ]

    run(test)


def test_a_failed_guard_writes_nothing_and_shows_what_is_there(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        revision = await put(store, "a", b"1")
        rejected = await store.transact([Guard("a", 0), Guard("b", 0), Guard("c", 7)], [Put("d", b"")])
        assert isinstance(rejected, Rejected)
        assert set(rejected.failed) == {"a", "c"}
        there = rejected.failed["a"]
        assert there is not None
        assert there.value == b"1"
        assert rejected.failed["c"] is None
        assert (await store.read("d")).entries == ()
        assert isinstance(await store.transact([Guard("a", revision), Guard("b", 0)], [Put("b", b"")]), Committed)
        assert isinstance(await store.transact([Guard("a", revision), Guard("b", 0)], [Put("b", b"")]), Rejected)

    run(test)


def test_guards_alone_tell_and_change_nothing(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        revision = await put(store, "a", b"1")
        assert await store.transact([Guard("a", revision), Guard("b", 0)], []) == Committed(revision)
        rejected = await store.transact([Guard("a", 0)], [])
        assert isinstance(rejected, Rejected)
        assert set(rejected.failed) == {"a"}
        assert await put(store, "b", b"2") == revision + 1

    run(test)


def test_compare_and_swap_loses_no_increment(run: Any) -> None:
    async def test(opener: Opener) -> None:
        stores = [await opener(), await opener()]
        await put(stores[0], "n", b"0")

        async def increment(store: Store) -> None:
            while True:
                entry = (await store.read("n")).entries[0]
                result = await store.transact(
                    [Guard("n", entry.mod_revision)], [Put("n", b"%d" % (int(entry.value) + 1))]
                )
                if isinstance(result, Committed):
                    return

        await asyncio.gather(*(increment(stores[i % 2]) for i in range(40)))
        assert (await stores[0].read("n")).entries[0].value == b"40"

    run(test)


def test_a_watch_sees_every_later_revision_once_whole_and_in_order(run: Any) -> None:
    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()
        start = await put(one, "before", b"")
        expected = []
        for number in range(3):
            result = await one.transact([], [Put(f"k/{number}", b"x"), Put(f"k/{number}b", b"y"), Put("other", b"")])
            assert isinstance(result, Committed)
            expected.append((result.revision, [f"k/{number}", f"k/{number}b"]))
        async with watching(two, "k/", start) as following:
            seen = [await following() for _ in range(3)]

            async def write(store: Store, index: int) -> None:
                result = await store.transact([], [Put(f"k/{index}", b""), Delete("k/0b")])
                assert isinstance(result, Committed)
                deleted = ["k/0b"] if index == first_delete[0] else []
                expected.append((result.revision, [f"k/{index}", *deleted]))

            first_delete = [100]
            await write(one, 100)
            await asyncio.gather(
                *(write(store, 101 + i * 2 + n) for i in range(30) for n, store in enumerate((one, two)))
            )
            seen += [await following() for _ in range(61)]
        expected.sort()
        assert [(r.revision, [change.key for change in r.changes]) for r in seen] == expected
        assert seen[3].changes[1].entry is None
        assert seen[0].changes[0].entry is not None
        assert seen[0].changes[0].entry.mod_revision == seen[0].revision

    run(test)


def test_snapshot_and_watch_meet_without_gap(run: Any) -> None:
    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()

        enough = asyncio.Event()

        async def writer() -> int:
            number = 0
            while not enough.is_set():
                last = await put(one, f"k{number % 17}", b"%d" % number)
                number += 1
            return last

        task = asyncio.ensure_future(writer())
        for _ in range(5):
            snapshot = await two.read("k")
            state = {entry.key: entry.value for entry in snapshot.entries}
            async with watching(two, "k", snapshot.revision) as following:
                for _ in range(20):
                    for change in (await following()).changes:
                        assert change.entry is not None
                        state[change.key] = change.entry.value
                        latest = change.entry.mod_revision
            assert len(state) <= 17
            assert latest == snapshot.revision + 20
        enough.set()
        last = await task
        final = await two.read("k")
        assert final.revision == last

    run(test)


def test_history_that_is_gone_asks_for_a_new_snapshot(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        first = await put(store, "a", b"1")
        for _ in range(5):
            last = await put(store, "a", b"2")
        await store.compact(last - 1)
        async with watching(store, "", first) as following:
            with pytest.raises(Compacted):
                await following()
        async with watching(store, "", last - 1) as following:
            assert (await following()).revision == last

    run(test)


def test_a_lease_that_is_not_kept_alive_ends_and_its_keys_go_in_one_revision(run: Any) -> None:
    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()
        lease = await one.grant(1.0)
        kept = await one.grant(1.0)
        await put(one, "eph/1", b"", lease)
        await put(one, "eph/2", b"", lease)
        revision = await put(one, "eph/kept", b"", kept)
        assert (await two.read("eph/1")).entries[0].lease == lease
        async with watching(two, "eph/", revision) as following:
            gone = asyncio.ensure_future(following())
            while not gone.done():
                await one.keep_alive(kept)
                await asyncio.sleep(0.1)
            assert sorted(change.key for change in gone.result().changes) == ["eph/1", "eph/2"]
            assert all(change.entry is None for change in gone.result().changes)
        with pytest.raises(LeaseExpired):
            await one.keep_alive(lease)
        with pytest.raises(LeaseExpired):
            await put(one, "eph/3", b"", lease)
        assert [entry.key for entry in (await two.read("eph/")).entries] == ["eph/kept"]

    run(test)


def test_how_long_a_lease_has_left(run: Any) -> None:
    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()
        lease = await one.grant(4.0)
        granted = await two.lease_left(lease)
        assert granted.at_least_s <= 4.0
        assert granted.below_s > 2.0
        assert granted.below_s - granted.at_least_s <= 2.0
        await asyncio.sleep(1.5)
        later = await two.lease_left(lease)  # the call of `lease_left` before hasn't kept the lease alive
        assert later.at_least_s <= 2.5
        await one.keep_alive(lease)
        renewed = await two.lease_left(lease)
        assert renewed.below_s > later.at_least_s
        assert renewed.below_s > 2.0
        assert granted.term == later.term == renewed.term
        await one.revoke(lease)
        with pytest.raises(LeaseExpired):
            await two.lease_left(lease)

    run(test)


def test_revoking_deletes_at_once_and_twice_is_fine(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        lease = await store.grant(30)
        await put(store, "a", b"", lease)
        await store.revoke(lease)
        assert (await store.read("a")).entries == ()
        await store.revoke(lease)

    run(test)


def test_a_thread_keeps_a_lease_alive_while_the_event_loop_stands_still(run: Any, request: Any) -> None:
    if request.node.callspec.params["run"] == "simulated":
        pytest.skip("the simulation has no threads")

    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()
        lease = await one.grant(1.0)  # etcd's shortest lease is two seconds
        await put(one, "eph", b"", lease)
        line = one.lease_line()

        def keep() -> None:
            for _ in range(20):
                time.sleep(0.25)
                line.keep_alive(lease, 1.0)

        thread = threading.Thread(target=keep)
        thread.start()
        time.sleep(4.5)  # noqa: ASYNC251
        thread.join()
        assert (await two.read("eph")).entries
        await one.revoke(lease)
        with pytest.raises(LeaseExpired):
            await asyncio.to_thread(line.keep_alive, lease, 5.0)
        await asyncio.to_thread(line.close)

    run(test)


def test_a_key_put_without_its_lease_outlives_it(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        lease = await store.grant(30)
        await put(store, "a", b"", lease)
        await put(store, "a", b"")
        await store.revoke(lease)
        assert len((await store.read("a")).entries) == 1

    run(test)


def test_a_guard_can_name_the_lease(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        mine, other = await store.grant(30), await store.grant(30)
        revision = await put(store, "controller", b"me", mine)
        write = [Put("x", b"")]
        assert isinstance(await store.transact([Guard("controller", revision, other)], write), Rejected)
        assert isinstance(await store.transact([Guard("controller", revision, mine)], write), Committed)

    run(test)


def test_keys_of_a_closed_connection_go_within_the_session(run: Any) -> None:
    async def test(opener: Opener) -> None:
        one, two = await opener(), await opener()
        revision = await put(one, "eph", b"", await one.grant(2.0))
        await one.close()
        with pytest.raises(StoreUnavailable):
            await one.read()
        async with watching(two, "eph", revision) as following:
            assert (await following()).changes[0].entry is None

    run(test)


def test_a_watch_ends_when_its_connection_closes(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        revision = await put(store, "a", b"")
        watch = store.watch("", revision - 1)
        await anext(watch)
        closing = asyncio.ensure_future(store.close())
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        await closing

    run(test)


def test_refuses_what_another_store_would_refuse(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        with pytest.raises(ValueError, match="at most"):
            await store.transact([], [Put(f"k{i}", b"") for i in range(TRANSACTION_OPERATIONS_MAX + 1)])
        with pytest.raises(ValueError, match="twice"):
            await store.transact([], [Put("k", b""), Delete("k")])
        with pytest.raises(LeaseExpired):
            await put(store, "k", b"", LeaseId(12345))

    run(test)


@pytest.mark.parametrize("seed", range(5))
def test_random_transactions_against_a_model(run: Any, seed: int) -> None:
    """Two connections and one model agree on guards, outcomes, revisions and snapshots; watches from any revision
    replay the history."""

    async def test(opener: Opener) -> None:
        pick = Random(seed)
        stores = [await opener(), await opener()]
        start = (await stores[0].read()).revision
        present: dict[str, tuple[bytes, int, int]] = {}  # key → value, mod revision, create revision
        history: list[tuple[int, dict[str, bytes | None]]] = []
        keys = [f"{letter}/{number}" for letter in "ab" for number in range(4)]
        for step in range(120):
            store = pick.choice(stores)
            guarded = pick.sample(keys, pick.randrange(3))
            right = {key: present[key][1] if key in present else 0 for key in guarded}
            guards = [Guard(key, right[key] + (pick.random() < 0.15)) for key in guarded]
            writes: list[Put | Delete] = [
                Delete(key) if pick.random() < 0.3 else Put(key, b"%d" % step)
                for key in pick.sample(keys, pick.randrange(1, 5))
            ]
            result = await store.transact(guards, writes)
            wrong = {guard.key for guard in guards if guard.mod_revision != right[guard.key]}
            if wrong:
                assert isinstance(result, Rejected)
                assert {key: entry and entry.value for key, entry in result.failed.items()} == {
                    key: present[key][0] if key in present else None for key in wrong
                }
                continue
            assert isinstance(result, Committed)
            effects: dict[str, bytes | None] = {}
            for write in writes:
                if isinstance(write, Put):
                    created = present[write.key][2] if write.key in present else result.revision
                    present[write.key] = (write.value, result.revision, created)
                    effects[write.key] = write.value
                elif present.pop(write.key, None) is not None:
                    effects[write.key] = None
            if effects:
                assert result.revision > (history[-1][0] if history else start)
                history.append((result.revision, effects))
        for prefix in ("", "a/", "b/3"):
            for store in stores:
                entries = {
                    e.key: (e.value, e.mod_revision, e.create_revision) for e in (await store.read(prefix)).entries
                }
                assert entries == {key: what for key, what in present.items() if key.startswith(prefix)}
                after = pick.choice([start, *(revision for revision, _ in history)])
                expected = [
                    (revision, {key: value for key, value in effects.items() if key.startswith(prefix)})
                    for revision, effects in history
                    if revision > after
                ]
                async with watching(store, prefix, after) as following:
                    for revision, effects in expected:
                        if effects:
                            seen = await following()
                            assert seen.revision == revision
                            assert {c.key: c.entry and c.entry.value for c in seen.changes} == effects

    run(test)


def test_whoever_watches_may_look_at_the_store_before_anything_comes(run: Any) -> None:
    async def test(opener: Opener) -> None:
        store = await opener()
        revision = await put(store, "a", b"1")
        looked: list[str] = []

        async def attached() -> None:
            looked.append("looked")
            assert isinstance(await store.transact([Guard("a", revision)], []), Committed)

        watch = store.watch("", revision - 1, attached)
        assert (await asyncio.wait_for(anext(watch), 10)).revision == revision
        assert looked == ["looked"]
        await watch.aclose()

        async def refused() -> None:
            raise ForeignStore("another one")

        watch = store.watch("", revision - 1, refused)
        with pytest.raises(ForeignStore):
            await asyncio.wait_for(anext(watch), 10)

    run(test)


@pytest.mark.parametrize("wrong", ["empty", "older", "foreign"])
def test_nothing_is_written_to_another_store_of_the_same_address(run: Any, wrong: str) -> None:
    """The store at this address becomes empty, older, or another cluster's. The test causes that by transactions,
    because every kind of store has them."""

    async def test(opener: Opener) -> None:
        store, other = await opener(), await opener()
        own = OwnStore(store, None)
        await join_cluster(own, None)
        guard, writes = next_word({}, "aaaaaaaa")
        assert isinstance(await own.transact([guard], writes), Committed)
        before = await own.read()
        guard, writes = next_word(Image.of(before).lineage, "bbbbbbbb")
        assert isinstance(await other.transact([guard], writes), Committed)
        known = OwnStore(store, None)
        await known.read()
        gone = [Delete(entry.key) for entry in (await other.read()).entries]
        await other.transact([], gone)
        if wrong == "older":
            await other.transact([], [Put(entry.key, entry.value) for entry in before.entries])
        elif wrong == "foreign":
            await join_cluster(other, None)
        held = (await other.read()).entries
        with pytest.raises(ForeignStore) as error:
            await known.transact([Guard("brokers/1", 0)], [Put("brokers/1", b"")])
        with pytest.raises(ForeignStore, match=re.escape(str(error.value))):
            await known.read()
        assert (await other.read()).entries == held
        started = OwnStore(store, known.known)
        with pytest.raises(ForeignStore):
            await started.read()

    run(test)
