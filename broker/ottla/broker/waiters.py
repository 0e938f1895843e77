"""The fetches that wait until a replica has more to read, and the functions that wake them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.partition import Partition


class Waiter(Protocol):
    """A fetch that waits until a partition has more to read, or the watch of a fetch session, which waits for the
    same."""

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """Called when the partition has `new_bytes` more to read, or (0) has changed in another way that ends the
        waiting."""

    def watermark_moved(self, partition: Partition) -> None:
        """Called when the high watermark has moved, but there isn't more to read: for the waiting fetches of followers,
        and of consumers that read committed records only."""


def wake(waiters: Sequence[Waiter], partition: Partition, new_bytes: int) -> None:
    """Tells the waiters of `partition` that there are `new_bytes` more to read; 0 means that the partition has changed
    in another way that ends the waiting."""
    for waiter in tuple(waiters):  # some waiters remove themselves
        waiter.moved(partition, new_bytes)


def bytes_between(log: Log, before: int, after: int) -> int:
    """How many more bytes consumers may read after their limit (the high watermark or the last stable offset) has risen
    from `before` to `after`. 0 if the files can't be read: then the waiting fetches wake up, try to read, and get the
    error."""
    try:
        return max(log.bytes_between(before, after), 1)
    except OSError:
        return 0
