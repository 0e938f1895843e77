"""How much of producers' batches the event loop looks at in one of its turns, and a thread in one of its own.

The rule it protects: whatever a request brings, one batch or a thousand small ones, those who wait behind it for the
loop wait no longer than for a large batch without a codec. To hand a batch to a thread costs the loop about 100 µs, and
a task to wait for it. So a batch that fits what is left of the loop's turn is looked at where it arrived.

Pure: when the loop's next turn begins is said by whoever owns the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.protocol.codecs import Codec
from ottla.protocol.record_walk import NATIVE

LOOP_MICROSECONDS = 600
THREAD_MICROSECONDS = 10_000

_NATIVE: dict[int, int] = {Codec.none: 2500, Codec.gzip: 450, Codec.snappy: 1400, Codec.lz4: 4000, Codec.zstd: 1900}
"""Unpacked and walked over in a microsecond, in bytes: of JSON in records of 1 KiB, on a core of an AMD EPYC. What has
no codec is walked over ten times as fast, but has to have its CRC taken and to be written, too; a batch that is made of
empty headers takes eight times as long as is said here."""
_TWIN = 60  # where the records are walked over in Python, whatever the codec; in records of 100 B
_SPEEDS = _NATIVE if NATIVE else dict.fromkeys(_NATIVE, _TWIN)
_PLAIN = _SPEEDS[Codec.none]
_SLOWEST = min(_SPEEDS.values())
_WHOLE = LOOP_MICROSECONDS * _PLAIN
_ASKS_AT = _WHOLE * 7 // 8  # left

PLAIN_BATCH_BYTES = 5 * _PLAIN
"""What a batch without a codec counts for beside its bytes: 5 µs, so that a request to a hundred partitions is served
at once, and one of a thousand batches of a record each isn't."""


def bytes_in(microseconds: float, codec: int) -> int:
    """What is unpacked of `codec` in that time, in bytes."""
    return int(microseconds * _speed(codec))


class LoopQuota:
    """What is left of the loop's turn, in bytes without a codec. `at_next_turn` calls what it is given when that turn
    has ended.

    To ask for that call costs more than to look at a small batch. So nobody asks before an eighth of the turn is spent,
    and what less was spent in turns before counts for this one."""

    __slots__ = ("_asked", "_at_next_turn", "plain_left")

    def __init__(self, at_next_turn: Callable[[Callable[[], None]], object]) -> None:
        self._at_next_turn = at_next_turn
        self._asked = False
        self.plain_left: float = _WHOLE
        """So many bytes may still be looked at that have no codec, where each batch counts for PLAIN_BATCH_BYTES more;
        to be read only."""

    def bytes_left(self, codec: int) -> int:
        """What may still be looked at of `codec` in this turn, in bytes unpacked."""
        return int(self.plain_left / _PLAIN * _speed(codec))

    def spend(self, codec: int, size_bytes: int) -> None:
        """So much of `codec` is looked at; more than was left is taken for all that was."""
        self.spend_plain(size_bytes / _speed(codec) * _PLAIN)

    def spend_plain(self, size_bytes: float) -> None:
        """As `spend`, of what has no codec."""
        left = self.plain_left - size_bytes
        self.plain_left = left if left > 0 else 0
        if left <= _ASKS_AT and not self._asked:
            self._asked = True
            self._at_next_turn(self._renew)

    def fits(self, sizes: Iterable[tuple[int, int] | None]) -> bool:
        """Whether all of these, as (codec, bytes unpacked), may be looked at in this turn; None never may. Takes no
        more of them than it needs to know."""
        left = self.plain_left
        for size in sizes:
            if size is None:
                return False
            codec, size_bytes = size
            left -= size_bytes / _speed(codec) * _PLAIN
            if left < 0:
                return False
        return True

    def _renew(self) -> None:
        self._asked = False
        self.plain_left = _WHOLE


def _speed(codec: int) -> int:
    return _SPEEDS.get(codec, _SLOWEST)
