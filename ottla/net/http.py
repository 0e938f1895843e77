"""A small HTTP/1.1 server on a process's own event loop, for metrics, health and the paths below /v1/.

Each broker, controller and operator has such a server. It serves the methods and paths of its routes, and HEAD where it
serves GET, one request per connection, without TLS. The sizes of a request's head and body, its time, and the number of
connections are bounded. Long answers are sent in pieces, and between two pieces the event loop does its other work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 1024 * 1024
REQUEST_SECONDS_MAX = 30.0
HEAD_SECONDS_MAX = 5.0  # a client that sends no request mustn't occupy one of the few connections for long
CONNECTIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, with the path decoded and without its query."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # by the header's name in lower case
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request. Its body is one piece, or an iterator of pieces."""

    status: int
    body: bytes | AsyncIterator[bytes]
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """The request isn't served: the HTTP status and a sentence for the client."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class HttpServer:
    """Serves `routes`, which map (method, path) to a handler.

    A route whose path ends with `/` also serves all paths below it. Of several such routes, the one with the longest
    path serves the request.
    """

    def __init__(self, routes: dict[tuple[str, str], Handler]) -> None:
        self.routes = routes
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Opens the port (0: a free one) and returns it. Raises OSError."""
        self._server = await asyncio.start_server(self._accepted, host or None, port, limit=HEAD_BYTES_MAX)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start_at(self, listener: str) -> None:
        """Opens the port in `listener`, the setting `ottla.http.listener` as HOST:PORT. If it is empty, does nothing.

        Raises OSError.
        """
        host, separator, port = listener.rpartition(":")
        if separator:
            bound = await self.start(host.strip("[]"), int(port))
            logger.info("metrics and health at http://%s:%d/", host or "0.0.0.0", bound)

    async def stop(self) -> None:
        """Closes the port, and aborts the requests under way."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="http request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await self._answer(reader, writer)
        except (TimeoutError, ConnectionError):
            writer.transport.abort()  # the peer is too slow or gone, so it gets no answer
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = "GET"
        try:
            async with asyncio.timeout(HEAD_SECONDS_MAX):
                request = await _read(reader)
            if request is None:
                return
            method = request.method
            response = await self._find(request)(request)
        except _Refused as refused:
            response = Response(refused.status, f"{refused.reason}\n".encode())
        except (asyncio.CancelledError, TimeoutError, ConnectionError):
            raise
        except Exception:
            logger.exception("an HTTP request failed")
            response = Response(500, b"the process's log says more\n")
        body = response.body
        head = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        head += f"Content-Type: {response.content_type}\r\n"
        if isinstance(body, bytes):
            head += f"Content-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        if method != "HEAD":
            if isinstance(body, bytes):
                writer.write(body)
            else:
                async for piece in body:
                    writer.write(piece)
                    await writer.drain()
        await writer.drain()

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


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The request, or None if the peer closed the connection without one. Raises _Refused."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        raise _Refused(431, f"the request's head exceeds {HEAD_BYTES_MAX} bytes") from None
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head[:-4].split("\r\n")
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
        raise _Refused(411, "a body needs a Content-Length")
    if length > BODY_BYTES_MAX:
        raise _Refused(413, f"the body exceeds {BODY_BYTES_MAX} bytes")
    body = await reader.readexactly(length) if length else b""
    return Request(method, unquote(parts.path), dict(parse_qsl(parts.query)), headers, body)
