"""The fetches that wait until a replica has more to read, and how they are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.partition import Partition


class Waiter(Protocol):
    """A fetch, or a session's watch, that waits for a partition to have more to read."""

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """The partition has `new_bytes` more to read, or (0) changed in another way that ends the waiting."""

    def watermark_moved(self, partition: Partition) -> None:
        """The leader's high watermark has moved; called for followers' waiters only."""


def wake(waiters: Sequence[Waiter], partition: Partition, new_bytes: int) -> None:
    """Tells the waiters of `partition` that there are `new_bytes` more to read, or (0) that they wait in vain."""
    for waiter in tuple(waiters):  # some waiters remove themselves
        waiter.moved(partition, new_bytes)


def bytes_between(log: Log, before: int, after: int) -> int:
    """How many bytes consumers may read more, now that the high watermark has risen. 0 where the files can't be read:
    then the waiting fetches try to read, and meet the error."""
    try:
        return max(log.bytes_between(before, after), 1)
    except OSError:
        return 0
