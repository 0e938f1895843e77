"""One connection to another broker, for a broker's own requests: one at a time, each with a deadline.

The connection is opened by an injected `Connect`. Each answer is received into the same buffer, so it is valid until
the next request. After any failure (a missed deadline, a reset, half a frame, a cancelled request) the connection is
closed, because bytes of the old answer may still be on the way. The next request opens a new connection.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import NamedTuple

from ottla.net.streams import SPEAKS_TLS, TLS_ALERT, Connect, Stream
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frames import request_frame, response_body

ANSWER_BYTES_MAX = 1 << 30
BUFFER_BYTES = 1 << 16
_KEPT_BYTES_MAX = 1 << 20  # a larger buffer is freed as soon as an answer would have fitted into a small one
_size = struct.Struct(">i")


class Answer(NamedTuple):
    """The body of an answer, which is frame[start:end]. It is valid until the peer's next request."""

    frame: bytearray
    start: int
    end: int


class Peer:
    """A connection to the broker at one address. Only one task uses it."""

    def __init__(self, connect: Connect, host: str, port: int, client_id: str) -> None:
        self.host = host
        self.port = port
        self._connect = connect
        self._client_id = client_id
        self._stream: Stream | None = None
        self._correlation_id = 0
        self._buffer = bytearray(BUFFER_BYTES)
        self._deadline: asyncio.Timeout | None = None  # the deadline of the request under way
        self._answered = False  # whether that request's answer has begun to arrive

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def connected(self) -> bool:
        """Whether a stream is open, as far as this side knows."""
        return self._stream is not None

    async def open(self) -> None:
        """Opens the connection, unless it is open. Raises OSError."""
        if self._stream is None:
            self._stream = await self._connect(self.host, self.port)

    async def until_cut(self) -> None:
        """Waits, without a request under way, until the other side closes the open connection.

        If the other side sends bytes without a request, the wait ends, too, and the connection is closed. If the wait
        is cancelled, the connection stays open.
        """
        assert self._stream is not None
        with suppress(OSError):
            await self._stream.read_exactly(memoryview(bytearray(1)))
        self.close()

    async def request(self, api_key: int, version: int, body: bytes, timeout_seconds: float) -> Answer:
        """Sends a request and waits for its answer. Raises OSError (TimeoutError too) and ProtocolError."""
        self._answered = False
        stream, self._stream = self._stream, None  # only a request that succeeds puts the stream back
        try:
            async with asyncio.timeout(timeout_seconds) as self._deadline:
                if stream is None:
                    stream = await self._connect(self.host, self.port)
                self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
                await stream.write(request_frame(api_key, version, self._correlation_id, self._client_id, body))
                end = await self._receive(stream)
                answered_id, start = response_body(api_key, version, self._buffer)
                if answered_id != self._correlation_id:
                    raise ProtocolError(
                        f"the answer's correlation id is {answered_id}, the request's was {self._correlation_id}"
                    )
        except BaseException:
            if stream is not None:
                stream.close()
            raise
        finally:
            self._deadline = None
        self._stream = stream
        return Answer(self._buffer, start, end)

    def give_up(self) -> bool:
        """Ends the request under way with TimeoutError, unless its answer has begun to arrive.

        Returns whether it ends the request.
        """
        if self._deadline is None or self._deadline.expired() or self._answered:
            return False
        self._deadline.reschedule(asyncio.get_running_loop().time())
        return True

    def close(self) -> None:
        """Ends the connection; a later request opens a new one."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _receive(self, stream: Stream) -> int:
        """Reads one frame into the buffer, and returns the frame's size."""
        head = bytearray(_size.size)
        await stream.read_exactly(memoryview(head))
        self._answered = True
        if head[:2] == TLS_ALERT:
            raise ProtocolError(f"{self} {SPEAKS_TLS}")
        (size,) = _size.unpack(head)
        if not _size.size <= size <= ANSWER_BYTES_MAX:
            raise ProtocolError(f"{self} announced an answer of {size} bytes; is it a Kafka listener?")
        if size > len(self._buffer) or (len(self._buffer) > _KEPT_BYTES_MAX and size <= BUFFER_BYTES):
            self._buffer = bytearray(max(size, BUFFER_BYTES))
        await stream.read_exactly(memoryview(self._buffer)[:size])
        return int(size)
