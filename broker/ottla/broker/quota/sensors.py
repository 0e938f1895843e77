"""The measurements of clients, as many as memory allows. Pure.

Client ids are chosen by clients, so their number has no bound of its own. A measurement that wasn't used for an hour
expires, as in Kafka. If there are too many all the same, the one that was used longest ago is dropped; its client then
begins anew, as after an hour's pause.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

EXPIRY_MS = 3_600_000  # Kafka's InactiveSensorExpirationTimeSeconds
SENSORS_MAX = 10_000

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class Sensors(Generic[K, S]):
    """Measurements by key. `make` makes the first one of a key. Times are in ms."""

    __slots__ = ("_make", "_max", "_used")

    def __init__(self, make: Callable[[], S], most: int = SENSORS_MAX) -> None:
        self._make = make
        self._max = most
        self._used: dict[K, tuple[S, int]] = {}  # with the time of the last use; the one used longest ago is first

    def __len__(self) -> int:
        return len(self._used)

    def of(self, key: K, now_ms: int) -> S:
        """The key's measurement, which is used now."""
        found = self._used.pop(key, None)
        if found is None:
            sensor = self._make()
            self.expire(now_ms)
            if len(self._used) >= self._max:
                del self._used[next(iter(self._used))]
        else:
            sensor = found[0]
        self._used[key] = (sensor, now_ms)
        return sensor

    def known(self, key: K) -> S | None:
        """The key's measurement, if there is one. This doesn't count as a use."""
        found = self._used.get(key)
        return None if found is None else found[0]

    def expire(self, now_ms: int) -> None:
        """Drops the measurements that weren't used for an hour."""
        used = self._used
        while used and next(iter(used.values()))[1] <= now_ms - EXPIRY_MS:
            del used[next(iter(used))]

    def latest(self) -> Iterator[tuple[K, S]]:
        """Keys and measurements, the last used one first."""
        for key in reversed(self._used):
            yield key, self._used[key][0]
