"""The order of one connection's requests and answers, and how many of them it may have under way. Pure.

Order, as Kafka's clients rely on: a request starts when the ones before it are answered, except that requests of the
pipelined APIs (Produce) may start behind one another, and behind one that changes nothing and says so (`overtakable`).
Answers are sent in the order of the requests.

A pipeline sees the sizes and headers of frames, and requests that wait for their answer; buffers and bytes are the
channel's and the connection's.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Container
from typing import Protocol

from ottla.net.pending import Part, Pending
from ottla.protocol.errors import ProtocolError
from ottla.protocol.received import Buffer

SIZE_BYTES = 4  # of a frame's size, before the frame
FRAME_BYTES_MIN = 10  # a request's header with an empty client id
_HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PRI ")
_size = struct.Struct(">i")
_key = struct.Struct(">h")


class Bounds(Protocol):
    """How much of a connection may be under way; may change while it runs."""

    @property
    def unanswered_max(self) -> int:
        """Requests."""

    @property
    def unanswered_bytes_max(self) -> int:
        """Bytes of requests."""


class Pipeline:
    """The requests that wait for their answers, and what may start behind them."""

    __slots__ = ("_bounds", "_pipelined", "_unanswered", "_unanswered_bytes")

    def __init__(self, bounds: Bounds, pipelined: Container[int]) -> None:
        self._bounds = bounds
        self._pipelined = pipelined
        self._unanswered: deque[Pending] = deque()
        self._unanswered_bytes = 0

    def __len__(self) -> int:
        """Requests that wait for their answer, or for answers before theirs."""
        return len(self._unanswered)

    def may_start(self, api_key: int) -> bool:
        """Whether a request of this API may start now, behind those that aren't answered."""
        unanswered, bounds, pipelined = self._unanswered, self._bounds, self._pipelined
        if not unanswered:
            return True
        if len(unanswered) >= bounds.unanswered_max or self._unanswered_bytes >= bounds.unanswered_bytes_max:
            return False
        return api_key in pipelined and all(
            pending.api_key in pipelined or pending.overtakable for pending in unanswered
        )

    def waits(self, pending: Pending, size: int) -> None:
        """A request of `size` bytes has started, whose answer isn't there yet or stands behind others."""
        pending.size = size
        self._unanswered.append(pending)
        self._unanswered_bytes += size

    def hurry(self, behind: int) -> None:
        """A request of the API `behind` can't start: the first one that isn't answered hears of it."""
        if self._unanswered:
            first = self._unanswered[0]
            first.behind = behind
            if first.hurry is not None:
                first.hurry()

    def move_answers(self, queue: deque[Part]) -> bool:
        """Moves the answers that are next in order into `queue`; whether there was any, be it an empty one."""
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
        """Whether some request isn't answered, and all that aren't are of the pipelined APIs: these take as long as the
        broker has work with them."""
        pipelined = self._pipelined
        return bool(self._unanswered) and all(pending.api_key in pipelined for pending in self._unanswered)

    def forget(self) -> None:
        """The connection is gone: nobody waits for an answer any more."""
        for pending in self._unanswered:
            pending.forget()
        self._unanswered.clear()


def frame_end(buffer: Buffer, position: int, end: int, size_max: int) -> int:
    """Where the frame at `position` ends; 0 where not all of it is in buffer[:end] yet.

    Raises ProtocolError where its size is out of bounds.
    """
    if end - position < SIZE_BYTES:
        return 0
    (size,) = _size.unpack_from(buffer, position)
    if not FRAME_BYTES_MIN <= size <= size_max:
        raise ProtocolError(
            f"a frame of {size} bytes: allowed are {FRAME_BYTES_MIN} to {size_max}"
            + _other_protocol(bytes(memoryview(buffer)[position : position + SIZE_BYTES]))
        )
    whole = position + SIZE_BYTES + int(size)
    return whole if whole <= end else 0


def frame_bytes(buffer: Buffer, position: int, end: int) -> int:
    """The bytes of the frame at `position`, its size included, as far as buffer[:end] says: at least `SIZE_BYTES`."""
    if end - position < SIZE_BYTES:
        return SIZE_BYTES
    return SIZE_BYTES + int(_size.unpack_from(buffer, position)[0])


def api_key_of(buffer: Buffer, start: int) -> int:
    """The API of the request that begins at `start`, behind its size."""
    return int(_key.unpack_from(buffer, start)[0])


def _other_protocol(start: bytes) -> str:
    """What a peer seems to speak whose first bytes make no sense as a frame's size."""
    if start[0] == 0x16 and start[1] == 3:
        return "; the peer speaks TLS, this listener doesn't"
    if start in _HTTP_METHODS:
        return "; the peer speaks HTTP"
    return ""
