"""TCP proxies on the loopback interface that can be cut, in one direction or both, delayed, or reset.

A cut direction holds bytes back without losing them; they are forwarded when the cut is healed. TCP behaves like that
when packets are lost for a while. The end of a connection is held back, too, and a connection that is opened during the
cut hangs. Direction "there" is from the connecting side to the listening side, "back" is the opposite one.

A cut may apply to some clients only: to connections whose first request has a client id with a given prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tests.peers.wire import free_port

Direction = Literal["there", "back"]
T = TypeVar("T")
CHUNK_BYTES = 1 << 16
_OPENING_S = 5.0
_first_request = struct.Struct(">ihhih")
_reset = struct.pack("ii", 1, 0)  # SO_LINGER with 0 seconds: close sends a reset


class Proxies:
    """A thread that forwards for any number of routes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def route(self, upstream: str, endpoint: str | None = None) -> Route:
        """A new address in front of `upstream`, both host:port; by default any free port of the loopback interface."""
        route = Route(self, upstream, endpoint or f"127.0.0.1:{free_port()}")
        self.run(route.listen())
        return route

    def close(self) -> None:
        """Ends the thread and all connections."""
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the thread, and returns its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False)
class _Connection:
    """A connection's two sockets, and its client."""

    here: socket.socket
    client: str = ""  # the client id, once the first request came
    upstream: socket.socket | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Route:
    """One address, `endpoint`, in front of another. Its methods may be called from any thread."""

    def __init__(self, proxies: Proxies, upstream: str, endpoint: str) -> None:
        self.endpoint = endpoint
        self.upstream = upstream
        self._proxies = proxies
        self._cuts: set[tuple[Direction, str]] = set()
        self._delays_s: dict[Direction, float] = {"there": 0.0, "back": 0.0}
        self._changed = asyncio.Condition()
        self._connections: set[_Connection] = set()
        self._serving: asyncio.Task[None] | None = None

    def cut(self, *directions: Direction, client: str = "") -> None:
        """Holds the bytes in these directions, for clients whose client id begins with `client`."""
        self._proxies.run(self._cut({(direction, client) for direction in directions}))

    def heal(self) -> None:
        """Ends all cuts and delays; bytes that were held back are forwarded immediately."""
        self._proxies.run(self._heal())

    def delay(self, there_s: float, back_s: float) -> None:
        """Delays every forwarded piece of data by this time, in either direction, until `heal`."""
        self._delays_s = {"there": there_s, "back": back_s}

    def reset(self) -> int:
        """Resets both ends of every connection. Returns the number of connections."""
        return self._proxies.run(self._reset())

    async def listen(self) -> None:
        """Begins to accept connections. It must run in the proxies' thread."""
        host, _, port = self.endpoint.rpartition(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(128)
        listener.setblocking(False)
        self._serving = asyncio.create_task(self._accept(listener))

    async def _cut(self, cuts: set[tuple[Direction, str]]) -> None:
        self._cuts |= cuts

    async def _heal(self) -> None:
        self._cuts.clear()
        self._delays_s = {"there": 0.0, "back": 0.0}
        async with self._changed:
            self._changed.notify_all()

    async def _reset(self) -> int:
        connections = list(self._connections)
        for connection in connections:
            self._abort(connection)
        return len(connections)

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                here, _ = await asyncio.get_running_loop().sock_accept(listener)
                here.setblocking(False)
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = _Connection(here)
                self._connections.add(connection)
                connection.tasks.append(asyncio.create_task(self._forward(connection)))

    async def _forward(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        host, _, port = self.upstream.rpartition(":")
        connection.upstream = upstream = socket.socket()
        upstream.setblocking(False)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._pass("there", connection)
            async with asyncio.timeout(_OPENING_S):
                await loop.sock_connect(upstream, (host, int(port)))
            pumps = [
                asyncio.create_task(self._pump(connection, "there", connection.here, upstream)),
                asyncio.create_task(self._pump(connection, "back", upstream, connection.here)),
            ]
            connection.tasks += pumps
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        except OSError:
            pass
        finally:
            self._abort(connection)

    async def _pump(
        self, connection: _Connection, direction: Direction, source: socket.socket, to: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(source, CHUNK_BYTES)
            if direction == "there" and not connection.client:
                connection.client = _client_id(data)
            await self._pass(direction, connection)
            if not data:
                with contextlib.suppress(OSError):
                    to.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(to, data)

    async def _pass(self, direction: Direction, connection: _Connection) -> None:
        """Waits for the delay of this direction, and while the direction is cut."""
        if self._delays_s[direction]:
            await asyncio.sleep(self._delays_s[direction])
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_cut(direction, connection))

    def _is_cut(self, direction: Direction, connection: _Connection) -> bool:
        return any(
            direction == cut and (not client or connection.client.startswith(client)) for cut, client in self._cuts
        )

    def _abort(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        for task in connection.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for end in (connection.here, connection.upstream):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _reset)
                end.close()


def _client_id(data: bytes) -> str:
    """The client id in a connection's first request; "?" if these bytes aren't a request of Kafka's protocol."""
    if len(data) < _first_request.size:
        return "?"
    *_, size = _first_request.unpack_from(data)
    return data[_first_request.size : _first_request.size + size].decode(errors="replace") if 0 < size < 256 else "?"
