"""The order of one connection's requests and answers, and how many of them it may have under way. Pure.

Kafka's clients rely on this order: a request starts when all requests before it are answered. There is an exception:
a request of the pipelined APIs (Produce) may start behind unanswered requests that are of these APIs, too, or that
change nothing and are marked so (`overtakable`). Answers are sent in the order of the requests.

While a connection is muted, because its client is throttled (KIP-219), no request starts. Answers are sent all the
same.

A pipeline sees only the sizes and headers of frames, and the unanswered requests. The channel moves the bytes, and the
connection owns the buffers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Container
from typing import Protocol

from ottla.net.pending import Part, Pending
from ottla.protocol.errors import ProtocolError
from ottla.protocol.received import Buffer

SIZE_BYTES = 4  # the length of the size field before a frame
FRAME_BYTES_MIN = 10  # the size of a request's header with an empty client id
_HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PRI ")
_size = struct.Struct(">i")
_key = struct.Struct(">h")


class Bounds(Protocol):
    """The bounds on a connection's unanswered requests. They may change while the connection is open."""

    @property
    def unanswered_max(self) -> int:
        """The largest number of unanswered requests."""

    @property
    def unanswered_bytes_max(self) -> int:
        """While the unanswered requests have this number of bytes or more, no further request starts."""


class Pipeline:
    """A connection's unanswered requests, and the rule by which another request may start behind them."""

    __slots__ = ("_bounds", "_muted_until", "_pipelined", "_unanswered", "_unanswered_bytes", "muted")

    def __init__(self, bounds: Bounds, pipelined: Container[int]) -> None:
        self._bounds = bounds
        self._pipelined = pipelined
        self._unanswered: deque[Pending] = deque()
        self._unanswered_bytes = 0
        self.muted = False
        """Whether no request may start before `unmute`. Other modules only read it."""
        self._muted_until = 0.0

    def __len__(self) -> int:
        """The number of requests that wait for their answer, or for the answers before theirs."""
        return len(self._unanswered)

    def may_start(self, api_key: int) -> bool:
        """Whether a request of this API may start now, behind the unanswered ones."""
        if self.muted:
            return False
        unanswered, bounds, pipelined = self._unanswered, self._bounds, self._pipelined
        if not unanswered:
            return True
        if len(unanswered) >= bounds.unanswered_max or self._unanswered_bytes >= bounds.unanswered_bytes_max:
            return False
        return api_key in pipelined and all(
            pending.api_key in pipelined or pending.overtakable for pending in unanswered
        )

    def mute(self, until: float) -> None:
        """Lets no request start before `until` (seconds, by the clock of `unmute`), or before a later end that was set
        already."""
        self.muted = True
        self._muted_until = max(self._muted_until, until)

    def unmute(self, now: float) -> float:
        """Lets requests start again, if the time has come. Returns the seconds that are left otherwise, else 0."""
        left = self._muted_until - now
        if left > 0:
            return left
        self.muted = False
        return 0.0

    def waits(self, pending: Pending, size: int) -> None:
        """Adds a request of `size` bytes that has started. Its answer isn't ready, or has to wait for earlier ones."""
        pending.size = size
        self._unanswered.append(pending)
        self._unanswered_bytes += size

    def hurry(self, behind: int) -> None:
        """Tells the first unanswered request that a request of the API `behind` can't start until it is answered."""
        if self._unanswered:
            first = self._unanswered[0]
            first.behind = behind
            if first.hurry is not None:
                first.hurry()

    def move_answers(self, queue: deque[Part]) -> bool:
        """Moves the parts of all answers that may be sent now to `queue`. Returns whether there was such an answer."""
        unanswered = self._unanswered
        moved = False
        while unanswered:
            parts = unanswered[0].parts
            if parts is None:
                break
            self._unanswered_bytes -= unanswered.popleft().size
            queue.extend(parts)
            moved = True
        return moved

    def waits_for_pipelined(self) -> bool:
        """Whether some request is unanswered, and all unanswered ones are of the pipelined APIs.

        The answers to requests of these APIs wait for brokers alone, and not for other clients.
        """
        pipelined = self._pipelined
        return bool(self._unanswered) and all(pending.api_key in pipelined for pending in self._unanswered)

    def forget(self) -> None:
        """Drops all requests, because the connection was closed."""
        for pending in self._unanswered:
            pending.forget()
        self._unanswered.clear()


def frame_end(buffer: Buffer, position: int, end: int, size_max: int, size_min: int = FRAME_BYTES_MIN) -> int:
    """The position at which the frame at `position` ends; 0 if the frame isn't whole in buffer[:end] yet.

    Raises ProtocolError if the frame's size is out of bounds.
    """
    if end - position < SIZE_BYTES:
        return 0
    (size,) = _size.unpack_from(buffer, position)
    if not size_min <= size <= size_max:
        raise ProtocolError(
            f"a frame of {size} bytes: allowed are {size_min} to {size_max}"
            + _other_protocol(bytes(memoryview(buffer)[position : position + SIZE_BYTES]))
        )
    whole = position + SIZE_BYTES + int(size)
    return whole if whole <= end else 0


def frame_bytes(buffer: Buffer, position: int, end: int) -> int:
    """The number of bytes of the frame at `position`; `SIZE_BYTES` if buffer[:end] lacks a whole size field."""
    if end - position < SIZE_BYTES:
        return SIZE_BYTES
    return SIZE_BYTES + int(_size.unpack_from(buffer, position)[0])


def api_key_of(buffer: Buffer, start: int) -> int:
    """The API key of the request that begins at `start`, behind the frame's size field."""
    return int(_key.unpack_from(buffer, start)[0])


def _other_protocol(start: bytes) -> str:
    """A remark on the peer's protocol, if its first bytes are those of TLS or HTTP; otherwise an empty text."""
    if start[0] == 0x16 and start[1] == 3:
        return "; the peer speaks TLS, this listener doesn't"
    if start in _HTTP_METHODS:
        return "; the peer speaks HTTP"
    return ""
