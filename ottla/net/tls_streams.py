"""Encrypted streams to other brokers, for tasks of an event loop. See `ottla.net.streams`.

OpenSSL works on two buffers in memory, whose content is moved by the loop's `sock_…` calls. A handshake has a deadline:
a listener may accept a connection and then stay silent.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from ottla.net.streams import Connect, Stream, connected_socket

HANDSHAKE_SECONDS_MAX = 10.0
_RAW_BYTES = 128 * 1024
_CHUNK_BYTES = 128 * 1024


def connect_tls(context: Callable[[], ssl.SSLContext], server_name: str = "") -> Connect:
    """Opens encrypted streams. `context` gives the context for each new one. `server_name`: the name that the peer's
    certificate must have, for peers that are reached by other names or by IP addresses; empty: the host.

    A handshake that fails raises ssl.SSLError, an OSError, and one that doesn't end in time raises TimeoutError; a host
    on which no process listens raises ConnectionRefusedError.
    """

    async def connect(host: str, port: int) -> Stream:
        loop = asyncio.get_running_loop()
        present = context()
        stream = _TlsStream(loop, await connected_socket(loop, host, port), present, server_name or host)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await stream.handshake()
        except TimeoutError:
            stream.close()
            raise TimeoutError(f"the TLS handshake didn't end within {HANDSHAKE_SECONDS_MAX:g} s") from None
        except BaseException:  # also a cancelled attempt
            stream.close()
            raise
        return stream

    return connect


class _TlsStream:
    __slots__ = ("_incoming", "_loop", "_outgoing", "_raw", "_socket", "_tls")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connected: socket.socket, context: ssl.SSLContext, host: str
    ) -> None:
        self._loop = loop
        self._socket = connected
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._raw = bytearray(_RAW_BYTES)

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive()
            except ssl.SSLError:
                await self._flush()  # the alert tells the broker why
                raise
            else:
                await self._flush()
                return

    async def read_exactly(self, into: memoryview) -> None:
        """See `Stream`."""
        filled, size = 0, len(into)
        while filled < size:
            try:
                count = self._tls.read(size - filled, into[filled:])
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    await self._flush()
                await self._receive()
                continue
            except ssl.SSLZeroReturnError:
                count = 0  # type: ignore[assignment]
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            filled += count  # type: ignore[operator]

    async def write(self, data: bytes) -> None:
        """See `Stream`."""
        view = memoryview(data)
        for begin in range(0, len(view), _CHUNK_BYTES):
            self._tls.write(view[begin : begin + _CHUNK_BYTES])
            await self._flush()

    def close(self) -> None:
        """See `Stream`."""
        self._socket.close()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._loop.sock_sendall(self._socket, data)

    async def _receive(self) -> None:
        received = await self._loop.sock_recv_into(self._socket, self._raw)
        if not received:
            raise ConnectionResetError("the peer closed the connection")
        self._incoming.write(memoryview(self._raw)[:received])
