"""A small HTTP/1.1 server on a process's own event loop, for metrics, health and the paths below /v1/.

Each broker, controller and operator has such a server. It serves the methods and paths of its routes, and HEAD where it
serves GET, one request per connection. The sizes of a request's head and body, its time, and the number of connections
are bounded; a connection counts until its socket is closed. Long answers are sent in pieces, and between two pieces the
event loop does its other work.

A `Door` says whether connections are encrypted, and which requests are refused before their path is looked for. The
TLS context is asked for at each connection, so renewed certificates are in force at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from ottla.net.channel import PlainChannel
from ottla.net.handshakes import Handshakes
from ottla.net.http_streams import HeadTooLong, HttpStream
from ottla.net.tls import TlsChannel
from ottla.net.turns import Turns

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 1024 * 1024
REQUEST_SECONDS_MAX = 30.0
HEAD_SECONDS_MAX = 5.0  # a client that sends no request mustn't occupy one of the few connections for long
HANDSHAKE_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 64
LINGER_SECONDS = 1.0  # for a client that sends a body that nobody reads
_BACKLOG = 100
_PAUSE_SECONDS = 0.1  # after a connection that couldn't be accepted, because the process has too many open files


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, with the path decoded and without its query. Of the client it has the address, and the
    certificate (DER), which has been verified."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # by the header's name in lower case
    body: bytes = b""
    client_host: str = ""
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request. Its body is one piece, or an iterator of pieces."""

    status: int
    body: bytes | AsyncIterator[bytes]
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class Door(Protocol):
    """Says how clients come in."""

    def context(self) -> ssl.SSLContext | None:
        """TLS of a connection that begins now; None if it isn't encrypted."""

    async def refusal(self, request: Request) -> Response | None:
        """The answer to a request that isn't served; None if it is to be served. The body isn't read yet."""


class OpenDoor:
    """Lets everybody in, without TLS."""

    def context(self) -> None:
        """None."""

    async def refusal(self, request: Request) -> None:
        """None."""


class _Refused(Exception):
    """The request isn't served: the HTTP status and a sentence for the client."""

    def __init__(self, status: int, reason: str, rest: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.rest = rest  # not 0: the client may go on to send bytes, which nobody reads


class HttpServer:
    """Serves `routes`, which map (method, path) to a handler.

    A route whose path ends with `/` also serves all paths below it. Of several such routes, the one with the longest
    path serves the request.
    """

    def __init__(self, routes: dict[tuple[str, str], Handler], door: Door | None = None) -> None:
        self.routes = routes
        self._door = door or OpenDoor()
        self._listening: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = Handshakes()
        self._turns = Turns()

    async def start(self, host: str, port: int) -> int:
        """Opens the port (0: a free one) and returns it. Raises OSError."""
        sockets = await _opened(host, port)
        loop = asyncio.get_running_loop()
        self._listening = [loop.create_task(self._accept(each), name="HTTP connections") for each in sockets]
        bound: int = sockets[0].getsockname()[1]
        return bound

    async def start_at(self, listener: str) -> None:
        """Opens the port in `listener`, the setting `ottla.http.listener` as HOST:PORT. If it is empty, does nothing.

        Raises OSError.
        """
        host, separator, port = listener.rpartition(":")
        if separator:
            bound = await self.start(host.strip("[]"), int(port))
            scheme = "http" if self._door.context() is None else "https"
            logger.info("metrics and health at %s://%s:%d/", scheme, host or "0.0.0.0", bound)

    async def stop(self) -> None:
        """Closes the port, and aborts the requests under way."""
        tasks = [*self._listening, *self._tasks]
        self._listening = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listening)
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        await asyncio.sleep(_PAUSE_SECONDS)
                    continue  # any other error is that of one client, which is gone already
                if len(self._tasks) >= CONNECTIONS_MAX:
                    accepted.close()
                    continue
                task = loop.create_task(self._serve(accepted, address[0]), name="HTTP request")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket, client_host: str) -> None:
        context = self._door.context()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = PlainChannel(accepted) if context is None else TlsChannel(accepted, self._handshakes, self._turns)
        try:
            certificate = None
            if isinstance(channel, TlsChannel):
                async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                    certificate = await _secured(channel, context)
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await self._answer(HttpStream(channel), client_host, certificate)
        except OSError:  # among them TimeoutError and ssl.SSLError: the peer is too slow or gone, and gets no answer
            pass
        finally:
            channel.close()

    async def _answer(self, stream: HttpStream, client_host: str, certificate: bytes | None) -> None:
        method, rest = "GET", 0
        try:
            async with asyncio.timeout(HEAD_SECONDS_MAX):
                head = await stream.read_head(HEAD_BYTES_MAX)
            if head is None:
                return
            request, rest = _parsed(head, client_host, certificate)
            method = request.method
            response = await self._door.refusal(request)
            if response is None:
                handler = self._find(request)
                async with asyncio.timeout(HEAD_SECONDS_MAX):
                    body = await stream.read_exactly(rest)
                if body is None:
                    return
                rest = 0
                response = await handler(replace(request, body=body))
        except HeadTooLong:
            rest = 1
            response = Response(431, f"the request's head exceeds {HEAD_BYTES_MAX} bytes\n".encode())
        except _Refused as refused:
            rest = rest or refused.rest
            response = Response(refused.status, f"{refused.reason}\n".encode())
        except (asyncio.CancelledError, TimeoutError, ConnectionError, ssl.SSLError):
            raise
        except Exception:
            logger.exception("an HTTP request failed")
            response = Response(500, b"the process's log says more\n")
        await _write(stream, response, with_body=method != "HEAD")
        if rest:
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await stream.discard()

    def _find(self, request: Request) -> Handler:
        method = "GET" if request.method == "HEAD" else request.method
        paths = [request.path]
        parts = request.path.split("/")
        paths += ["/".join(parts[:count]) + "/" for count in range(len(parts) - 1, 0, -1)]
        for path in paths:
            if handler := self.routes.get((method, path)):
                return handler
        allowed = sorted({method for method, path in self.routes if path in paths})
        if allowed:
            raise _Refused(405, f"{request.path} accepts only {', '.join(allowed)}")
        known = ", ".join(sorted({path for _, path in self.routes}))
        raise _Refused(404, f"there is no path {request.path}; the paths are {known}")


async def _opened(host: str, port: int) -> list[socket.socket]:
    """Listening sockets at the addresses of the host, with the same port; on a machine without IPv6, at those of IPv4.
    Raises OSError if there is none, or if the port is in use."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in sorted({(family, address) for family, _, _, _, address in found}):
            chosen = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(_listening(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = error
        if not sockets:
            raise missing or OSError(f"{host} has no address")
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


async def _secured(channel: TlsChannel, context: ssl.SSLContext | None) -> bytes | None:
    """Waits for the end of the handshake, and returns the client's certificate. Raises ConnectionError."""
    assert context is not None
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def failed(reason: str) -> None:
        if not ended.done():
            ended.set_exception(ConnectionError(reason))

    channel.handshake(lambda: context, lambda _: None if ended.done() else ended.set_result(None), failed)
    await ended
    return channel.peer_certificate


def _parsed(head: bytes, client_host: str, certificate: bytes | None) -> tuple[Request, int]:
    """(the request without its body, the body's size). Raises _Refused."""
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    try:
        method, target, version = first.split(" ")
        parts = urlsplit(target)
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in rest)}
        length = int(headers.get("content-length", "0"))
    except ValueError:
        raise _Refused(400, "this isn't an HTTP request") from None
    if not version.startswith("HTTP/1.") or length < 0:
        raise _Refused(400, "this isn't an HTTP/1 request")
    if "transfer-encoding" in headers:
        raise _Refused(411, "a body needs a Content-Length", rest=1)
    if length > BODY_BYTES_MAX:
        raise _Refused(413, f"the body exceeds {BODY_BYTES_MAX} bytes", rest=length)
    query = dict(parse_qsl(parts.query))
    return Request(method, unquote(parts.path), query, headers, b"", client_host, certificate), length


async def _write(stream: HttpStream, response: Response, *, with_body: bool) -> None:
    body = response.body
    head = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
    head += f"Content-Type: {response.content_type}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
    if isinstance(body, bytes):
        head += f"Content-Length: {len(body)}\r\n"
    await stream.write(f"{head}Connection: close\r\n\r\n".encode())
    if with_body:
        if isinstance(body, bytes):
            await stream.write(body)
        else:
            async for piece in body:
                await stream.write(piece)
                await asyncio.sleep(0)
    await stream.flush()
