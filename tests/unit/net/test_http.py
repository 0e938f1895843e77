"""The HTTP server against a plain socket: routes, bounds, and clients that hang or send nonsense."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ottla.net import http
from ottla.net.http import HttpServer, Request, Response


async def echo(request: Request) -> Response:
    return Response(200, f"{request.method} {request.path} {request.query} {request.body!r}".encode())


async def pieces(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            yield f"{number}\n".encode()
            await asyncio.sleep(0)

    return Response(200, parts())


async def broken(request: Request) -> Response:
    raise RuntimeError("a bug")


ROUTES = {
    ("GET", "/a"): echo,
    ("POST", "/a"): echo,
    ("GET", "/v1/"): echo,
    ("GET", "/p"): pieces,
    ("GET", "/x"): broken,
}


def ask(*requests: bytes) -> list[bytes]:
    """The complete answer to each request, one after another."""

    async def exchange(port: int) -> list[bytes]:
        answers = []
        for request in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            answers.append(await asyncio.wait_for(reader.read(), 5))
            writer.close()
        return answers

    return serving(exchange)


def serving(client: Callable[[int], Awaitable[list[bytes]]]) -> list[bytes]:
    async def run() -> list[bytes]:
        server = HttpServer(ROUTES)
        port = await server.start("127.0.0.1", 0)
        try:
            return await client(port)
        finally:
            await server.stop()
            assert len(asyncio.all_tasks()) == 1

    return asyncio.run(run())


def test_routes() -> None:
    exact, below, pieced, head = ask(
        b"GET /a?x=1&y=%C3%A4 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /v1/topics/t HTTP/1.1\r\n\r\n",
        b"GET /p HTTP/1.1\r\n\r\n",
        b"HEAD /a HTTP/1.0\r\n\r\n",
    )
    assert exact.startswith(b"HTTP/1.1 200 OK\r\n")
    assert exact.endswith("GET /a {'x': '1', 'y': 'ä'} b''".encode())
    assert below.endswith(b"GET /v1/topics/t {} b''")
    assert pieced.endswith(b"\r\n\r\n0\n1\n2\n")
    assert head.endswith(b"\r\n\r\n")


def test_a_body_is_read() -> None:
    (answer,) = ask(b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
    assert answer.endswith(b"b'abc'")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b"404"),
        (b"DELETE /a HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /x HTTP/1.1\r\n\r\n", b"500"),
        (b"what is this\r\n\r\n", b"400"),
        (b"GET /a HTTP/2\r\n\r\n", b"400"),
        (b"GET /a HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"POST /a HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST /a HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"GET /a HTTP/1.1\r\nX: " + b"x" * 40000 + b"\r\n\r\n", b"431"),
    ],
)
def test_nonsense_gets_an_answer(request_: bytes, status: bytes) -> None:
    (answer,) = ask(request_)
    assert answer.startswith(b"HTTP/1.1 " + status)


def test_a_silent_client_is_dropped_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.1)

    async def exchange(port: int) -> list[bytes]:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        try:
            dropped = await asyncio.wait_for(silent.read(), 5)
        except ConnectionResetError:
            dropped = b""
        return [answer, dropped]

    answer, dropped = serving(exchange)
    assert answer.startswith(b"HTTP/1.1 200")
    assert dropped == b""


def test_an_address_of_ipv6_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = http._listening

    def without_ipv6(family: int, address: tuple[Any, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return real(family, address)

    monkeypatch.setattr(http, "_listening", without_ipv6)

    async def main() -> None:
        server = HttpServer(ROUTES)
        port = await server.start("", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await server.stop()

    asyncio.run(main())


def test_a_port_that_is_in_use_is_an_error() -> None:
    async def main() -> None:
        first, second = HttpServer(ROUTES), HttpServer(ROUTES)
        port = await first.start("127.0.0.1", 0)
        with pytest.raises(OSError, match="in use"):
            await second.start("127.0.0.1", port)
        await first.stop()
        assert await second.start("127.0.0.1", port) == port
        await second.stop()

    asyncio.run(main())


class Closed:
    """A door that lets nobody in but readers of /a."""

    def context(self) -> None: ...

    async def refusal(self, request: Request) -> Response | None:
        refused = Response(401, b"no\n", headers={"WWW-Authenticate": "Basic"})
        return None if request.path == "/a" else refused


def test_a_door_refuses_before_a_path_is_looked_for() -> None:
    async def main() -> None:
        server = HttpServer(ROUTES, Closed())
        port = await server.start("127.0.0.1", 0)
        for path, expected in ((b"/a", b"HTTP/1.1 200"), (b"/v1/x", b"HTTP/1.1 401"), (b"/nowhere", b"HTTP/1.1 401")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET " + path + b" HTTP/1.1\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(expected)
            assert (b"WWW-Authenticate: Basic\r\n" in answer) == answer.startswith(b"HTTP/1.1 401")
            writer.close()
        await server.stop()

    asyncio.run(main())
