"""The HTTP server against a plain socket: routes, bounds, and clients that hang or send nonsense."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.net import http
from ottla.net.http import Handler, HttpServer, Request, Response
from ottla.net.turns import Turns
from tests.peers.certificates import Authority


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


ROUTES: dict[tuple[str, str], Handler] = {
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


@pytest.mark.parametrize("request_", [b"GET /a HT", b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"])
def test_an_incomplete_request_is_none(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(port: int) -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        writer.write_eof()
        return [await asyncio.wait_for(reader.read(), 5)]

    assert serving(exchange) == [b""]
    assert not caplog.records


def test_an_answer_reaches_a_client_that_reads_slowly() -> None:
    async def large(request: Request) -> Response:
        return Response(200, bytes(8_000_000))

    async def main() -> None:
        server = HttpServer({("GET", "/a"): large})
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        assert len((await reader.read()).partition(b"\r\n\r\n")[2]) == 8_000_000
        writer.close()
        await server.stop()

    asyncio.run(main())


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


def test_a_body_isnt_read_for_a_client_that_is_refused() -> None:
    async def main() -> None:
        server = HttpServer(ROUTES, Closed())
        port = await server.start("127.0.0.1", 0)
        for path, answer in ((b"/x", b"HTTP/1.1 401"), (b"/a", b"HTTP/1.1 405")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            method = b"POST" if path == b"/x" else b"PUT"
            writer.write(method + b" " + path + b" HTTP/1.1\r\nContent-Length: 500000\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), 0.9)).startswith(answer)
            writer.close()
        await server.stop()

    asyncio.run(main())


class Encrypted:
    """A door with TLS. It notes in which iteration of the event loop each handshake takes its first step."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self.trust = ssl.create_default_context(cafile=str(authority.trust))
        self.iteration = 0
        self.steps: list[int] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(str(authority.issue("pages")))

    def context(self) -> Any:
        return self

    def wrap_bio(self, *given: Any, **how: Any) -> ssl.SSLObject:
        self.steps.append(self.iteration)
        return self._context.wrap_bio(*given, **how)

    def count(self) -> None:
        self.iteration += 1
        asyncio.get_running_loop().call_soon(self.count)

    async def refusal(self, request: Request) -> None: ...

    def hello(self) -> bytes:
        outgoing = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            self.trust.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()


def test_handshakes_have_turns_which_no_silent_client_holds(tmp_path: Path) -> None:
    door = Encrypted(tmp_path)

    async def main() -> None:
        server = HttpServer(ROUTES, door)
        server._handshakes.turns = Turns(seconds=0)
        port = await server.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        hello = door.hello()
        door.count()
        for number, (_, writer) in enumerate(silent):
            writer.write(hello if number else hello[:1])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=door.trust, server_hostname="localhost", ssl_handshake_timeout=4
        )
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        assert len(door.steps) == len(set(door.steps)) == 31
        for _, each in [*silent, (reader, writer)]:
            each.close()
        await server.stop()

    asyncio.run(main())


def test_an_encrypted_connection_ends_with_its_answer_though_the_client_says_no_goodbye(tmp_path: Path) -> None:
    door = Encrypted(tmp_path)

    def ask_and_stay(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port))
        encrypted = door.trust.wrap_socket(plain, server_hostname="localhost")
        encrypted.sendall(b"GET /a HTTP/1.1\r\n\r\n")
        while encrypted.recv(4096):
            pass
        return encrypted

    def established(port: int) -> int:
        lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
        return sum(each[1].endswith(f":{port:04X}") and each[3] == "01" for each in lines)

    async def main() -> None:
        server = HttpServer(ROUTES, door)
        port = await server.start("127.0.0.1", 0)
        client = await asyncio.to_thread(ask_and_stay, port)
        await asyncio.sleep(0.05)
        assert established(port) == 0
        client.close()
        await server.stop()

    asyncio.run(main())
