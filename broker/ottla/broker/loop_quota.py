"""Limits how many bytes of producers' batches the event loop checks in one iteration (a turn), and a thread in one
turn.

The rule that this protects: whether a request brings one batch or a thousand small ones, the requests behind it wait
for the loop no longer than for a large batch without a codec. To pass a batch to a thread costs the loop about 100 µs,
and a task that waits for the thread. So the loop itself checks a batch that fits into the rest of its turn.

Pure: the loop's owner calls back when the loop's next turn begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.protocol.codecs import Codec
from ottla.protocol.record_walk import NATIVE

LOOP_MICROSECONDS = 600
THREAD_MICROSECONDS = 10_000

_NATIVE: dict[int, int] = {Codec.none: 2500, Codec.gzip: 450, Codec.snappy: 1400, Codec.lz4: 4000, Codec.zstd: 1900}
"""How many bytes the native walk unpacks and checks in a microsecond, by codec: measured with JSON in records of 1 KiB,
on a core of an AMD EPYC. A batch without a codec is walked over ten times as fast as its figure says, but its CRC and
its write take time, too. A batch of empty headers takes eight times as long as its figure says."""
_TWIN = 60  # bytes a microsecond of any codec, where Python code checks the records; measured with records of 100 B
_SPEEDS = _NATIVE if NATIVE else dict.fromkeys(_NATIVE, _TWIN)
_PLAIN = _SPEEDS[Codec.none]
_SLOWEST = min(_SPEEDS.values())
_ASKS_AT = 7 / 8  # `at_next_turn` is called when at most this part of a quota is left

TURN_BYTES = LOOP_MICROSECONDS * _PLAIN
"""How many bytes of batches without a codec are checked in one turn of the event loop. Each such batch counts as
PLAIN_BATCH_BYTES more than its size."""

PLAIN_BATCH_BYTES = 5 * _PLAIN
"""The bytes by which a batch without a codec counts as more than its size: they stand for 5 µs. So a request with
batches for a hundred partitions is served in one turn, and a request of a thousand batches of one record each isn't."""

HANDED_OVER_BYTES = 100 * _PLAIN
"""Batches that cost less than this are served on the event loop at once, and use nothing of the quota, because handing
them to a thread would take the loop longer. If small batches used the quota, a thousand connections would use it up for
each other. Then the loop would also go from turn to turn without a wait, and serve fewer requests in each turn."""


def bytes_in(microseconds: float, codec: int) -> int:
    """How many bytes of a batch with `codec` are unpacked and checked in `microseconds`."""
    return int(microseconds * _speed(codec))


class LoopQuota:
    """The rest of the event loop's present turn for the check of batches. There is one quota for batches that have to
    be unpacked, and one for batches without a codec. `at_next_turn` calls its argument when the turn has ended.

    There are two quotas so that small packed batches are checked on the loop even when large batches without a codec
    have used theirs up.

    To call `at_next_turn` costs more than to check a small batch. So it isn't called before an eighth of a quota is
    spent, and smaller amounts that were spent in earlier turns count as spent in the present one.
    """

    __slots__ = ("_asked", "_at_next_turn", "_packed_left", "plain_left")

    def __init__(self, at_next_turn: Callable[[Callable[[], None]], object]) -> None:
        self._at_next_turn = at_next_turn
        self._asked = False
        self._packed_left: float = LOOP_MICROSECONDS
        self.plain_left: float = TURN_BYTES
        """How many bytes of batches without a codec may still be checked in this turn. Other modules only read it."""

    @property
    def plain_left_at_arrival(self) -> float:
        """As `plain_left`, for a request that has just arrived: a batch whose check costs less than its hand-over to a
        thread always fits."""
        return max(self.plain_left, HANDED_OVER_BYTES)

    def bytes_left(self, codec: int) -> int:
        """How many bytes batches with `codec` may still unpack to in this turn."""
        return int(self._packed_left * _speed(codec))

    def spend(self, codec: int, size_bytes: int) -> None:
        """Takes `size_bytes` unpacked bytes of `codec` from the quota, which doesn't fall below 0."""
        self._packed_left = max(self._packed_left - size_bytes / _speed(codec), 0)
        if self._packed_left <= LOOP_MICROSECONDS * _ASKS_AT:
            self._ask()

    def spend_plain(self, size_bytes: int) -> None:
        """As `spend`, for a batch without a codec."""
        left = self.plain_left - size_bytes
        self.plain_left = left if left > 0 else 0
        if left <= TURN_BYTES * _ASKS_AT:
            self._ask()

    def fits(self, sizes: Iterable[tuple[int, int] | None]) -> bool:
        """Whether batches of all these sizes, as (codec, bytes), may be checked on the loop; None stands for a batch
        that may not be checked on the loop. Stops reading `sizes` as soon as the answer is known."""
        packed_left, plain_left = self._packed_left, self.plain_left_at_arrival
        for size in sizes:
            if size is None:
                return False
            codec, size_bytes = size
            if codec == Codec.none:
                plain_left -= size_bytes
            else:
                packed_left -= size_bytes / _speed(codec)
            if packed_left < 0 or plain_left < 0:
                return False
        return True

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._at_next_turn(self._renew)

    def _renew(self) -> None:
        self._asked = False
        self._packed_left, self.plain_left = LOOP_MICROSECONDS, TURN_BYTES


def _speed(codec: int) -> int:
    return _SPEEDS.get(codec, _SLOWEST)
