"""Dead brokers are found by their closed sockets. In these tests, attempts to connect get their results from a table,
and the store is a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.controller import quick_death
from ottla.controller.quick_death import QuickDeath, _Watched
from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.image import Image
from ottla.metadata.model.brokers import Broker, BrokerState, ControllerHolder, Endpoint
from ottla.metadata.store import Delete, Put

LISTENER = "INTERNAL"


class Sockets:
    """The result of an attempt to connect to each port: a stream, or an error in `failures`."""

    def __init__(self) -> None:
        self.failures: dict[int, OSError] = {}
        self.attempts: list[int] = []
        self.streams: dict[int, list[Stream]] = {}

    async def connect(self, host: str, port: int) -> Any:
        self.attempts.append(port)
        if port in self.failures:
            raise self.failures[port]
        stream = Stream()
        self.streams.setdefault(port, []).append(stream)
        return stream

    def cut(self, port: int, then: OSError | None) -> None:
        """Ends the connections to a port; later attempts raise `then`, if it isn't None."""
        if then is not None:
            self.failures[port] = then
        for stream in self.streams.pop(port, []):
            stream.ended.set()

    def refuse(self, port: int) -> None:
        self.cut(port, ConnectionRefusedError())

    async def connected(self, port: int) -> None:
        while not self.streams.get(port):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def tried(self, port: int, times: int) -> None:
        """Waits until a port has had this number of attempts to connect."""
        while self.attempts.count(port) < times:  # noqa: ASYNC110
            await asyncio.sleep(0)


class Stream:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def read_exactly(self, into: memoryview) -> None:
        await self.ended.wait()
        raise ConnectionResetError

    async def write(self, data: bytes) -> None:
        raise AssertionError("the watch must send nothing")

    def close(self) -> None:
        self.ended.set()


class Cluster:
    """Brokers 1, 2 and 3 with ports 9001 and so on; the watch is in broker 1's process."""

    def __init__(self, store: EmbeddedStore, follower: Follower) -> None:
        self.store = store
        self.follower = follower
        self.sockets = Sockets()
        self.watch = QuickDeath(
            store, follower, 1, LISTENER, self._connect_to_brokers, connect_to_pages=self.sockets.connect
        )

    async def _connect_to_brokers(self, host: str, port: int) -> Stream:
        """As connections with a login: they are only for inter-broker listeners, whose ports are 9001 and so on."""
        assert port > 9000, f"a login at {host}:{port}"
        return await self.sockets.connect(host, port)

    async def register(self, broker_id: int, state: BrokerState = BrokerState.RUNNING) -> None:
        endpoints = {
            name: Endpoint(name, "h", port + broker_id) for name, port in ((LISTENER, 9000), ("CLIENTS", 8000))
        }
        await self.write(Put(keys.broker(broker_id), Broker(broker_id, 0, endpoints, state=state).encode()))

    async def control(self, broker_id: int) -> None:
        await self.write(Put(keys.controller.key, ControllerHolder(f"broker-{broker_id}", broker_id).encode()))

    async def write(self, *writes: Put | Delete) -> None:
        result = await self.store.transact([], list(writes))
        await self.follower.wait_for_revision(result.revision, 5)  # type: ignore[union-attr]

    async def gone(self, broker_id: int) -> Image:
        return await self.follower.wait(lambda image: None if broker_id in image.brokers else image, 5)


Body = Callable[[Cluster], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Body, int], None]:
    """Runs a test while the brokers' sockets are watched, as soon as all connections are established. Broker
    `controller` is the controller.
    """
    monkeypatch.setattr(quick_death, "_REFUSED_S", 0.01)
    monkeypatch.setattr(quick_death, "_UNREACHABLE_S", 0.02)

    def start(body: Body, controller: int = 1) -> None:
        async def main() -> None:
            store = await EmbeddedStore.open(tmp_path / "metadata.db")
            follower = Follower(store)
            await follower.start()
            cluster = Cluster(store, follower)
            tasks = [asyncio.ensure_future(each()) for each in (follower.run, cluster.watch.run)]
            try:
                async with asyncio.timeout(20):
                    for broker_id in (1, 2, 3):
                        await cluster.register(broker_id)
                    await cluster.control(controller)
                    for broker_id in (2, 3) if controller == 1 else (controller,):
                        await cluster.sockets.connected(9000 + broker_id)
                    await body(cluster)
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await store.close()

        asyncio.run(main())

    return start


def test_a_connection_cut_and_refused_twice_is_a_death(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        assert sorted(cluster.sockets.attempts) == [9002, 9003]
        cluster.sockets.refuse(9002)
        image = await cluster.gone(2)
        assert set(image.brokers) == {1, 3}
        assert image.controller is not None
        assert cluster.sockets.attempts.count(9002) == 3
        assert cluster.watch.found_count == 1

    run(body)


@pytest.mark.parametrize("failure", [TimeoutError(), OSError(113, "no route to host"), ConnectionResetError()])
def test_whatever_is_not_a_refusal_waits_for_the_session(run: Any, failure: OSError) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.sockets.cut(9002, failure)
        await cluster.sockets.tried(9002, 6)
        assert 2 in cluster.follower.image.brokers
        del cluster.sockets.failures[9002]
        await cluster.sockets.connected(9002)
        assert 2 in cluster.follower.image.brokers

    run(body)


def test_an_error_that_nobody_foresaw_ends_no_watch(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Before the fix, an unforeseen error ended the watch of this broker for good, without a message."""

    async def body(cluster: Cluster) -> None:
        sockets = cluster.sockets
        sockets.cut(9003, ZeroDivisionError())  # type: ignore[arg-type]
        await sockets.tried(9003, sockets.attempts.count(9003) + 2)
        del sockets.failures[9003]
        await sockets.connected(9003)
        sockets.refuse(9003)
        await cluster.gone(3)

    run(body)
    assert "the watch of broker 3 has failed" in caplog.text


def test_refusals_at_an_old_address_say_nothing(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.sockets.refuse(9002)
        broker = cluster.follower.image.brokers[2]
        moved = replace(broker, endpoints={LISTENER: Endpoint(LISTENER, "h", 9102)})
        # No task runs between the new image and the refusal that is under way.
        cluster.follower.image = replace(cluster.follower.image, brokers={2: moved})
        assert await cluster.watch._declare_dead(_Watched(2, broker.epoch, "h", 9002))
        assert any(entry.key == keys.broker(2) for entry in (await cluster.store.read()).entries)

    run(body)


def test_one_refusal_is_none(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        for _ in range(3):
            refused = cluster.sockets.attempts.count(9002) + 1
            cluster.sockets.refuse(9002)
            await cluster.sockets.tried(9002, refused)
            del cluster.sockets.failures[9002]
            await cluster.sockets.connected(9002)
        assert 2 in cluster.follower.image.brokers

    run(body)


def test_who_was_never_reached_is_not_declared_dead(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.sockets.failures[9004] = ConnectionRefusedError()
        await cluster.register(4)
        await cluster.sockets.tried(9004, 5)
        assert 4 in cluster.follower.image.brokers

    run(body)


def test_a_draining_broker_withdraws_by_itself(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.register(2, BrokerState.DRAINING)
        cluster.sockets.refuse(9002)
        await cluster.sockets.tried(9002, 6)
        assert 2 in cluster.follower.image.brokers

    run(body)


def test_a_new_registration_is_not_deleted_for_the_old_one(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.write(Delete(keys.broker(2)))
        await cluster.register(2)
        cluster.sockets.failures[9002] = ConnectionRefusedError()  # the watch learns nothing else
        await asyncio.sleep(0.2)
        assert 2 in cluster.follower.image.brokers

    run(body)


def test_a_standby_watches_only_the_controller_and_takes_it_out_of_office(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        assert set(cluster.sockets.attempts) == {9003}
        cluster.sockets.refuse(9003)
        image = await cluster.gone(3)
        assert image.controller is None
        assert set(image.brokers) == {1, 2}
        await cluster.control(1)
        await cluster.sockets.connected(9002)

    run(body, 3)


def test_a_standby_watches_a_controller_without_a_broker_at_its_address(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        for host in ("", "h"):  # a controller without an address is removed only when its session ends
            tried = len(cluster.sockets.attempts)
            holder = ControllerHolder("controller-7", -9, host=host, port=7007 if host else 0)
            await cluster.write(Put(keys.controller.key, holder.encode()))
            if host:
                await cluster.sockets.connected(7007)
            assert set(cluster.sockets.attempts[tried:]) == ({7007} if host else set())
        cluster.sockets.refuse(7007)
        await cluster.follower.wait(lambda image: image.controller is None or None, 5)
        assert set(cluster.follower.image.brokers) == {1, 2, 3}
        assert cluster.watch.found_count == 1

    run(body, 3)


def test_a_deposed_controller_deletes_nothing(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        # The deposed controller's image is held back, so it acts by a term that has ended.
        held = asyncio.Event()

        async def hold(image: Image, changed: Any) -> None:
            await held.wait()

        cluster.follower.prepare(hold)
        await cluster.store.transact([], [Put(keys.controller.key, ControllerHolder("broker-3", 3).encode())])
        cluster.sockets.refuse(9002)
        await asyncio.sleep(0.2)
        assert any(entry.key == keys.broker(2) for entry in (await cluster.store.read(keys.broker.prefix)).entries)
        held.set()

    run(body)
