"""The socket shell of a connection: framing, order of answers, limits, memory for half-received frames."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
from collections.abc import Callable

import pytest

from ottla.broker.log.disk import RealFile
from ottla.net.channel import Channel
from ottla.net.connection import (
    FULL_SECONDS,
    HELD_WHILE_FULL_BYTES_MAX,
    POSTPONED,
    Connection,
)
from ottla.net.memory import BufferedMemory
from ottla.net.pending import Pending
from ottla.net.server import Limits, Server, open_socket
from tests.unit.waiting import until

PIPELINED = 0
ORDINARY = 3


def frame(api_key: int, payload: bytes) -> bytes:
    body = struct.pack(">hhi", api_key, 0, 0) + payload.ljust(4, b".")
    return struct.pack(">i", len(body)) + body


class Echo:
    """Answers each frame with its payload. For a frame that begins with `later`, the test itself gives the answer."""

    def __init__(self) -> None:
        self.later: list[tuple[Pending, bytes]] = []
        self.served: list[bytes] = []

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int):
        (api_key,) = struct.unpack_from(">h", buffer, start)
        payload = bytes(buffer[start + 8 : end])
        self.served.append(payload)
        if payload.startswith(b"later"):
            pending = Pending(connection, api_key)
            self.later.append((pending, payload))
            return pending
        if payload.startswith(b"none"):
            return None
        if payload.startswith(b"file"):
            return [b"head", *file_parts()]
        if payload.startswith(b"large"):
            return [bytes(int(payload[5:]))]
        if payload.startswith(b"full"):
            connection._out._channel = OnceFull(connection._out._channel)
        return [payload]


class Slice:
    def __init__(self, file, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size


class OnceFull:
    """A channel that takes no bytes at the first call."""

    def __init__(self, real: Channel) -> None:
        self._real = real
        self._refused = False

    def send(self, data, *, more: bool) -> int:
        if not self._refused:
            self._refused = True
            raise BlockingIOError
        return self._real.send(data, more=more)

    def __getattr__(self, name: str):
        return getattr(self._real, name)


def file_parts() -> list[Slice]:
    with tempfile.TemporaryFile() as temporary:
        file = RealFile(os.dup(temporary.fileno()))
    file.pwrite(bytes(range(256)) * 8192, 0)
    return [Slice(file, 256, 2 * 1024 * 1024 - 512)]


def run(scenario: Callable, **limits) -> None:
    async def main() -> None:
        echo = Echo()
        server = Server(echo, Limits(**limits), frozenset({PIPELINED}))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        server.accept()
        try:
            await asyncio.wait_for(scenario(server, listener.port, echo), 60)
        finally:
            await server.close()

    asyncio.run(main())


async def connect(port: int):
    return await asyncio.open_connection("127.0.0.1", port)


def test_frames_arrive_whole_in_pieces_and_together():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        data = frame(ORDINARY, b"one!") + frame(ORDINARY, b"x" * 300_000) + frame(ORDINARY, b"two!")
        for position in range(40):
            writer.write(data[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(data[40:])
        assert await reader.readexactly(4) == b"one!"
        assert await reader.readexactly(300_000) == b"x" * 300_000
        assert await reader.readexactly(4) == b"two!"

    run(scenario)


def test_a_client_that_asks_and_waits_keeps_the_loop_awake_for_a_moment():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        for _ in range(2000):
            writer.write(frame(ORDINARY, b"next"))
            assert await reader.readexactly(4) == b"next"
        looked = server.busy_poll.looked_seconds
        assert looked
        await asyncio.sleep(0.1)
        assert server.busy_poll.looked_seconds < looked + 0.01, "the loop sleeps again"

    run(scenario)


def test_answers_keep_the_order_of_the_requests():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(PIPELINED, b"later-1") + frame(PIPELINED, b"now2") + frame(ORDINARY, b"then"))
        await asyncio.sleep(0.1)
        assert echo.served == [b"later-1", b"now2"], "an ordinary request starts only after all answers before it"
        echo.later[0][0].answer([b"late"])
        assert await reader.readexactly(12) == b"latenow2then"

    run(scenario)


def test_an_ordinary_request_waits_for_an_ordinary_one():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"later-1") + frame(ORDINARY, b"next") + frame(PIPELINED, b"prod"))
        await asyncio.sleep(0.05)
        assert echo.served == [b"later-1"]
        echo.later[0][0].answer([b"late"])
        assert await reader.readexactly(12) == b"latenextprod"

    run(scenario)


def test_pipelined_requests_pass_one_that_lets_them():
    """The later requests are served while the first one waits, but their answers follow the first one's answer."""

    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"later1"))
        await until(lambda: echo.later != [])
        (pending, payload), *_ = echo.later
        writer.write(frame(PIPELINED, b"pro1") + frame(PIPELINED, b"pro2"))
        await asyncio.sleep(0.02)
        assert echo.served == [b"later1"]
        pending.let_others_start()
        await until(lambda: echo.served == [b"later1", b"pro1", b"pro2"])
        writer.write(frame(PIPELINED, b"pro3") + frame(ORDINARY, b"next"))
        await until(lambda: echo.served[-1] == b"pro3")
        await asyncio.sleep(0.02)
        assert echo.served[-1] == b"pro3", "an ordinary request waits for its turn"
        pending.answer([payload])
        expected = b"later1pro1pro2pro3next"
        assert await reader.readexactly(len(expected)) == expected

    run(scenario)


@pytest.mark.parametrize("first", [True, False], ids=["after", "before"])
def test_who_answers_hears_that_a_request_cannot_start_before(first):
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        later, behind = frame(ORDINARY, b"later1"), frame(ORDINARY, b"next")
        writer.write(later if first else later + behind)
        await until(lambda: echo.later != [])
        (pending, payload), *_ = echo.later
        hurried = []
        pending.hurry = lambda: hurried.append(pending.behind)
        if first:
            await asyncio.sleep(0.02)
            assert pending.behind is None
            assert not hurried
            writer.write(behind)
            await until(lambda: hurried == [ORDINARY])
        else:
            await until(lambda: pending.behind == ORDINARY)
        pending.answer([payload])
        assert await reader.readexactly(10) == b"later1next"

    run(scenario)


def test_a_file_range_is_sent_whole_to_a_slow_reader():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"file") + frame(ORDINARY, b"tail"))
        await asyncio.sleep(0.1)
        data = await reader.readexactly(4 + 2 * 1024 * 1024 - 512 + 4)
        assert data[:4] == b"head"
        assert data[4:-4] == (bytes(range(256)) * 8192)[256:-256]
        assert data[-4:] == b"tail"

    run(scenario)


def test_a_socket_without_any_room_loses_nothing():
    """The socket takes no bytes at first, as after a file range that has filled its buffer."""

    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"full"))
        assert await reader.readexactly(4) == b"full"

    run(scenario)


@pytest.mark.parametrize("size", [0, -1, 9, 1001, 2**31 - 1])
def test_impossible_sizes_close_the_connection(size):
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(struct.pack(">i", size) + b"x" * 20)
        assert await reader.read() == b""
        assert server.connection_count == 0

    run(scenario, frame_bytes_max=1000)


def test_a_connection_too_many_is_refused_and_the_others_stay():
    async def scenario(server, port, echo):
        first = await connect(port)
        second = await connect(port)
        await asyncio.sleep(0.02)
        third = await connect(port)
        assert await third[0].read() == b""
        for reader, writer in (first, second):
            writer.write(frame(ORDINARY, b"here"))
            assert await reader.readexactly(4) == b"here"
        first[1].close()
        await asyncio.sleep(0.05)
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"here"))
        assert await reader.readexactly(4) == b"here"

    run(scenario, connections_per_ip_max=2)


def test_announced_frames_hold_no_more_memory_than_the_budget():
    async def scenario(server, port, echo):
        greedy = []
        for _ in range(40):
            _, writer = await connect(port)
            writer.write(struct.pack(">i", 50_000_000) + b"x" * 1000)
            greedy.append(writer)
        await asyncio.sleep(0.2)
        assert server.memory.used_bytes <= 120_000_000
        assert server.memory.waiting == 38
        reader, writer = await connect(port)
        for _ in range(100):
            writer.write(frame(ORDINARY, b"quick"))
            assert await reader.readexactly(5) == b"quick"
        for sender in greedy:
            sender.close()
        await asyncio.sleep(0.2)
        assert server.memory.used_bytes == 0
        assert server.memory.waiting == 0

    run(scenario, buffered_memory_bytes=120_000_000)


def test_a_connection_that_waited_for_memory_is_served_afterwards():
    async def scenario(server, port, echo):
        _, holder = await connect(port)
        holder.write(struct.pack(">i", 900_000) + b"x" * 1000)
        await asyncio.sleep(0.05)
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"y" * 500_000))
        await asyncio.sleep(0.05)
        assert server.memory.waiting == 1
        holder.close()
        assert await reader.readexactly(500_000) == b"y" * 500_000

    run(scenario, buffered_memory_bytes=1_000_000)


def test_large_frames_that_wait_for_an_answer_count_in_the_budget():
    async def scenario(server, port, echo):
        streams = [await connect(port) for _ in range(5)]
        for _, writer in streams:
            writer.write(frame(ORDINARY, b"later") + frame(ORDINARY, b"y" * 400_000))
        await until(lambda: len(echo.later) == 5)
        await asyncio.sleep(0.1)
        held = [connection._inbox for connection in server.listeners["PLAINTEXT"].connections]
        assert sum(len(inbox or b"") >= 400_000 for inbox in held) == 2
        assert server.memory.waiting == 3
        for pending, payload in echo.later:
            pending.answer([payload])
        for reader, _ in streams:
            assert await reader.readexactly(400_005) == b"later" + b"y" * 400_000
        await until(lambda: not server.memory.used_bytes and not server.memory.waiting)

    run(scenario, buffered_memory_bytes=1_000_000)


@pytest.mark.parametrize(("api_key", "stays"), [(PIPELINED, True), (ORDINARY, False)])
def test_a_connection_that_waits_for_the_broker_itself_is_not_closed_as_slow(api_key, stays):
    """Either the broker works for minutes on an earlier request of the connection, or the connection has to wait until
    there is memory for its next frame."""

    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(api_key, b"later") + frame(api_key, b"y" * 400_000))
        await until(lambda: len(echo.later) == 1)
        await until(lambda: server.memory.used_bytes > 400_000)
        [connection] = server.listeners["PLAINTEXT"].connections
        await until(lambda: connection._blocked)
        _, other = await connect(port)
        other.write(frame(api_key, b"z" * 400_000))
        await until(lambda: server.memory.waiting == 1)
        server._sweep_once(asyncio.get_running_loop().time() + 1000)
        await until(lambda: not server._sweeps.waiting)
        assert not connection.closed if stays else connection.closed
        if stays:
            [(pending, payload)] = echo.later
            pending.answer([payload])
            assert await reader.readexactly(400_005) == b"later" + b"y" * 400_000
        await until(lambda: server.memory.waiting == 0)

    run(scenario, buffered_memory_bytes=500_000, unanswered_max=1)


def test_who_takes_nothing_of_an_answer_is_idle():
    async def scenario(server, port, echo):
        _, writer = await connect(port)
        writer.write(frame(ORDINARY, b"large30000000"))
        await until(lambda: bool(server.connection_count))
        await until(lambda: not server.connection_count)

    run(scenario, idle_seconds_max=1.0)


def test_a_negative_bound_on_idling_is_none():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        await asyncio.sleep(1.5)
        writer.write(frame(ORDINARY, b"here"))
        assert await reader.readexactly(4) == b"here"

    run(scenario, idle_seconds_max=-1.0)


def test_an_idle_connection_is_closed():
    async def scenario(server, port, echo):
        reader, _ = await connect(port)
        assert await asyncio.wait_for(reader.read(), 6) == b""

    run(scenario, idle_seconds_max=1.0)


def test_who_holds_memory_too_slowly_is_named_only_while_others_wait():
    memory = BufferedMemory(100)
    assert memory.acquire("slow", 80, now=0.0)
    assert memory.overdue(now=1000.0) == []
    granted = []
    assert not memory.acquire("next", 50, now=1.0)
    memory.wait("next", 50, lambda: granted.append(True))
    assert memory.overdue(now=5.0) == []
    assert memory.overdue(now=11.0) == ["slow"]
    memory.release("slow", now=12.0)
    assert granted == [True]
    assert memory.used_bytes == 50


def test_unanswered_bytes_stop_the_reading():
    count = 3000  # 30 MB: more than the kernel's own buffers can take

    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        request = frame(PIPELINED, b"later".ljust(10_000, b"."))
        writer.write(request * count)
        await asyncio.sleep(0.1)
        assert len(echo.later) == 3, "the third request passes the limit"
        (connection,) = server.listeners["PLAINTEXT"].connections
        assert len(connection._inbox) < 300_000
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.2)
        answered = 0
        while answered < count:
            for pending, payload in echo.later[answered:]:
                pending.answer([payload[:5]])
                answered += 1
            await asyncio.sleep(0)
        assert await reader.readexactly(count * 5) == b"later" * count

    run(scenario, unanswered_bytes_max=25_000)


def test_answered_requests_behind_an_unanswered_one_let_others_pass():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(PIPELINED, b"later") + frame(PIPELINED, b"now1") + frame(PIPELINED, b"now2"))
        await asyncio.sleep(0.05)
        assert echo.served == [b"later", b"now1", b"now2"]
        echo.later[0][0].answer([b"late"])
        assert await reader.readexactly(12) == b"latenow1now2"

    run(scenario)


def test_who_does_not_read_answers_holds_few_of_them():
    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"large100000") * 5000)
        await asyncio.sleep(0.3)
        (connection,) = server.listeners["PLAINTEXT"].connections
        held = connection._out.held_bytes
        assert 0 < held <= 33 * 100_000
        assert server.memory.used_bytes >= held
        served = len(echo.served)
        await asyncio.sleep(0.1)
        assert len(echo.served) == served, "no request is served before answers are taken"
        for _ in range(5000):
            assert len(await reader.readexactly(100_000)) == 100_000
        await asyncio.sleep(0.05)
        assert server.memory.used_bytes == 0

    run(scenario)


def test_large_answers_wait_for_room_and_small_ones_do_not():
    """Fifty clients ask for 20 MB each and don't read. Only as many answers are made as the budget has room for."""

    async def scenario(server, port, echo):
        server.memory.answered(ORDINARY, 20_000_000)
        greedy = []
        for _ in range(50):
            _, writer = await connect(port)
            writer.write(frame(ORDINARY, b"large20000000"))
            greedy.append(writer)
        await asyncio.sleep(0.3)
        assert len(echo.served) <= 7
        assert 0 < server.memory.used_bytes <= 120_000_000
        reader, writer = await connect(port)
        for _ in range(100):
            writer.write(frame(PIPELINED, b"quick"))
            assert await reader.readexactly(5) == b"quick"
        for sender in greedy[:25]:
            sender.transport.abort()
        await until(lambda: len(echo.served) >= 100 + 25)
        for sender in greedy:
            sender.transport.abort()
        await until(lambda: not server.memory.used_bytes and not server.memory.waiting)

    run(scenario, buffered_memory_bytes=120_000_000)


def test_who_waits_for_room_is_served_when_others_have_read():
    async def scenario(server, port, echo):
        server.memory.answered(ORDINARY, 20_000_000)
        clients = [await connect(port) for _ in range(10)]
        for _, writer in clients:
            writer.write(frame(ORDINARY, b"large20000000") + frame(PIPELINED, b"next"))
        await asyncio.sleep(0.1)
        assert len(echo.served) < 10
        for reader, _ in clients:
            await reader.readexactly(20_000_000)
            assert await reader.readexactly(4) == b"next"
        await asyncio.sleep(0.05)
        assert server.memory.used_bytes == 0

    run(scenario, buffered_memory_bytes=50_000_000)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"GET / HTTP/1.1", "speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "speaks TLS"),
        (b"\xff\xff\xff\xff", "allowed are 10"),
    ],
)
def test_the_reason_for_closing_names_a_protocol_that_is_not_kafkas(first, words, caplog):
    caplog.set_level("INFO", "ottla.net")

    async def scenario(server, port, echo):
        reader, writer = await connect(port)
        writer.write(first)
        assert await reader.read() == b""

    run(scenario)
    assert words in caplog.text


async def full_both_ways(server: Server, port: int, echo: Echo, size: int, count: int):
    """A client that sends this many requests and takes no answers, and its connection when no bytes move any more.
    After the kernel's buffers were full for the first time, they still take some bytes for a while."""
    reader, writer = await connect(port)
    writer.transport.pause_reading()
    writer.write(frame(PIPELINED, b"x" * size) * count)
    await until(lambda: bool(server.listeners["PLAINTEXT"].connections))
    (connection,) = server.listeners["PLAINTEXT"].connections
    looks = 0
    while looks < 50:  # a number of looks, not a time, because this process may get no CPU on a busy machine
        served = len(echo.served)
        await asyncio.sleep(FULL_SECONDS / 10)
        still = connection._out.full and not connection._reading and len(echo.served) == served
        looks = looks + 1 if still else 0
    return reader, writer, connection


def test_full_both_ways_it_takes_what_has_arrived_up_to_a_bound(monkeypatch):
    """While the receive queue is full, no TCP acknowledgements arrive, and without these no answers can be sent. So the
    connection takes bytes from the queue, although it can serve no more requests."""
    count = 40_000  # 40 MB of requests, and as many bytes of answers
    copied: list[int] = []
    keep = Connection._keep

    def counted(connection, buffer, position, end):
        copied.append(end - position)
        keep(connection, buffer, position, end)

    monkeypatch.setattr(Connection, "_keep", counted)

    async def scenario(server, port, echo):
        reader, writer, connection = await full_both_ways(server, port, echo, 1000, count)
        served = len(echo.served)
        await until(lambda: connection._have >= HELD_WHILE_FULL_BYTES_MAX)
        await asyncio.sleep(3 * FULL_SECONDS)
        assert connection._have < HELD_WHILE_FULL_BYTES_MAX + len(server.receive_buffer)
        assert server.memory.used_bytes >= connection._have
        assert len(echo.served) == served, "the bytes are taken, but no request is served"
        copied.clear()
        writer.transport.resume_reading()
        assert await reader.readexactly(1000 * count) == b"x" * (1000 * count)
        assert server.memory.used_bytes == 0
        assert max(copied) <= len(server.receive_buffer), "waiting bytes aren't copied for each request"

    run(scenario, send_buffer_bytes=102_400, receive_buffer_bytes=102_400)


def test_full_both_ways_without_room_in_the_budget_nothing_is_taken():
    async def scenario(server, port, echo):
        _, writer, connection = await full_both_ways(server, port, echo, 1000, 40_000)
        held = connection._have
        await asyncio.sleep(3 * FULL_SECONDS)
        assert connection._have == held
        writer.transport.abort()
        await until(lambda: connection.closed)

    run(scenario, buffered_memory_bytes=300_000, send_buffer_bytes=102_400, receive_buffer_bytes=102_400)


def test_full_both_ways_who_sends_no_more_still_gets_its_answers():
    count = 6000

    async def scenario(server, port, echo):
        reader, writer, connection = await full_both_ways(server, port, echo, 100, count)
        writer.write_eof()
        await asyncio.sleep(3 * FULL_SECONDS)
        assert not connection.closed
        writer.transport.resume_reading()
        await reader.readexactly(100 * 1000)

    run(scenario, send_buffer_bytes=102_400, receive_buffer_bytes=102_400)


@pytest.mark.parametrize(("setting", "fixed"), [(-1, None), (102_400, 204_800)], ids=["the system's", "fixed"])
def test_receive_buffers_are_the_systems_to_size_unless_a_size_is_set(setting, fixed):
    def size(sock: socket.socket) -> int:
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)  # Linux doubles the size for its own bookkeeping

    with socket.create_server(("127.0.0.1", 0)) as untouched:
        expected = fixed or size(untouched)
    listening = asyncio.run(open_socket("127.0.0.1", 0, Limits(receive_buffer_bytes=setting)))
    with listening, socket.create_connection(listening.getsockname()):
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            assert size(listening) == expected
            assert (size(accepted) == 204_800) == (setting == 102_400)


def test_a_request_without_memory_for_its_work_waits_and_so_does_what_follows_it():
    """While the request waits, no more bytes are read from its connection, and the answers keep their order."""

    class Working(Echo):
        """A request `work123` needs 123 bytes of memory for its work."""

        def __init__(self) -> None:
            super().__init__()
            self.works = []

        def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int):
            payload = bytes(buffer[start + 8 : end])
            if not payload.startswith(b"work"):
                return super().__call__(connection, buffer, start, end)
            work = connection.begin_work(int(payload[4:]))
            if work is None:
                return POSTPONED
            pending = Pending(connection, PIPELINED)
            self.works.append((work, pending, payload))
            return pending

        def finish(self) -> None:
            work, pending, payload = self.works.pop(0)
            work.end(0.0)
            pending.answer([payload])

    async def scenario() -> None:
        echo = Working()
        server = Server(echo, Limits(buffered_memory_bytes=1000), frozenset({PIPELINED}))
        port = (await server.listen("PLAINTEXT", "127.0.0.1", 0)).port
        server.accept()
        first_reader, first = await connect(port)
        second_reader, second = await connect(port)
        first.write(frame(PIPELINED, b"work700") + frame(PIPELINED, b"work600") + frame(PIPELINED, b"after"))
        await until(lambda: server.memory.waiting == 1)
        second.write(frame(PIPELINED, b"work500"))
        second.write(frame(PIPELINED, b"then"))
        await until(lambda: server.memory.waiting == 2)
        assert echo.served == []
        assert [payload for _, _, payload in echo.works] == [b"work700"]
        echo.finish()
        assert await first_reader.readexactly(7) == b"work700"
        await until(lambda: len(echo.works) == 1)
        await until(lambda: echo.served == [b"after"])
        assert server.memory.used_bytes == 600
        echo.finish()
        assert await first_reader.readexactly(12) == b"work600after"
        await until(lambda: len(echo.works) == 1)
        first.write(frame(PIPELINED, b"work900"))
        await until(lambda: server.memory.waiting == 1)
        first.close()
        echo.finish()
        assert await second_reader.readexactly(11) == b"work500then"
        await until(lambda: len(echo.works) == 1)
        echo.finish()  # its connection is closed already
        await until(lambda: server.connection_count == 1)
        assert (server.memory.used_bytes, server.memory.waiting) == (0, 0)
        second.close()
        await server.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))
