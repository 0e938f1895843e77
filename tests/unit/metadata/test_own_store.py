"""`OwnStore` refuses another store in the place of its own. It never takes its own store for another one, in whatever
order answers and watch events come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata import keys
from ottla.metadata.backup import lines_of, read_backup, restore
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.lineage import WORDS_PER_ROW, Known, next_word
from ottla.metadata.model.cluster import LineageRow
from ottla.metadata.own_store import OwnStore
from ottla.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    Committed,
    Compacted,
    ForeignStore,
    Guard,
    Put,
    Rejected,
    Snapshot,
    Store,
    StoreRestored,
    StoreUnavailable,
)
from tests.unit.metadata.faulty import FaultyStore


class SwappedStore(FaultyStore):
    """A store that can be replaced by another one. Answers to reads are held back while `answers` isn't set."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()

    async def read(self, prefix: str = "") -> Snapshot:
        self.reads += 1
        snapshot = await self.store.read(prefix)
        self.asked.set()
        await self.answers.wait()
        return snapshot


@asynccontextmanager
async def own_store(folder: Path, known: Known | None = None) -> AsyncIterator[tuple[SwappedStore, OwnStore]]:
    inner = SwappedStore(await EmbeddedStore.open(folder / "right"))
    try:
        own = OwnStore(inner, known)
        yield inner, own
    finally:
        await inner.close()


async def word(store: Store, text: str) -> None:
    """Adds the word `text` to the store's lineage, as a controller adds random strings (`ottla.metadata.lineage`)."""
    found = (await store.read(keys.lineage.prefix)).entries
    rows = {keys.lineage.of(entry.key): LineageRow.decode(entry) for entry in found}
    guard, writes = next_word(rows, text)
    assert isinstance(await store.transact([guard], writes), Committed)


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(limited())


async def another(folder: Path, name: str, cluster: str) -> EmbeddedStore:
    store = await EmbeddedStore.open(folder / name)
    await join_cluster(store, None, cluster)
    return store


@pytest.mark.parametrize("what", ["empty", "foreign", "older", "an older copy that has diverged"])
def test_nothing_is_written_to_a_store_that_isnt_the_own_one(tmp_path: Path, what: str) -> None:
    """The store is exchanged unnoticed: no new connection is made, and nothing is read before the write."""

    async def body() -> None:
        async with own_store(tmp_path) as (inner, own):
            await join_cluster(own, None, "mine")
            await word(inner, "aaaaaaaa")
            await own.read()
            right = inner.store
            if what == "empty":
                inner.store = await EmbeddedStore.open(tmp_path / "wrong")
            else:
                inner.store = await another(tmp_path, "wrong", "theirs" if what == "foreign" else "mine")
            if what == "an older copy that has diverged":
                await word(inner.store, "bbbbbbbb")
            held = await inner.store.read()
            with pytest.raises(ForeignStore):
                await own.transact([Guard("brokers/1", 0)], [Put("brokers/1", b"me")])
            assert await inner.store.read() == held
            assert await own.refused() is own.refusal
            for call in (own.read(), own.grant(1.0), own.transact([], [Put("x", b"")]), anext(own.watch("", 0))):
                with pytest.raises(ForeignStore):
                    await call
            await inner.store.close()
            inner.store = right

    run(body)


def test_another_word_of_the_same_store_fails_no_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        async with own_store(tmp_path) as (inner, own):
            await join_cluster(own, None)
            await word(inner, "00000000")
            await own.read()
            for text in ("aaaaaaaa", "bbbbbbbb"):
                await word(inner, text)
                assert isinstance(await own.transact([Guard("x", 0)], [Put("x" + text, b"")]), Committed)
            assert own.known is not None
            assert own.known.word == "bbbbbbbb"
            await word(inner, "cccccccc")
            assert await own.transact([Guard("x", 7)], [Put("x", b"")]) == Rejected({"x": None})
            guards = [Guard(f"k{n}", 0) for n in range(TRANSACTION_OPERATIONS_MAX)]
            assert isinstance(await own.transact(guards, [Put("x", b"")]), Committed)

    run(body)


def test_a_word_that_comes_between_costs_a_transaction_one_more_and_no_read(tmp_path: Path) -> None:
    """A transaction compares the newest of the random strings (lineage words) by which processes recognise the store.
    So a transaction fails if the controller has added a word since the last read. The transaction is then repeated
    without a read. This is frequent: after a change of the metadata all brokers write, and the controller adds a
    word."""

    async def body() -> None:
        async with own_store(tmp_path) as (inner, own):
            await join_cluster(own, None)
            await word(inner.store, "00000000")
            await own.read()
            for number in range(1, 2 * WORDS_PER_ROW):
                await word(inner.store, f"{number:08}")
                inner.transactions = inner.reads = 0
                assert isinstance(await own.transact([], [Put("x", b"%d" % number)]), Committed)
                assert own.known is not None
                assert (own.known.number, own.known.word) == (number, f"{number:08}")
                if number % WORDS_PER_ROW:  # otherwise a new row was begun, which only a read finds
                    assert (inner.transactions, inner.reads) == (2, 0)

    run(body)


def test_an_answer_that_the_watch_has_overtaken_is_no_older_store(tmp_path: Path) -> None:
    async def body() -> None:
        async with own_store(tmp_path) as (inner, own):
            await join_cluster(own, None)
            follower = Follower(own)
            await follower.start()
            following = asyncio.create_task(follower.run())
            await word(inner, "aaaaaaaa")
            await own.learned(Known(follower.image.cluster_id, 0))
            inner.answers.clear()
            inner.asked.clear()
            reading = asyncio.create_task(own.read())
            await inner.asked.wait()
            before = own.known
            await word(inner.store, "bbbbbbbb")
            assert (await own.learned(before)).word == "bbbbbbbb"
            inner.answers.set()
            await reading
            assert own.known is not None
            assert own.known.word == "bbbbbbbb"
            following.cancel()

    run(body)


def test_a_watch_that_comes_after_an_answer_is_no_older_store(tmp_path: Path) -> None:
    async def body() -> None:
        async with own_store(tmp_path) as (inner, own):
            await join_cluster(own, None)
            begun = (await own.read()).revision
            await word(inner, "aaaaaaaa")
            await word(inner, "bbbbbbbb")
            await own.read()
            watch = own.watch("", begun)
            for _ in range(2):
                await anext(watch)
            assert own.known is not None
            assert own.known.word == "bbbbbbbb"
            await watch.aclose()

    run(body)


def test_a_new_connection_without_a_word_for_what_was_seen_last_asks_for_a_snapshot(tmp_path: Path) -> None:
    class Reconnecting(SwappedStore):
        def watch(self, prefix: str, after_revision: int, attached: Any = None) -> Any:
            async def twice() -> Any:
                await attached()
                async for revision in self.store.watch(prefix, after_revision):
                    yield revision
                    await attached()

            return twice()

    async def body() -> None:
        inner = Reconnecting(await EmbeddedStore.open(tmp_path / "right"))
        own = OwnStore(inner, None)
        await join_cluster(own, None)
        begun = (await own.read()).revision
        await word(inner, "aaaaaaaa")
        await own.transact([], [Put("topics/x", b"")])
        watch = own.watch("", begun)
        assert (await anext(watch)).changes[0].key.startswith(keys.lineage.prefix)
        await anext(watch)  # the word proves that all revisions seen so far are this store's
        with pytest.raises(Compacted):
            await anext(watch)
        await inner.close()

    run(body)


def test_a_watch_that_is_begun_anew_after_a_long_cut_asks_for_a_snapshot_too(tmp_path: Path) -> None:
    """A restore takes longer than a watch waits for its connection, so a new watch may reach another store than the old
    one."""

    async def body() -> None:
        inner = await EmbeddedStore.open(tmp_path / "right")
        own = OwnStore(inner, None)
        await join_cluster(own, None)
        await word(inner, "aaaaaaaa")
        begun = (await own.read()).revision
        await own.transact([], [Put("topics/x", b"")])
        watch = own.watch("", begun)
        seen = (await anext(watch)).revision
        await watch.aclose()
        with pytest.raises(Compacted):
            await anext(own.watch("", seen))
        assert (await own.read()).revision == seen
        await own.transact([], [Put("topics/y", b"")])
        assert (await anext(own.watch("", seen))).revision > seen, "the watch goes on after a snapshot"
        await inner.close()

    run(body)


def test_a_restored_store_is_joined_by_a_start_and_ends_what_runs(tmp_path: Path) -> None:
    async def body() -> None:
        async with own_store(tmp_path) as (inner, own):
            await join_cluster(own, None, "mine")
            await word(inner, "aaaaaaaa")
            backup = read_backup(list(lines_of(await own.read())))
            right, inner.store = inner.store, await EmbeddedStore.open(tmp_path / "restored")
            await restore(inner.store, backup)
            assert not (await inner.store.read(keys.lineage.prefix)).entries
            with pytest.raises(StoreRestored, match="it is generation 1 of cluster mine now"):
                await own.transact([], [Put("x", b"")])
            again = OwnStore(inner, own.known)
            await again.read()
            assert again.known is not None
            assert again.known[:4] == Known("mine", 1)[:4]
            await word(inner.store, "bbbbbbbb")
            await again.read()
            await inner.store.close()
            # the same backup, restored a moment later
            inner.store = await EmbeddedStore.open(tmp_path / "restored again")
            await restore(inner.store, backup)
            later = OwnStore(inner, again.known)
            await later.read()
            assert later.known is not None
            assert later.known.age > again.known.age
            inner.store, lost = right, inner.store
            with pytest.raises(ForeignStore, match="has since been restored as generation 1"):
                await OwnStore(inner, later.known).read()
            await lost.close()
            inner.store = right

    run(body)


def test_a_metadata_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        store = await EmbeddedStore.open(tmp_path / "file")
        own = OwnStore(store, None)
        await join_cluster(own, None)
        follower = Follower(own)
        await follower.start()
        following = asyncio.create_task(follower.run())
        await asyncio.sleep(0.1)
        other = await another(tmp_path, "other", "mine")
        await other.close()
        (tmp_path / "file").rename(tmp_path / "kept")
        (tmp_path / "other").rename(tmp_path / "file")
        with pytest.raises(ForeignStore, match="was removed or replaced while it was in use"):
            await following
        with pytest.raises(ForeignStore):
            await own.transact([], [Put("x", b"")])
        await store.close()

    run(body)


def test_a_refused_store_isnt_asked_to_keep_a_lease_alive(tmp_path: Path) -> None:
    async def body() -> None:
        async with own_store(tmp_path) as (_, own):
            lease = await own.grant(5)
            line = own.lease_line()
            await asyncio.to_thread(line.keep_alive, lease, 5.0)
            own.refuse(ForeignStore("another one"))
            with pytest.raises(StoreUnavailable, match="another one"):
                await asyncio.to_thread(line.keep_alive, lease, 5.0)
            line.close()

    run(body)
