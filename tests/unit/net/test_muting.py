"""A throttled client's connection: nothing is read from it for a time, and its answers are sent."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

from ottla.net.connection import Connection
from ottla.net.pending import Pending
from ottla.net.server import RECEIVE_BUFFER_BYTES, Limits, Server
from tests.unit.waiting import until

PIPELINED = 0
ORDINARY = 3


def frame(api_key: int, payload: bytes) -> bytes:
    body = struct.pack(">hhi", api_key, 0, 0) + payload.ljust(4, b".")
    return struct.pack(">i", len(body)) + body


class Throttling:
    """Answers each frame with its payload. A frame that begins with `mute` mutes its connection for as many
    milliseconds as it says; for one that begins with `later`, the test gives the answer."""

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.times: list[float] = []
        self.connections: list[Connection] = []
        self.later: list[Pending] = []

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int):
        (api_key,) = struct.unpack_from(">h", buffer, start)
        payload = bytes(buffer[start + 8 : end])
        self.served.append(payload[:8])
        self.times.append(asyncio.get_running_loop().time())
        if connection not in self.connections:
            self.connections.append(connection)
        if payload.startswith(b"mute"):
            connection.mute(int(payload[4:8]) / 1000)
        if payload.startswith(b"later"):
            self.later.append(Pending(connection, api_key))
            return self.later[-1]
        return [payload[:8]]


def run(scenario: Callable[[Server, int, Throttling], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        broker = Throttling()
        server = Server(broker, Limits(**limits), frozenset({PIPELINED}))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        server.accept()
        try:
            await asyncio.wait_for(scenario(server, listener.port, broker), 60)
        finally:
            await server.close()

    asyncio.run(main())


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


def test_the_answer_comes_at_once_and_the_next_request_waits():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"mute0300"))
        assert await reader.readexactly(8) == b"mute0300"
        writer.write(frame(ORDINARY, b"next...."))
        assert await reader.readexactly(8) == b"next...."
        assert broker.times[1] - broker.times[0] >= 0.3

    run(scenario)


def test_requests_that_have_arrived_already_wait_in_order():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(b"".join(frame(PIPELINED, text) for text in (b"mute0200", b"second..", b"third...")))
        assert await reader.readexactly(8) == b"mute0200"
        await asyncio.sleep(0.05)
        assert broker.served == [b"mute0200"]
        assert await reader.readexactly(16) == b"second..third..."
        assert broker.times[1] - broker.times[0] >= 0.2

    run(scenario)


def test_a_muted_connection_takes_no_memory_for_the_rest_of_a_frame():
    """A large frame that has arrived in part waits without room for its rest, which other connections may need."""

    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        large = frame(PIPELINED, b"large..." + bytes(8_000_000))
        writer.write(frame(PIPELINED, b"mute0400") + large)
        assert await reader.readexactly(8) == b"mute0400"
        await asyncio.sleep(0.1)
        assert server.memory.used_bytes == 0
        [connection] = broker.connections
        assert len(connection._inbox) <= RECEIVE_BUFFER_BYTES
        assert await reader.readexactly(8) == b"large..."
        assert broker.times[1] - broker.times[0] >= 0.4
        await until(lambda: server.memory.used_bytes == 0)

    run(scenario)


def test_a_connection_that_is_muted_again_waits_for_the_later_end():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"mute0100"))
        assert await reader.readexactly(8) == b"mute0100"
        broker.connections[0].mute(0.3)
        writer.write(frame(ORDINARY, b"next...."))
        assert await reader.readexactly(8) == b"next...."
        assert broker.times[1] - broker.times[0] >= 0.3

    run(scenario)


def test_answers_to_earlier_requests_are_sent_meanwhile():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(PIPELINED, b"later...") + frame(PIPELINED, b"mute9000"))
        await until(lambda: len(broker.served) == 2)
        broker.later[0].answer([b"answer.."])
        assert await reader.readexactly(16) == b"answer..mute9000"

    run(scenario)


def test_a_muted_connection_is_closed_with_its_listener():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"mute9000") + frame(ORDINARY, b"never..."))
        assert await reader.readexactly(8) == b"mute9000"
        [connection] = broker.connections
        connection.close()
        connection.mute(1.0)
        assert await reader.read() == b""
        assert server.connection_count == 0
        assert broker.served == [b"mute9000"]

    run(scenario)


def test_a_peer_that_hangs_up_while_it_is_muted_is_noticed_afterwards():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"mute0200"))
        assert await reader.readexactly(8) == b"mute0200"
        writer.close()
        await asyncio.sleep(0.05)
        assert server.connection_count == 1
        await until(lambda: server.connection_count == 0)

    run(scenario)


def test_a_muted_connection_isnt_taken_for_a_slow_one():
    """While memory is short, connections that are too slow with their frames are closed. A muted one waits for the
    broker."""

    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"mute0300"))
        assert await reader.readexactly(8) == b"mute0300"
        assert broker.connections[0].waits_for_broker
        await asyncio.sleep(0.35)
        assert not broker.connections[0].waits_for_broker

    run(scenario)


def test_other_connections_are_served_meanwhile():
    async def scenario(server, port, broker):
        muted, others = await connect(port), await connect(port)
        muted[1].write(frame(ORDINARY, b"mute9000") * 2)
        assert await muted[0].readexactly(8) == b"mute9000"
        for _ in range(100):
            others[1].write(frame(ORDINARY, b"other..."))
            assert await others[0].readexactly(8) == b"other..."

    run(scenario)


def test_the_time_of_a_metered_connection_has_its_moves_of_bytes():
    async def scenario(server, port, broker):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"first..."))
        assert await reader.readexactly(8) == b"first..."
        meter = broker.connections[0].metered()
        assert meter is broker.connections[0].metered()
        assert meter.take_ns() == 0
        writer.write(frame(ORDINARY, b"next...."))
        assert await reader.readexactly(8) == b"next...."
        spent = meter.take_ns()
        assert 0 < spent < 1e9
        assert meter.take_ns() == 0
        await asyncio.sleep(0.05)
        assert meter.take_ns() == 0, "a wait isn't work"

    run(scenario)
