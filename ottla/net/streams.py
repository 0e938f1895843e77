"""Streams of bytes to other brokers, for callers that can wait.

Tasks of an event loop use a `Stream`, threads a `BlockingStream`. A stream knows nothing of frames. The tasks' streams
of this module are plain TCP; those of `ottla.net.tls_streams` are encrypted.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol


class Stream(Protocol):
    """Moves bytes to and from one address. Failures are OSErrors, also when the peer closes the connection."""

    async def read_exactly(self, into: memoryview) -> None:
        """Reads until the buffer `into` is full."""

    async def write(self, data: bytes) -> None:
        """Sends all of `data`."""

    def close(self) -> None:
        """Ends the connection immediately; may be called twice."""


TLS_ALERT = b"\x15\x03"
"""The first bytes of the answer of a TLS listener to a client that doesn't speak TLS."""

SPEAKS_TLS = "speaks TLS, and this client doesn't: see security.protocol"

Connect = Callable[[str, int], Awaitable[Stream]]
"""Opens a stream to (host, port). Raises OSError."""


class _TcpStream:
    """A connected socket, read and written by the loop's `sock_…` calls: no copy on the way into the buffer."""

    __slots__ = ("_loop", "_socket")

    def __init__(self, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> None:
        self._loop = loop
        self._socket = connected

    async def read_exactly(self, into: memoryview) -> None:
        filled = 0
        while filled < len(into):
            received = await self._loop.sock_recv_into(self._socket, into[filled:])
            if not received:
                raise ConnectionResetError("the peer closed the connection")
            filled += received

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    def close(self) -> None:
        self._socket.close()


async def connect_tcp(host: str, port: int) -> Stream:
    """A TCP connection to the first address of `host` that accepts it.

    Raises OSError: a ConnectionRefusedError only if every address refuses the connection, as if no process listens.
    """
    loop = asyncio.get_running_loop()
    return _TcpStream(loop, await connected_socket(loop, host, port))


async def connected_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of `host` that accepts it. Raises OSError as `connect_tcp`."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        candidate = socket.socket(family, kind, protocol)
        candidate.setblocking(False)
        try:
            candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(candidate, address)
        except OSError as error:
            candidate.close()
            if failure is None or isinstance(failure, ConnectionRefusedError):
                failure = error
        except BaseException:  # the attempt was cancelled, and no other code closes the socket
            candidate.close()
            raise
        else:
            return candidate
    raise failure or OSError(f"{host} has no address")


class BlockingStream:
    """A TCP connection on which every wait has a time-out. Not safe to share between threads."""

    def __init__(
        self, address: tuple[str, int], timeout_s: float, tls: ssl.SSLContext | None = None, server_name: str = ""
    ) -> None:
        """Connects, and with `tls` makes the handshake, too: each within `timeout_s`. `server_name` is the name that
        the certificate must have, if it isn't the host of the address. Raises OSError."""
        self._socket = socket.create_connection(address, timeout=timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=server_name or address[0])
        except BaseException:
            self._socket.close()
            raise

    def write(self, data: bytes, timeout_s: float) -> None:
        """Sends all of `data`. Raises OSError."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def read_into(self, buffer: memoryview, timeout_s: float) -> int:
        """Waits for bytes, and returns the number of received bytes; 0 if the peer sends no more. Raises OSError."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv_into(buffer)

    def readable_within(self, seconds: float) -> bool:
        """Whether bytes arrive, or the connection ends, within `seconds`."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Ends the connection; safe to call twice."""
        self._socket.close()
