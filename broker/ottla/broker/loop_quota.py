"""How much of producers' compressed batches the event loop unpacks in one of its turns, and a thread in one of its own.

The rule it protects: whatever a request brings, one batch or a thousand small ones, those who wait behind it for the
loop wait no longer than for a large batch without a codec. To hand a batch to a thread costs the loop about 100 µs, and
a task to wait for it. So a batch that fits what is left of the loop's turn is unpacked where it arrived.

Pure: when the loop's next turn begins is said by whoever owns the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.protocol.codecs import Codec
from ottla.protocol.record_walk import NATIVE

LOOP_MICROSECONDS = 600
THREAD_MICROSECONDS = 10_000

_NATIVE = {Codec.gzip: 450, Codec.snappy: 1400, Codec.lz4: 4000, Codec.zstd: 1900}
"""Unpacked and walked over in a microsecond, in bytes: of JSON in records of 1 KiB, on a core of an AMD EPYC."""
_TWIN = 60  # where the records are walked over in Python, whatever the codec; in records of 100 B
_SPEEDS = _NATIVE if NATIVE else dict.fromkeys(_NATIVE, _TWIN)
_SLOWEST = min(_SPEEDS.values())
_CODECS = frozenset(_SPEEDS)


def bytes_in(microseconds: float, codec: int) -> int:
    """What is unpacked of `codec` in that time, in bytes."""
    return int(microseconds * _speed(codec))


class LoopQuota:
    """What is left of the loop's turn. `at_next_turn` calls what it is given when that turn has ended."""

    __slots__ = ("_at_next_turn", "_left")

    def __init__(self, at_next_turn: Callable[[Callable[[], None]], object]) -> None:
        self._at_next_turn = at_next_turn
        self._left: float = LOOP_MICROSECONDS

    def bytes_left(self, codec: int) -> int:
        """What may still be unpacked of `codec` in this turn, in bytes."""
        return int(self._left * _speed(codec))

    def spend(self, codec: int, size_bytes: int) -> None:
        """So much was unpacked of `codec`; more than was left is taken for all that was."""
        if self._left == LOOP_MICROSECONDS:
            self._at_next_turn(self._renew)
        self._left = max(self._left - size_bytes / _speed(codec), 0)

    def fits(self, sizes: Iterable[tuple[int, int] | None]) -> bool:
        """Whether all of these, as (codec, bytes unpacked), may be unpacked in this turn; None never may. Takes no more
        of them than it needs to know."""
        left = self._left
        for size in sizes:
            if size is None:
                return False
            codec, size_bytes = size
            left -= size_bytes / _speed(codec)
            if left < 0:
                return False
        return True

    def _renew(self) -> None:
        self._left = LOOP_MICROSECONDS


def _speed(codec: int) -> int:
    return _SPEEDS[Codec(codec)] if codec in _CODECS else _SLOWEST
