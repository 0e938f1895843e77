"""A broker's connection to another broker, over a scripted stream and over a real socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.net.peer import BUFFER_BYTES, Peer
from ottla.net.streams import Stream, connect_tcp
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frames import read_request_header, response_frame

FETCH, VERSION = 1, 17
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def correlation_id_of(reader: asyncio.StreamReader) -> int:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    key, version, correlation_id, client_id, _ = read_request_header(await reader.readexactly(size))
    assert (key, version, client_id) == (FETCH, VERSION, "me")
    return correlation_id


def with_server(serve: Serve, client: Callable[[Peer], Coroutine[Any, Any, None]]) -> int:
    """Runs `client` against a server; returns the number of connections that the client opened."""
    connections = 0

    async def main() -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        peer = Peer(connect_tcp, "127.0.0.1", server.sockets[0].getsockname()[1], "me")
        try:
            await asyncio.wait_for(client(peer), 10)
        finally:
            peer.close()
            server.close()

    asyncio.run(main())
    return connections


async def echo_size(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers five requests with bodies of different sizes, the largest one in between."""
    for size in (0, 10, 3 * BUFFER_BYTES, 40 * BUFFER_BYTES, 5):
        writer.write(response_frame(FETCH, VERSION, await correlation_id_of(reader), b"x" * size))
        await writer.drain()


def test_one_connection_serves_requests_of_any_size() -> None:
    async def client(peer: Peer) -> None:
        for size in (0, 10, 3 * BUFFER_BYTES, 40 * BUFFER_BYTES, 5):
            answer = await peer.request(FETCH, VERSION, b"body", 5)
            assert answer.frame[answer.start : answer.end] == b"x" * size
        assert len(answer.frame) == BUFFER_BYTES  # the memory of the large answer was given back
        assert peer.connected

    assert with_server(echo_size, client) == 1


def test_a_deadline_closes_the_connection_and_the_next_request_opens_another() -> None:
    silent = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal silent
        correlation_id = await correlation_id_of(reader)
        if silent:
            silent = False
            await reader.read()
            return
        writer.write(response_frame(FETCH, VERSION, correlation_id, b"now"))
        await writer.drain()

    async def client(peer: Peer) -> None:
        with pytest.raises(TimeoutError):
            await peer.request(FETCH, VERSION, b"", 0.05)
        assert not peer.connected
        answer = await peer.request(FETCH, VERSION, b"", 5)
        assert answer.frame[answer.start : answer.end] == b"now"

    assert with_server(serve, client) == 2


def test_a_request_without_hope_can_be_ended() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def client(peer: Peer) -> None:
        waiting = asyncio.ensure_future(peer.request(FETCH, VERSION, b"", 60))
        await asyncio.sleep(0.05)
        assert peer.give_up()
        with pytest.raises(TimeoutError):
            await waiting
        assert not peer.give_up()  # no request is under way

    with_server(serve, client)


def test_an_answer_that_comes_is_taken() -> None:
    begun, come = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = response_frame(FETCH, VERSION, await correlation_id_of(reader), b"slowly")
        writer.write(answer[:8])
        begun.set()
        await come.wait()
        writer.write(answer[8:])
        await writer.drain()

    async def client(peer: Peer) -> None:
        waiting = asyncio.ensure_future(peer.request(FETCH, VERSION, b"", 5))
        await begun.wait()
        await asyncio.sleep(0.1)
        assert not peer.give_up()
        come.set()
        answer = await waiting
        assert answer.frame[answer.start : answer.end] == b"slowly"

    with_server(serve, client)


def test_a_cancelled_request_closes_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def client(peer: Peer) -> None:
        waiting = asyncio.ensure_future(peer.request(FETCH, VERSION, b"", 60))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert not peer.connected

    with_server(serve, client)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (struct.pack(">ii", 4, 99), ProtocolError),  # the answer to another request
        (struct.pack(">i", 2), ProtocolError),
        (struct.pack(">i", -1), ProtocolError),
        (struct.pack(">ii", 100, 1), ConnectionError),  # half a frame
        (b"", ConnectionError),
    ],
)
def test_nonsense_closes_the_connection(answer: bytes, error: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await correlation_id_of(reader)
        writer.write(answer)
        await writer.drain()

    async def client(peer: Peer) -> None:
        with pytest.raises(error):
            await peer.request(FETCH, VERSION, b"", 5)
        assert not peer.connected

    with_server(serve, client)


def test_who_cant_be_reached_is_an_os_error() -> None:
    async def refuse(host: str, port: int) -> Stream:
        raise ConnectionRefusedError(f"{host}:{port}")

    async def main() -> None:
        with pytest.raises(OSError, match="nobody:1"):
            await Peer(refuse, "nobody", 1, "me").request(FETCH, VERSION, b"", 5)
        with pytest.raises(ConnectionRefusedError):
            await connect_tcp("127.0.0.1", 1)

    asyncio.run(main())


@pytest.mark.parametrize("addresses", [("127.0.0.1", "255.255.255.255"), ("255.255.255.255", "127.0.0.1")])
def test_refused_is_only_who_is_refused_everywhere(addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If one address refuses the connection, and another one fails in another way, the broker may still be alive at
    that other address."""

    async def main() -> None:
        async def found(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        with pytest.raises(OSError, match=r"unreachable|denied") as raised:
            await connect_tcp("both", 1)
        assert not isinstance(raised.value, ConnectionRefusedError)

    asyncio.run(main())
