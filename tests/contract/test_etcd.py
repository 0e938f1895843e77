"""etcd's faults as its clients see them: it dies, comes back, compacts its history, hangs, splits its answers and asks
for passwords."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ottla.metadata import keys
from ottla.metadata.cluster import join_cluster
from ottla.metadata.etcd import EtcdStore
from ottla.metadata.etcd_connection import EtcdAddress
from ottla.metadata.etcd_messages import Assembly
from ottla.metadata.image import Image
from ottla.metadata.lineage import next_word
from ottla.metadata.model.brokers import Broker, Endpoint
from ottla.metadata.own_store import OwnStore
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import RenewalTask, RenewalThread
from ottla.metadata.store import (
    NO_LEASE,
    Committed,
    Compacted,
    Delete,
    Guard,
    LeaseId,
    Put,
    Revision,
    StoreUnavailable,
    UnknownOutcome,
)
from tests.peers.etcd import Etcd, etcd_cluster, leads
from tests.peers.name_server import NameServer
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port

PREFIX = "/ottla/faults/"
CREATE_TOPICS = 19


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path / "etcd")
    yield etcd
    etcd.go_on()
    etcd.kill()


@asynccontextmanager
async def connected(etcd: Etcd, timeout_s: float = 5.0, prefix: str = PREFIX) -> Any:
    store = EtcdStore(EtcdAddress((etcd.endpoint,)), prefix, timeout_s)
    try:
        yield store
    finally:
        await store.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    async def body() -> None:
        async with asyncio.timeout(45):
            await test

    asyncio.run(body())


async def put(store: EtcdStore, key: str, value: bytes = b"", lease: LeaseId = NO_LEASE) -> int:
    result = await store.transact([], [Put(key, value, lease)])
    assert isinstance(result, Committed)
    return result.revision


async def collect(store: EtcdStore, after: int, count: int) -> list[Revision]:
    async with asyncio.timeout(20), aclosing(store.watch("", after)) as revisions:
        return [await anext(revisions) for _ in range(count)]


def test_a_watch_outlives_etcds_restart(etcd: Etcd) -> None:
    async def test() -> None:
        async with connected(etcd) as one, connected(etcd) as two:
            lease = await one.grant(10)
            start = await put(one, "a", lease=lease)
            following = asyncio.ensure_future(collect(one, start - 1, 3))
            await asyncio.sleep(0.3)
            second = await put(two, "b")
            etcd.kill()
            with pytest.raises((StoreUnavailable, UnknownOutcome)):
                await EtcdStore(EtcdAddress((etcd.endpoint,)), PREFIX, 0.3).transact([], [Put("lost", b"")])
            await asyncio.sleep(0.5)
            assert not following.done()
            etcd.start()
            third = await put(two, "c")
            assert [r.revision for r in await following] == [start, second, third]
            await one.keep_alive(lease)

    run(test())


def test_a_reader_hears_of_an_etcd_that_stays_away_and_goes_on_later(etcd: Etcd) -> None:
    async def test() -> None:
        async with connected(etcd, timeout_s=0.5) as store:
            start = await put(store, "a")
            following = asyncio.ensure_future(collect(store, start, 1))
            await asyncio.sleep(0.2)
            etcd.kill()
            with pytest.raises(StoreUnavailable, match=r"can't be reached: .*refused"):
                await following
            with pytest.raises(StoreUnavailable):
                await store.read()
            etcd.start()
            async with connected(etcd) as other:
                later = await put(other, "b")
            assert [r.revision for r in await collect(store, start, 1)] == [later]

    run(test())


def test_history_forgotten_while_the_watch_was_cut(etcd: Etcd) -> None:
    """The watch resumes by itself, but the revisions that it needs have been compacted."""

    async def test() -> None:
        async with connected(etcd, timeout_s=20) as store:
            start = await put(store, "a")
            following = asyncio.ensure_future(collect(store, start, 5))
            await asyncio.sleep(0.3)
            usual = etcd.endpoint
            etcd.kill()
            etcd.listen_on(f"127.0.0.1:{free_port()}")
            async with connected(etcd) as other:
                for _ in range(3):
                    last = await put(other, "b")
                await other.compact(last)
            etcd.kill()
            etcd.listen_on(usual)
            with pytest.raises(Compacted):
                await following
            assert (await store.read()).revision == last

    run(test())


def test_a_restored_etcd_that_is_behind_asks_for_a_new_snapshot(etcd: Etcd) -> None:
    async def test() -> None:
        async with connected(etcd) as store:
            revision = await put(store, "a")
            with pytest.raises(Compacted, match="restored"):
                await collect(store, revision + 1000, 1)

    run(test())


def test_a_new_connection_may_be_looked_at_before_anything_of_it_comes(etcd: Etcd) -> None:
    async def test() -> None:
        async with connected(etcd) as one, connected(etcd) as two:
            start = await put(one, "a")
            looked: list[int] = []

            async def attached() -> None:
                looked.append(len((await two.read()).entries))

            async with aclosing(one.watch("", start - 1, attached)) as revisions:
                await anext(revisions)
                assert looked == [1]
                await asyncio.to_thread(etcd.kill)
                await asyncio.to_thread(etcd.start)
                await put(two, "b")
                assert [change.key for change in (await anext(revisions)).changes] == ["b"]
                assert len(looked) == 2

    run(test())


def test_a_member_that_lags_behind_is_no_older_store(tmp_path: Path) -> None:
    """One member is paused while lineage words are added, the random strings by which processes recognise their store.
    The member is read as soon as it continues, when it still lacks the newest words. It must not be taken for an older
    store."""

    async def words(store: EtcdStore, count: int) -> None:
        for number in range(count):
            rows = Image.of(await store.read()).lineage
            guard, writes = next_word(rows, f"{number:08d}")
            assert isinstance(await store.transact([guard], writes), Committed)

    async def test() -> None:
        members = await asyncio.to_thread(etcd_cluster, tmp_path, 3)
        try:
            slow = next(member for member in members if not leads(member))
            quick = next(member for member in members if member is not slow and leads(member))
            async with connected(quick) as one, connected(slow) as two:
                await join_cluster(one, None)
                behind, ahead = OwnStore(two, None), OwnStore(one, None)
                await behind.read()
                slow.pause()
                await words(one, 20)
                await ahead.read()
                again = OwnStore(two, ahead.known)  # stands for a restarted broker that asks another member
                reading = asyncio.ensure_future(again.read())
                await asyncio.sleep(0.5)
                slow.go_on()
                # the slow member may not answer yet, but it is never taken for an older store
                with suppress(StoreUnavailable):
                    await reading
                await again.read()
                assert again.known == ahead.known
                assert isinstance(await behind.transact([], [Put("x", b"")]), Committed)
                assert again.refusal is behind.refusal is None
        finally:
            for member in members:
                member.go_on()
                member.kill()

    run(test())


def test_a_watch_leaves_a_member_that_hangs(tmp_path: Path) -> None:
    """The member's connection stays open, and gRPC's pings don't notice that the member hangs. Before the fix, a watch
    on that member got no revision until the member went on."""

    async def test() -> None:
        members = await asyncio.to_thread(etcd_cluster, tmp_path, 3)
        everybody = EtcdAddress(tuple(member.endpoint for member in members))
        try:
            async with AsyncExitStack() as stack:
                watching = EtcdStore(everybody, PREFIX, 2.0)
                stack.push_async_callback(watching.close)
                start = (await watching.read()).revision
                used = watching._connection._members[watching._connection._current].endpoint
                (hanging,) = [member for member in members if member.endpoint == used]
                other = next(member for member in members if member is not hanging)
                writing = await stack.enter_async_context(connected(other))
                following = asyncio.ensure_future(collect(watching, start, 2))
                await put(writing, "a")
                await asyncio.sleep(0.5)
                hanging.pause()
                # time for an election, because the hanging member may have been the leader
                await asyncio.sleep(2.0)
                await put(writing, "b")
                async with asyncio.timeout(20.0):
                    seen = [change.key for revision in await following for change in revision.changes]
                assert seen == ["a", "b"]
        finally:
            for member in members:
                member.go_on()
                member.kill()

    run(test())


class SlowRanges:
    """The stub of etcd's KV service for a member that answers no Range request in time. `asked` is set when a Range
    request is sent."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Range(self, request: Any, **call: Any) -> None:
        self.asked.set()
        await asyncio.sleep(call["timeout"])
        raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())


def test_a_member_that_is_slow_with_ranges_delays_no_event(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A silent watch checks by a Range request whether the member still answers. Before the fix, events that arrived
    during this request waited until it had ended."""
    monkeypatch.setattr("ottla.metadata.etcd._SILENCE_S", 0.2)
    caplog.set_level("INFO")

    async def test() -> None:
        async with connected(etcd, timeout_s=20.0) as watching, connected(etcd) as writing:
            start = await put(writing, "a")
            following = asyncio.ensure_future(collect(watching, start - 1, 4))
            (member,) = watching._connection._members
            member.kv = slow = SlowRanges()
            for key in ("b", "c", "d"):
                await slow.asked.wait()
                slow.asked.clear()
                await put(writing, key)
            async with asyncio.timeout(10.0):
                seen = [change.key for revision in await following for change in revision.changes]
            assert seen == ["a", "b", "c", "d"]
        assert "watch was cut" not in caplog.text

    run(test())


def test_a_member_that_dies_while_it_is_asked_for_a_sign_of_life(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The member dies during the Range request by which a silent watch checks it. Before the fix, the error that ended
    the watch was only logged, as "exception was never retrieved"."""
    monkeypatch.setattr("ottla.metadata.etcd._SILENCE_S", 0.2)
    caplog.set_level("INFO")

    async def test() -> None:
        async with connected(etcd, timeout_s=2.0) as watching, connected(etcd) as writing:
            following = asyncio.ensure_future(collect(watching, await put(writing, "a"), 1))
            await asyncio.sleep(0.3)
            (member,) = watching._connection._members
            member.kv = slow = SlowRanges()
            await slow.asked.wait()
            etcd.kill()
            with pytest.raises(StoreUnavailable):
                await following
            assert "watch was cut" in caplog.text
            assert "didn't answer" not in caplog.text

    run(test())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_dead_broker_is_not_taken_for_a_living_one_because_etcd_restarts(etcd: Etcd) -> None:
    """Each restart of etcd renews the dead broker's lease for its full TTL. The successor waits, and registers when the
    lease has ended."""

    async def test() -> None:
        async with connected(etcd, 20.0) as dead, connected(etcd, 20.0) as living:
            lease = await dead.grant(5)
            await put(dead, keys.broker(0), Broker(0, -1, {}, incarnation="dead").encode(), lease)
            terms = {(await living.lease_left(lease)).term}
            broker = Broker(0, -1, {"L": Endpoint("L", "h", 9092)})
            registration = Registration(living, broker, RenewalTask(living), session_s=5, told=lambda broker: None)
            registering = asyncio.ensure_future(registration.register())
            for _ in range(3):
                await asyncio.sleep(2.0)
                etcd.kill()
                await asyncio.to_thread(etcd.start)
                terms.add((await living.lease_left(lease)).term)
                assert not registering.done()
            assert len(terms) == 4
            registered = await registering
            assert registered.epoch > 0
            await registration.withdraw()

    run(test())


@pytest.mark.parametrize("unknown", [False, True], ids=["old-address", "no-address"])
def test_a_registration_outlives_an_etcd_that_comes_back_at_another_address(etcd: Etcd, unknown: bool) -> None:
    """The member's name resolves to the old address, or to none, and then to the new one, as for the pod of a killed
    member.

    A gRPC channel resolves its name only twice a minute. If clients waited for that, the registration would end first.
    """
    _, _, port = etcd.endpoint.rpartition(":")
    server = NameServer("127.0.0.1")

    async def test() -> None:
        address = EtcdAddress((server.target("etcd-0.etcd", port),))
        store = EtcdStore(address, PREFIX, 5.0)
        renewal = RenewalThread(store.lease_line(), 30.0)
        registration = Registration(
            store, Broker(0, -1, {"L": Endpoint("L", "h", 9092)}), renewal, session_s=9, told=lambda broker: None
        )
        registered = await registration.register()
        keeping = asyncio.create_task(registration.run())
        etcd.kill()
        server.address = None if unknown else "127.0.0.1"
        await asyncio.sleep(4.0)
        etcd.endpoint = f"127.0.0.2:{port}"
        await asyncio.to_thread(etcd.start)
        server.address = "127.0.0.2"
        back_at = time.monotonic()
        while registration.unconfirmed_s > time.monotonic() - back_at:
            assert time.monotonic() - back_at < 30
            await asyncio.sleep(0.05)
        assert isinstance(await store.transact([], [Put("x", b"")]), Committed), (
            "transactions find the new address, too"
        )
        assert registration.epoch == registered.epoch
        assert (await store.read(keys.broker(0))).entries[0].create_revision == registered.epoch
        keeping.cancel()
        await registration.withdraw()
        await store.close()

    try:
        run(test())
    finally:
        server.close()


def test_an_etcd_that_stands_still_for_three_seconds(etcd: Etcd) -> None:
    """Calls with a long time-out only take longer. A write with a short time-out has an unknown outcome, and one read
    shows whether it was applied."""

    async def test() -> None:
        async with connected(etcd) as patient, connected(etcd, timeout_s=1.0) as impatient:
            lease = await patient.grant(9)
            start = await put(patient, "a", lease=lease)
            await impatient.read()
            following = asyncio.ensure_future(collect(impatient, start, 2))
            await asyncio.sleep(0.2)
            etcd.pause()
            waiting = asyncio.ensure_future(put(patient, "patient"))
            with pytest.raises(UnknownOutcome):
                await impatient.transact([], [Put("impatient", b"")])
            with pytest.raises(StoreUnavailable):
                await impatient.read()
            await asyncio.sleep(1.0)
            etcd.go_on()
            await waiting
            await patient.keep_alive(lease)
            keys = {entry.key for entry in (await patient.read()).entries}
            if "impatient" not in keys:
                await put(patient, "impatient")
            seen = sorted(change.key for revision in await following for change in revision.changes)
            assert seen == ["impatient", "patient"]

    run(test())


def test_what_is_said_of_a_write_while_etcd_dies_is_true(etcd: Etcd) -> None:
    async def test() -> None:
        said: dict[str, list[str]] = {"written": [], "not written": [], "unknown": []}

        async def writer(store: EtcdStore, name: int) -> None:
            for number in range(10_000):
                key = f"k/{name}/{number}"
                try:
                    await put(store, key)
                    said["written"].append(key)
                    if len(said["written"]) % 100 == 0:
                        some.set()
                except StoreUnavailable:
                    said["not written"].append(key)
                except UnknownOutcome:
                    said["unknown"].append(key)
                if stop.is_set():
                    return

        stop, some = asyncio.Event(), asyncio.Event()
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(connected(etcd, timeout_s=0.5)) for _ in range(4)]
            writers = [asyncio.ensure_future(writer(store, number)) for number, store in enumerate(stores * 5)]
            for _ in range(2):
                some.clear()
                await some.wait()
                etcd.kill()
                await asyncio.sleep(0.7)
                await asyncio.to_thread(etcd.start)
            stop.set()
            await asyncio.gather(*writers)
            async with connected(etcd) as store:
                there = {entry.key for entry in (await store.read("k/")).entries}
        assert there >= set(said["written"])
        assert there.isdisjoint(said["not written"])
        assert all(said.values()), {name: len(keys) for name, keys in said.items()}

    run(test())


def test_a_revision_that_etcd_splits_arrives_whole(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    fragments: list[bool] = []
    add = Assembly.add

    def noting(assembly: Assembly, response: Any) -> Iterator[Revision]:
        fragments.append(response.fragment)
        return add(assembly, response)

    monkeypatch.setattr(Assembly, "add", noting)

    async def test() -> None:
        async with connected(etcd) as store:
            start = (await store.read()).revision
            for number in range(6):
                await store.transact([], [Put(f"{number}/{n:03}", bytes(9_000)) for n in range(100)])
            seen = await collect(store, start, 6)
            for number, revision in enumerate(seen):
                assert [change.key for change in revision.changes] == [f"{number}/{n:03}" for n in range(100)]
            assert len({revision.revision for revision in seen}) == 6
            snapshot = await store.read("5/")
            assert len(snapshot.entries) == 100
        assert any(fragments)

    run(test())


def test_clusters_that_share_an_etcd_dont_see_each_other(etcd: Etcd) -> None:
    async def test() -> None:
        async with connected(etcd, prefix="/ottla/a") as one, connected(etcd, prefix="/ottla/ab/") as two:
            start = await put(one, "x")
            await put(two, "y")
            last = await put(one, "z")
            assert [entry.key for entry in (await two.read()).entries] == ["y"]
            assert [r.revision for r in await collect(one, start, 1)] == [last]
            # A transaction that changes nothing returns its own cluster's last revision, not one of another cluster.
            await put(two, "y")
            unchanged = await one.transact([Guard("z", last)], [Delete("nothing")])
            assert unchanged == Committed(last)

    run(test())


def test_refuses_what_is_too_large(etcd: Etcd) -> None:
    async def test() -> None:
        async with connected(etcd) as store:
            with pytest.raises(ValueError, match="too large"):
                await put(store, "a", bytes(2_000_000))
            with pytest.raises(ValueError, match="comparisons"):
                await store.transact([Guard(f"k{n}", 1, LeaseId(1)) for n in range(70)], [])

    run(test())


def test_another_endpoint_takes_over(etcd: Etcd) -> None:
    async def test() -> None:
        nobody = f"127.0.0.1:{free_port()}"
        for _ in range(4):  # whichever endpoint the store tries first
            store = EtcdStore(EtcdAddress((nobody, etcd.endpoint, "no-such-host.invalid:2379")), PREFIX)
            start = await put(store, "a")
            await store.keep_alive(await store.grant(5))
            assert len(await collect(store, start - 1, 1)) == 1
            await store.close()

    run(test())


def test_members_die_one_by_one(tmp_path: Path) -> None:
    """When the leader dies, another member becomes the leader. When one more member dies, the last one refuses writes.
    When a majority is back, the watch has missed no revision."""
    members = etcd_cluster(tmp_path, 3)

    async def test() -> None:
        store = EtcdStore(EtcdAddress(tuple(member.endpoint for member in members)), PREFIX, 2.0)
        lease = await store.grant(5)
        revision = await put(store, "a", lease=lease)
        following = asyncio.ensure_future(collect_in_spite(store, revision - 1, 3))
        await asyncio.sleep(0.3)
        leader = next(member for member in members if leads(member))
        others = [member for member in members if member is not leader]
        leader.kill()
        await asyncio.to_thread(wait_for_leader, others)
        revisions = [revision, await put(store, "b")]
        others[0].kill()
        refusals = [await refusal(store) for _ in range(3)]
        # at first the last member may not know that it is alone: the outcome is unknown then
        assert StoreUnavailable in refusals
        leader.launch()
        leader.wait()
        await store.keep_alive(lease)
        revisions.append(await put(store, "c"))
        assert await following == revisions
        await store.close()

    async def refusal(store: EtcdStore) -> type[Exception]:
        with pytest.raises((StoreUnavailable, UnknownOutcome)) as raised:
            await store.transact([Guard("never", 7)], [Put("never", b"")])
        return raised.type

    try:
        run(test())
    finally:
        for member in members:
            member.kill()


async def collect_in_spite(store: EtcdStore, after: int, count: int) -> list[int]:
    """Reads `count` revisions after the revision `after`, and watches again after each StoreUnavailable."""
    seen: list[int] = []
    while True:
        try:
            async with aclosing(store.watch("", seen[-1] if seen else after)) as revisions:
                async for revision in revisions:
                    seen.append(revision.revision)
                    if len(seen) == count:
                        return seen
        except StoreUnavailable:
            await asyncio.sleep(0.1)


def wait_for_leader(members: list[Etcd]) -> None:
    deadline = time.monotonic() + 10
    while not any(leads(member) for member in members):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd with TLS and authentication; the user `broker` may read and write all keys under /ottla/faults/."""
    etcd = Etcd(tmp_path / "etcd", ["--auto-tls", "--peer-auto-tls"], scheme="https")
    tls = ["--cacert", str(authority(etcd))]
    admin = [*tls, "--user", "root:secret"]
    for arguments in (
        [*tls, "user", "add", "root:secret"],
        [*tls, "user", "grant-role", "root", "root"],
        [*tls, "user", "add", "broker:pass word"],
        [*tls, "role", "add", "faults"],
        [*tls, "role", "grant-permission", "faults", "--prefix=true", "readwrite", PREFIX],
        [*tls, "user", "grant-role", "broker", "faults"],
        [*tls, "auth", "enable"],
        [*admin, "endpoint", "health"],
    ):
        etcd.control(*arguments)
    yield etcd
    etcd.kill()


def authority(etcd: Etcd) -> Path:
    return etcd.folder / "data" / "fixtures" / "client" / "cert.pem"


def test_tls_and_a_user(guarded: Etcd, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pass word\n")

    def store(prefix: str = PREFIX, timeout_s: float = 1.0, **changed: Any) -> EtcdStore:
        told: dict[str, Any] = {"user": "broker", "password_file": password, "tls": True, "ca_file": authority(guarded)}
        return EtcdStore(EtcdAddress((guarded.endpoint,), **(told | changed)), prefix, timeout_s)

    async def refused(opened: EtcdStore, words: str) -> None:
        with pytest.raises(StoreUnavailable, match=words):
            await opened.read()
        with pytest.raises(StoreUnavailable, match=words):
            await opened.transact([], [Put("a", b"")])
        await opened.close()

    async def test() -> None:
        let_in = store(timeout_s=5.0)
        lease = await let_in.grant(5)
        start = await put(let_in, "a", lease=lease)
        assert len(await collect(let_in, start - 1, 1)) == 1
        line = let_in.lease_line()
        await asyncio.to_thread(line.keep_alive, lease, 2.0)
        # Tokens are lost when etcd restarts: calls and watches get new ones by themselves.
        following = asyncio.ensure_future(collect(let_in, start, 1))
        await asyncio.sleep(0.3)
        guarded.kill()
        guarded.start()
        await asyncio.to_thread(line.keep_alive, lease, 10.0)
        await put(let_in, "b")
        assert len(await following) == 1
        await asyncio.to_thread(line.close)
        await let_in.close()
        distrustful = store(ca_file=None)
        line = distrustful.lease_line()
        with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(line.keep_alive, lease, 2.0)
        await asyncio.to_thread(line.close)
        await distrustful.close()
        await refused(store("/ottla/others/"), "refuses user broker: etcdserver: permission denied")
        await refused(store(user="", password_file=None), "refuses a request without a user")
        password.write_text("wrong")
        await refused(store(), "refuses the login of user broker")
        await refused(store(ca_file=None), "can't be reached: .*CERTIFICATE_VERIFY_FAILED")

    run(test())


def test_a_broker_comes_in_by_its_settings(guarded: Etcd, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pass word\n")
    told = {
        "ottla_metadata_store": f"etcd:{guarded.endpoint}",
        "ottla_metadata_etcd_prefix": PREFIX,
        "ottla_metadata_etcd_user": "broker",
        "ottla_metadata_etcd_password_file": str(password),
        "ottla_metadata_etcd_tls": "true",
        "ottla_metadata_etcd_tls_ca_file": str(authority(guarded)),
        "ottla_metadata_etcd_timeout_ms": "2000",
    }
    broker = OttlaBroker(tmp_path / "broker", **told)
    try:
        with Wire(broker.bootstrap) as wire:
            new = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            assert wire.call(CREATE_TOPICS, 5, {"topics": [new], "timeout": 20_000}).topics[0].error_code == 0
        tls = ("--cacert", str(authority(guarded)), "--user", "broker:pass word")
        assert f"{PREFIX}topics/t" in guarded.control(*tls, "get", "--prefix", PREFIX, "--keys-only")
    finally:
        broker.stop()
    password.write_text("wrong")
    refused = subprocess.run(broker.command, capture_output=True, text=True, timeout=60, check=False)
    (said,) = [line for line in refused.stderr.splitlines() if line.startswith("ottla broker: ")]
    assert (refused.returncode, "login of user broker" in said, "Traceback" in refused.stderr) == (1, True, False)
