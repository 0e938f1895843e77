"""The bytes of one HTTP connection, for a task of the event loop: waits on top of a `Channel`.

The listeners' channels serve here, too, instead of asyncio's streams. So TLS handshakes have their turns (see
`ottla.net.handshakes`), and a closed connection is gone at once: nothing waits for the peer's goodbye or for bytes that
the peer doesn't read. Every wait ends by the caller's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.net.channel import Channel

_RECEIVED_BYTES = 16 * 1024


class HeadTooLong(Exception):
    """The head of a request exceeds its bound."""


class HttpStream:
    """Reads from and writes to a channel, for one task. Raises OSError if the connection is broken."""

    __slots__ = ("_buffer", "_channel", "_received")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._buffer = bytearray(_RECEIVED_BYTES)
        self._received = bytearray()

    async def read_head(self, size_max: int) -> bytes | None:
        """The bytes up to and with the first empty line; None if the peer ends the connection before. Raises
        HeadTooLong."""
        begin = 0
        while (end := self._received.find(b"\r\n\r\n", begin)) < 0:
            if len(self._received) > size_max:
                raise HeadTooLong
            begin = max(0, len(self._received) - 3)
            if not await self._receive():
                return None
        if end + 4 > size_max:
            raise HeadTooLong
        return self._taken(end + 4)

    async def read_exactly(self, size: int) -> bytes | None:
        """The next `size` bytes; None if the peer ends the connection before."""
        while len(self._received) < size:
            if not await self._receive():
                return None
        return self._taken(size)

    async def write(self, data: bytes) -> None:
        """Hands all of `data` to the channel."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._channel.send(rest, more=False) :]
            except BlockingIOError:
                await self._until(self._channel.on_writable, self._channel.not_writable)

    async def flush(self) -> None:
        """Waits until the kernel has all bytes that were written."""
        await self._until(self._channel.on_writable, self._channel.not_writable)

    async def discard(self) -> None:
        """Reads until the peer ends the connection. A connection that is closed with unread bytes is reset, and a reset
        may overtake the answer."""
        self._received.clear()
        while await self._receive():
            self._received.clear()
            await asyncio.sleep(0)  # a peer that sends fast mustn't hold the event loop

    async def _receive(self) -> int:
        while True:
            try:
                count = self._channel.receive_into(self._buffer)
            except BlockingIOError:
                await self._until(self._channel.on_readable, self._channel.not_readable)
                continue
            self._received += memoryview(self._buffer)[:count]
            return count

    def _taken(self, size: int) -> bytes:
        taken = bytes(memoryview(self._received)[:size])
        del self._received[:size]
        return taken

    async def _until(self, begin: Callable[[Callable[[], None]], None], end: Callable[[], None]) -> None:
        ready = asyncio.get_running_loop().create_future()
        begin(lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            end()
