"""The work of one turn of the event loop is bounded, whatever many connections do at once, and each gets its turn."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ottla.net.connection import QUEUED_PARTS_MAX
from ottla.net.server import Limits, Server
from ottla.net.turns import ITEMS_PER_STEP, READS_PER_TURN, Reads, Turns
from tests.unit.waiting import until

READ_SECONDS = 0.0009
CLIENTS = 20
REQUESTS = 200

Body = Callable[[], Coroutine[Any, Any, None]]
OnLoop = Callable[[Body], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> OnLoop:
    """Runs a coroutine on an event loop of each kind."""

    def run_on_loop(body: Body) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(body())

    return run_on_loop


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class TickingClock(Clock):
    """A clock for which each step takes 0.3 ms."""

    def __call__(self) -> float:
        self.now += 0.0003
        return self.now


def frame(payload: bytes) -> bytes:
    return struct.pack(">ihhi", 8 + len(payload), 3, 0, 0) + payload


def test_turns_are_bounded_and_a_bug_of_one_step_ends_no_other(on_loop: OnLoop, caplog: Any) -> None:
    clock = Clock()
    done = []

    def step(number: int) -> Callable[[], None]:
        def steps() -> None:
            clock.now += 1
            done.append(number)
            if number == 1:
                raise RuntimeError("a bug")

        return steps

    async def main() -> None:
        turns = Turns(clock, seconds=3)
        for number in range(10):
            turns.wait(step(number))
        after = []
        while len(done) < 10:
            await asyncio.sleep(0)
            after.append(len(done))
        assert done == list(range(10))
        assert after[:3] == [3, 6, 9]

    on_loop(main)
    assert "a step of a connection failed" in caplog.text


def test_a_step_goes_on_at_once_while_the_turn_has_time_and_none_waits(on_loop: OnLoop) -> None:
    clock = Clock()
    done: list[int] = []

    def step(number: int) -> Callable[[], None]:
        def steps() -> None:
            clock.now += 1
            done.append(number)

        return steps

    async def main() -> None:
        turns = Turns(clock, seconds=3)
        for number in range(5):
            turns.go_on(step(number))
        assert done == [0, 1, 2], "the turn's time is used up"
        await until(lambda: not turns.waiting)
        assert done == [0, 1, 2, 3, 4]
        await asyncio.sleep(0)
        turns.wait(step(5))
        turns.go_on(step(6))
        assert done == [0, 1, 2, 3, 4], "a step waits already"
        await until(lambda: done == [0, 1, 2, 3, 4, 5, 6])
        for _ in range(3):
            await asyncio.sleep(0)
        turns.go_on(step(7))
        assert done[-1] == 7, "a new turn has new time"

    on_loop(main)


def test_a_bug_with_one_of_many_items_ends_no_other(on_loop: OnLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        done: list[int] = []
        turns = Turns()

        def look(item: int) -> None:
            done.append(item)
            if item % 2:
                raise RuntimeError("a bug")

        turns.wait_for_each(range(100), look)
        assert not done
        await until(lambda: not turns.waiting)
        assert done == list(range(100))

    on_loop(main)
    assert caplog.text.count("a step of a connection failed") == 50


Scenario = Callable[[Server, list[socket.socket], list[int]], Any]


@pytest.fixture
def run(on_loop: OnLoop) -> Callable[[Scenario], None]:
    """Runs a scenario with connected clients, and a server for which each request takes `READ_SECONDS`. The list has
    the number of requests that each turn of the event loop served."""

    def runs(scenario: Scenario) -> None:
        clock = Clock()
        served: list[int] = []

        def dispatch(connection: Any, buffer: Any, start: int, end: int) -> list[bytes]:
            clock.now += READ_SECONDS
            served[-1] += 1
            return [bytes(buffer[start + 8 : end])]

        async def main() -> None:
            loop = asyncio.get_running_loop()
            server = Server(dispatch, Limits(), frozenset(), turn_clock=clock)
            listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
            server.accept()
            clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(CLIENTS)]
            await until(lambda: server.connection_count == CLIENTS)

            def count_turns() -> None:
                served.append(0)
                counting.append(loop.call_soon(count_turns))

            counting: list[asyncio.Handle] = []
            count_turns()
            try:
                await asyncio.wait_for(scenario(server, clients, served), 20)
            finally:
                counting[-1].cancel()
                for client in clients:
                    client.close()
                await server.close()

        on_loop(main)

    return runs


def test_many_requests_of_a_few_connections_leave_others_their_turn(run: Callable[[Scenario], None]) -> None:
    async def scenario(_: Server, clients: list[socket.socket], served: list[int]) -> None:
        for client in clients:
            client.sendall(frame(b"many") * REQUESTS)
        await until(lambda: sum(served) == CLIENTS * REQUESTS)
        assert max(served) <= 2 * QUEUED_PARTS_MAX, "a turn has one read, and goes on with one connection"
        for client in clients:
            assert client.recv(4 * REQUESTS, socket.MSG_WAITALL) == b"many" * REQUESTS

    run(scenario)


def test_thousands_of_silent_clients_are_closed_over_several_turns(on_loop: OnLoop) -> None:
    def dispatch(connection: Any, buffer: Any, start: int, end: int) -> list[bytes]:
        raise AssertionError("no client sends anything")

    async def main() -> None:
        server = Server(dispatch, Limits(idle_seconds_max=0, backlog=512), frozenset(), turn_clock=TickingClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        server.accept()
        clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(20 * ITEMS_PER_STEP)]
        left = [len(clients)]
        await until(lambda: server.connection_count == len(clients))
        while left[-1]:
            await asyncio.sleep(0)
            left.append(server.connection_count)
        closed = [before - after for before, after in itertools.pairwise(left)]
        assert max(closed) <= 4 * ITEMS_PER_STEP, "a turn has 1 ms for this"
        for client in clients:
            client.close()
        await server.close()

    on_loop(main)


def test_a_client_that_is_no_longer_silent_in_its_turn_stays(on_loop: OnLoop) -> None:
    async def main() -> None:
        server = Server(lambda *_: None, Limits(idle_seconds_max=5), frozenset())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        server.accept()
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            await until(lambda: server.connection_count == 1)
            [connection] = listener.connections
            connection.idle_sweeps = 5
            server._sweep_once(0.0)
            client.sendall(frame(b"here"))
            connection._readable()
            assert server._sweeps.waiting
            await until(lambda: not server._sweeps.waiting)
            assert not connection.closed
        await server.close()

    on_loop(main)


def test_requests_of_many_connections_at_once_are_served_over_several_turns_in_their_order(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(_: Server, clients: list[socket.socket], served: list[int]) -> None:
        for number, client in enumerate(clients):
            client.sendall(frame(b"%04d" % number))
        await until(lambda: sum(served) == CLIENTS)
        assert max(served) == 4, "no turn is longer than its time and one read"
        for number, client in enumerate(clients):
            assert client.recv(100) == b"%04d" % number

    run(scenario)


def test_a_connection_that_always_has_more_doesnt_keep_others_from_their_turn(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(_: Server, clients: list[socket.socket], _served: list[int]) -> None:
        last = clients[-1]
        last.setblocking(False)
        for client in clients[:-1]:
            client.sendall(frame(b"more"))
        last.sendall(frame(b"last"))
        for _ in range(2 * CLIENTS):  # each turn serves a connection at least
            for client in clients[:-1]:
                client.sendall(frame(b"more"))
            await asyncio.sleep(0)
            try:
                assert last.recv(100) == b"last"
            except BlockingIOError:
                continue
            break
        else:
            raise AssertionError("the last connection was never served")

    run(scenario)


def test_a_reader_that_is_removed_while_it_waits_for_its_turn_is_called_no_more(on_loop: OnLoop) -> None:
    async def main() -> None:
        reads = Reads()
        pairs = [socket.socketpair() for _ in range(CLIENTS)]
        called: list[int] = []

        def reader(number: int) -> Callable[[], None]:
            def read() -> None:
                called.append(number)
                for here, _ in pairs:
                    reads.remove_reader(here.fileno())

            return read

        for number, (here, there) in enumerate(pairs):
            reads.add_reader(here.fileno(), reader(number))
            there.send(b"x")
        await until(lambda: bool(called))
        for _ in range(CLIENTS):
            await asyncio.sleep(0)
        assert len(called) == 1
        reads.close()
        for each in (each for pair in pairs for each in pair):
            each.close()

    on_loop(main)


def test_a_new_connection_may_have_the_descriptor_of_one_that_waited_for_its_turn(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(server: Server, clients: list[socket.socket], served: list[int]) -> None:
        listener = server.listeners["PLAINTEXT"]
        for client in clients:
            client.sendall(frame(b"some"))
        for _ in range(1000):
            if not sum(served):
                await asyncio.sleep(0)
        last = list(listener.connections)[-1]
        descriptor = last._channel._descriptor  # type: ignore[attr-defined]
        assert descriptor in server.readers._ready
        with socket.socket() as new:
            fillers = []
            last.close()
            while (filler := os.open(os.devnull, os.O_RDONLY)) != descriptor:
                fillers.append(filler)
            os.close(filler)  # now it is the lowest one that is free
            new.connect(("127.0.0.1", listener.port))
            listener._acceptable()
            [*_, connection] = listener.connections
            assert connection._channel._descriptor == descriptor  # type: ignore[attr-defined]
            assert descriptor in server.readers._ready
            await until(lambda: sum(served) == CLIENTS - 1)
            for _ in range(CLIENTS):
                await asyncio.sleep(0)
            assert not connection.closed, "it has nothing to read yet, and that is no end"
            new.sendall(frame(b"new!"))
            await until(lambda: sum(served) == CLIENTS)
            assert new.recv(100) == b"new!"
            for filler in fillers:
                os.close(filler)

    run(scenario)


def test_a_bug_that_one_read_meets_ends_no_other(on_loop: OnLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        reads = Reads()
        pairs = [socket.socketpair() for _ in range(2 * READS_PER_TURN)]
        called = []

        def reader(number: int) -> Callable[[], None]:
            def read() -> None:
                called.append(number)
                reads.remove_reader(pairs[number][0].fileno())
                if number % 2:
                    reads.remove_reader(pairs[number - 1][0].fileno())
                    raise RuntimeError("a bug")

            return read

        for number, (here, there) in enumerate(pairs):
            reads.add_reader(here.fileno(), reader(number))
            there.send(b"x")
        await until(lambda: len(called) == len(pairs))
        reads.close()
        reads.close()
        for each in (each for pair in pairs for each in pair):
            each.close()

    on_loop(main)
    assert caplog.text.count("a read from a connection failed") == READS_PER_TURN
