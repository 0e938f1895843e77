"""TCP proxies on the loopback interface that can be cut, in one direction or both, delayed, or reset.

What is cut is held, not lost, and goes on when the cut is healed: so does TCP when packets are lost for a while. A cut
direction holds everything, the end of a connection too; a connection that is opened meanwhile hangs. Direction "there"
is from who connects to who listens, "back" the other one.

A cut may be for some clients only: those whose client id, in the first request of a connection, begins with a name.
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
_reset = struct.pack("ii", 1, 0)  # SO_LINGER: no goodbye, a reset


class Proxies:
    """A thread that forwards for any number of routes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def route(self, upstream: str) -> Route:
        """A new address in front of `upstream`, both host:port."""
        route = Route(self, upstream)
        self.run(route.listen())
        return route

    def close(self) -> None:
        """Ends the thread, and every connection with it."""
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False)
class _Connection:
    """Two sockets and who is at the far end."""

    here: socket.socket
    client: str = ""  # its client id, once the first request came
    upstream: socket.socket | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Route:
    """One address, `endpoint`, in front of another. Its methods may be called from any thread."""

    def __init__(self, proxies: Proxies, upstream: str) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.upstream = upstream
        self._proxies = proxies
        self._cuts: set[tuple[Direction, str]] = set()
        self._delays_s: dict[Direction, float] = {"there": 0.0, "back": 0.0}
        self._changed = asyncio.Condition()
        self._connections: set[_Connection] = set()
        self._serving: asyncio.Task[None] | None = None

    def cut(self, *directions: Direction, client: str = "") -> None:
        """Holds what goes in these directions, for clients with a name that begins like this."""
        self._proxies.run(self._cut({(direction, client) for direction in directions}))

    def heal(self) -> None:
        """Lets everything through, at once; what was held too."""
        self._proxies.run(self._heal())

    def delay(self, there_s: float, back_s: float) -> None:
        """Everything takes so long from now on."""
        self._delays_s = {"there": there_s, "back": back_s}

    def reset(self) -> int:
        """Both ends of every connection are told that it is broken; how many there were."""
        return self._proxies.run(self._reset())

    async def listen(self) -> None:
        """Begins to accept; in the proxies' thread."""
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
        """Returns when what goes in this direction may go."""
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
    """The client id of a connection's first request; "?" where these bytes aren't Kafka's."""
    if len(data) < _first_request.size:
        return "?"
    *_, size = _first_request.unpack_from(data)
    return data[_first_request.size : _first_request.size + size].decode(errors="replace") if 0 < size < 256 else "?"
