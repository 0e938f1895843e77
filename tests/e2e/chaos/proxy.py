"""A proxy between the operator and the API server: it forwards requests, and carries out the faults of `faults`.

Requests keep the operator's own token, so they have the operator's rights and no others. A request that has arrived is
forwarded, even if the operator is gone by then. A watch ends when the operator is gone.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.e2e.chaos.faults import Fault, Faults

REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
RETRY_AFTER_S = 1
BODY_BYTES_MAX = 64 << 20
LOOKED_S = 0.5  # how often a watch without events is checked: its time may be over, or the operator may be gone
# Headers that aren't forwarded: they belong to one connection (RFC 9110), have the length of a body, which is measured
# anew, or allow compression, which would hide the ends of lines that separate a watch's events.
NOT_HANDED_ON = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host "
    "content-length accept-encoding date server".split()
)
NEVER_TOLD = b'{"type":"MODIFIED","object":{"metadata":{}}}'
GONE = {"code": 410, "reason": "Expired", "message": "chaos: too old resource version"}


class Proxy:
    """Listens on the loopback interface. `die` is called when the operator has to die."""

    def __init__(
        self,
        upstream: str,
        faults: Faults,
        die: Callable[[], None],
        tell: Callable[[str, str, str], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`upstream`: the API server's URL. `tell` is called for each fault, with its name, the method and the path."""
        self.port = 0
        self._upstream = upstream.rstrip("/")
        self._faults = faults
        self._die = die
        self._tell = tell
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def listen(self) -> None:
        """Begins to listen, and sets `port`."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Ends all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch", "") in ("true", "1")
        fault = self._faults.of(request.method, request.path, watch=watch)
        if fault.name:
            self._tell(fault.name, request.method, request.path)
        if fault.refused:
            return _refusal(fault.refused, request.method)
        try:
            return await (self._watched(request, fault) if watch else self._asked(request, fault))
        except (OSError, TimeoutError, aiohttp.ClientError):
            return _cut(request)  # the API server's connection ended, so the operator's connection ends, too

    async def _asked(self, request: web.Request, fault: Fault) -> web.Response:
        body = await request.read()
        if fault.death == "before":
            self._die()
        if "before" in (fault.death, fault.cut):
            return _cut(request)
        answer = await self._forward(request, body)
        if fault.twice:
            again = await self._forward(request, body)
            answer = answer if fault.twice == "first" else again
        if fault.death == "after":
            self._die()
        if "after" in (fault.death, fault.cut):
            return _cut(request)
        await asyncio.sleep(fault.late_s)
        return _refusal(500, request.method) if fault.lost else answer

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        async with self._to_upstream(request, body) as answer:
            content = await answer.read()
            return web.Response(status=answer.status, headers=_handed_on(answer.headers), body=content)

    async def _watched(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        async with self._to_upstream(request, b"") as answer:
            response = web.StreamResponse(status=answer.status, headers=_handed_on(answer.headers))
            await response.prepare(request)
            untold = await self._events(request, response, answer.content, fault)
            if untold and fault.ends == "torn":
                await response.write(untold[: max(1, len(untold) // 2)])
                return _cut(request)
            if untold and fault.ends == "gone":
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}, **GONE}
                await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            await response.write_eof()
            return response

    async def _events(
        self, request: web.Request, response: web.StreamResponse, content: aiohttp.StreamReader, fault: Fault
    ) -> bytes:
        """Forwards a watch's events until its fault ends the watch. Returns the first event that isn't forwarded any
        more, or a placeholder if the watch's time is over; empty if the watch ended by itself."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + fault.watched_s
        events, begun = 0, b""
        while request.transport is not None and not request.transport.is_closing():
            ending = bool(fault.ends) and not self._faults.calm
            if ending and loop.time() >= ends_at:
                return NEVER_TOLD
            try:
                async with asyncio.timeout(LOOKED_S):
                    piece = await content.readany()
            except TimeoutError:
                continue
            if not piece:
                break
            *whole, begun = (begun + piece).split(b"\n")
            for line in whole:
                if ending and events == fault.watched_events:
                    return line
                await response.write(line + b"\n")
                events += 1
        return b""

    def _to_upstream(self, request: web.Request, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        assert self._session is not None
        return self._session.request(
            request.method,
            URL(f"{self._upstream}{request.raw_path}", encoded=True),
            headers=_handed_on(request.headers),
            data=body or None,
            allow_redirects=False,
            skip_auto_headers=("Accept-Encoding", "Content-Type"),
        )


def _handed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in NOT_HANDED_ON)


def _refusal(status: int, method: str) -> web.Response:
    """A refusal in the API server's format."""
    reason = "AlreadyExists" if (status, method) == (409, "POST") else REASONS[status]
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"chaos: {reason}",
        "reason": reason,
        "code": status,
    }
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
    return web.json_response(document, status=status, headers=headers)


def _cut(request: web.Request) -> web.Response:
    """Ends the connection. The returned answer isn't sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
