"""To programs, the simulated machine behaves like a real machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from tests.simulation.disk import SimulatedDisk
from tests.simulation.loop import Process, SimulationLoop, Stuck, run
from tests.simulation.machine import Descriptors
from tests.simulation.network import Network, Stream, connect

Body = Callable[[SimulationLoop, Network], Coroutine[Any, Any, None]]


def simulated(body: Body, seed: int = 0) -> None:
    descriptors, random = Descriptors(), Random(seed)

    async def main(loop: SimulationLoop) -> None:
        loop.sockets = descriptors.sockets
        await body(loop, Network(loop, random, descriptors))

    run(random, main, steps_max=100_000)


def spawn(loop: SimulationLoop, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return loop.create_task(coroutine, context=process.context)


def test_a_dead_process_does_nothing_more_and_a_paused_one_goes_on_later() -> None:
    async def body(loop: SimulationLoop, network: Network) -> None:
        done: list[str] = []

        async def work(name: str) -> None:
            try:
                for step in range(3):
                    await asyncio.sleep(1)
                    done.append(f"{name}{step}")
            finally:
                done.append(f"{name} ends")

        dead, paused = Process("dead", "a"), Process("paused", "b")
        spawn(loop, dead, work("d"))
        task = spawn(loop, paused, work("p"))
        await asyncio.sleep(1.5)
        dead.dead = paused.paused = True
        await asyncio.sleep(10)
        assert done == ["d0", "p0"]
        loop.resume(paused)
        await task
        assert done == ["d0", "p0", "p1", "p2", "p ends"]

    simulated(body)


def test_a_fuse_burns_by_steps() -> None:
    async def body(loop: SimulationLoop, network: Network) -> None:
        process = Process("p", "a")
        steps: list[int] = []

        async def work() -> None:
            for step in range(100):
                steps.append(step)
                await asyncio.sleep(0)

        def burnt() -> None:
            process.dead = True

        process.fuse, process.burnt = 5, burnt
        spawn(loop, process, work())
        await asyncio.sleep(1)
        assert steps == [0, 1, 2, 3]

    simulated(body)


def test_waiting_for_what_never_comes_is_noticed() -> None:
    async def body(loop: SimulationLoop, network: Network) -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        simulated(body)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_and_whole_whatever_is_cut(seed: int) -> None:
    async def body(loop: SimulationLoop, network: Network) -> None:
        network.partial = 0.5
        server, client = Process("s", "server"), Process("c", "client")
        listener = network.listen(server, "server", 1)
        sent = Random(seed).randbytes(300_000)
        received = bytearray()

        async def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.01)
            stream = Stream(sock)
            piece = bytearray(100)
            while len(received) < len(sent):
                await stream.read_exactly(memoryview(piece))
                received.extend(piece)

        async def ask() -> None:
            stream = await connect(network, "server", 1)
            await stream.write(sent)

        serving = spawn(loop, server, serve())
        spawn(loop, client, ask())
        await asyncio.sleep(0.01)
        network.cut_link("client", "server")
        await asyncio.sleep(5)
        had = len(received)
        await asyncio.sleep(5)
        assert len(received) == had < len(sent)
        network.heal_link("client", "server")
        await serving
        assert received == sent

    simulated(body, seed)


def test_refused_reset_and_silent() -> None:
    async def body(loop: SimulationLoop, network: Network) -> None:
        server, client = Process("s", "server"), Process("c", "client")

        async def ask() -> Stream:
            return await connect(network, "server", 1)

        async def read(stream: Stream) -> None:
            await stream.read_exactly(memoryview(bytearray(1)))

        with pytest.raises(ConnectionRefusedError):
            await spawn(loop, client, ask())
        network.listen(server, "server", 1)
        killed = await spawn(loop, client, ask())
        network.died(server)
        with pytest.raises(ConnectionResetError):
            await spawn(loop, client, read(killed))
        network.listen(server, "server", 1)
        dark = await spawn(loop, client, ask())
        network.lost_power(server)
        waiting = spawn(loop, client, read(dark))
        await asyncio.sleep(60)
        assert not waiting.done()
        network.power_is_back("server")
        with pytest.raises(ConnectionResetError):
            await waiting

    simulated(body)


def test_a_loss_of_power_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    kept = set()
    for seed in range(200):
        disk = SimulatedDisk(Random(seed))
        disk.make_directory("/d")
        disk.fsync_directory("/")
        file = disk.open("/d/f", create=True)
        file.pwrite(b"synced", 0)
        file.fsync()
        disk.fsync_directory("/d")
        file.pwrite(b"AAAA", 6)
        file.pwrite(b"BBBB", 10)
        disk.open("/d/unsynced", create=True)
        disk.lose_power()
        content = disk.read("/d/f")
        assert content.startswith(b"synced")
        assert len(content) <= 14
        kept.add((content[6:], disk.exists("/d/unsynced")))
    contents = {content for content, _ in kept}
    assert {b"", b"AAAA", b"AAAABBBB", b"AA", b"AAAABB"} <= contents
    assert {exists for _, exists in kept} == {True, False}
    assert any(b"\0" in content for content in contents)


def test_a_kill_keeps_the_page_cache() -> None:
    disk = SimulatedDisk(Random(0))
    held = disk.lock("/lock")
    disk.open("/f", create=True).pwrite(b"x", 0)
    disk.process_died()
    assert disk.read("/f") == b"x"
    assert disk.lock("/lock") is not None
    del held


def test_a_full_disk_and_a_failing_one() -> None:
    disk = SimulatedDisk(Random(0))
    file = disk.open("/f", create=True)
    file.pwrite(b"1234", 0)
    disk.full = True
    file.pwrite(b"4321", 0)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"12345678", 2)
    disk.full = False
    disk.failing = frozenset({"fsync"})
    with pytest.raises(OSError, match="Input/output"):
        file.fsync()
