"""The work of one turn of the event loop is bounded, whatever many connections do at once, and each gets its turn."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.net.server import Limits, Server
from ottla.net.turns import READS_PER_TURN, Reads, Turns
from tests.unit.waiting import until

READ_SECONDS = 0.0009
CLIENTS = 20


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


def frame(payload: bytes) -> bytes:
    return struct.pack(">ihhi", 8 + len(payload), 3, 0, 0) + payload


def test_turns_are_bounded_and_a_bug_of_one_step_ends_no_other(caplog: Any) -> None:
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

    asyncio.run(main())
    assert "a step of a connection failed" in caplog.text


def run(scenario: Callable[[Server, list[socket.socket], list[int]], Any]) -> None:
    """Runs the scenario with connected clients, and a server for which each request takes `READ_SECONDS`. The list has
    the number of requests that each turn of the event loop served."""
    clock = Clock()
    served: list[int] = []

    def dispatch(connection: Any, buffer: Any, start: int, end: int) -> list[bytes]:
        clock.now += READ_SECONDS
        served[-1] += 1
        return [bytes(buffer[start + 8 : end])]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Server(dispatch, Limits(), frozenset())
        assert server._reads is not None
        server._reads._clock = clock
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

    asyncio.run(main())


def test_requests_of_many_connections_at_once_are_served_over_several_turns_in_their_order() -> None:
    async def scenario(_: Server, clients: list[socket.socket], served: list[int]) -> None:
        for number, client in enumerate(clients):
            client.sendall(frame(b"%04d" % number))
        await until(lambda: sum(served) == CLIENTS)
        assert max(served) == 4, "no turn is longer than its time and one read"
        for number, client in enumerate(clients):
            assert client.recv(100) == b"%04d" % number

    run(scenario)


def test_a_connection_that_always_has_more_doesnt_keep_others_from_their_turn() -> None:
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


def test_connections_that_are_closed_in_their_turn_are_read_no_more() -> None:
    async def scenario(server: Server, clients: list[socket.socket], served: list[int]) -> None:
        for client in clients:
            client.sendall(frame(b"some"))
        for _ in range(CLIENTS):
            if not sum(served):
                await asyncio.sleep(0)
        before = sum(served)
        assert before
        for connection in list(server.listeners["PLAINTEXT"].connections):
            connection.close()
        for _ in range(CLIENTS):
            await asyncio.sleep(0)
        assert sum(served) == before

    run(scenario)


def test_a_bug_that_one_read_meets_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
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

    asyncio.run(main())
    assert caplog.text.count("a read from a connection failed") == READS_PER_TURN
