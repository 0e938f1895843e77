"""Makes the records of an internal topic's partition visible to readers, after the high watermark has passed them.

An appended record waits in a list (`Unshown`) of the coordinator's state (`led.Core`) until this module makes it
visible. Reads don't make records visible. If they did, a group that only commits would lengthen the list with each
commit, and its first read would have to process the whole list. Three rules bound the list, and the time for which the
event loop is blocked:

1. Each append makes up to twice as many records visible as it has appended, if the high watermark has passed so many.
   So appends never lengthen the list of records that are committed and not visible yet.
2. Further records that the high watermark has passed become visible in slices, one in each turn of the event loop.
3. A read waits until all records are visible that were below the high watermark when the read began, and doesn't
   process the list.

Source: Kafka deletes its snapshots up to the committed offset as the high watermark moves (CoordinatorRuntime).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ottla.broker.commits import Commits, failed
from ottla.protocol.errors import KafkaError

SLICE_RECORDS = 1_000  # a slice takes two or three milliseconds


class WatermarkPartition(Protocol):
    """The part of a partition's interface that `CommittedView` uses."""

    @property
    def high_watermark(self) -> int: ...
    def committed(self, offset: int) -> asyncio.Future[None]: ...


class Unshown(Protocol):
    """The records that were appended to a partition and aren't visible to readers yet, in the order of their
    offsets."""

    @property
    def first_unshown(self) -> int | None:
        """The log offset of the oldest record that isn't visible yet; None where all records are visible."""

    def committed(self, high_watermark: int, records_max: int | None = None) -> None:
        """Makes records below `high_watermark` visible: all of them, or the `records_max` oldest."""


class CommittedView:
    """Tells the core of one partition which of its records are committed, and may be seen by readers. All methods run
    on the event loop."""

    __slots__ = ("_partition", "_reads", "_resigned", "_under_way", "_unshown")

    def __init__(self, partition: WatermarkPartition, unshown: Unshown) -> None:
        self._partition = partition
        self._unshown = unshown
        self._reads = Commits()
        self._under_way = False  # whether a slice is scheduled, or the next slice waits for the high watermark
        self._resigned: KafkaError | None = None

    def appended(self, records: int) -> None:
        """Notes that `records` records were appended, or replayed from above the high watermark. The core has applied
        them."""
        self._unshown.committed(self._partition.high_watermark, 2 * records)
        if not self._under_way:
            self._go_on()

    def shown(self) -> asyncio.Future[None]:
        """A future that is done when all records that are committed now are visible. Fails with KafkaError if this
        broker stops leading the partition before that."""
        if not self._under_way:
            self._go_on()
        if self._resigned is not None:
            return failed(self._resigned)
        high_watermark = self._partition.high_watermark
        return self._reads.wait_for(high_watermark - 1, self._shown_below(high_watermark))

    def resign(self, error: KafkaError) -> None:
        """Fails the waiting reads with `error`, because this broker doesn't lead the partition any more."""
        self._resigned = error
        self._reads.fail(error)

    def _shown_below(self, high_watermark: int) -> int:
        first = self._unshown.first_unshown
        return high_watermark if first is None else min(first, high_watermark)

    def _go_on(self) -> None:
        """Begins the next step for the oldest record that readers don't see yet: shows some committed records, or waits
        for the commit of this record."""
        high_watermark = self._partition.high_watermark
        self._reads.reached(self._shown_below(high_watermark))
        first = self._unshown.first_unshown
        self._under_way = first is not None and self._resigned is None
        if first is None or self._resigned is not None:
            return
        if first < high_watermark:
            asyncio.get_running_loop().call_soon(self._slice)
        else:
            self._partition.committed(first).add_done_callback(self._watermark_moved)

    def _watermark_moved(self, committed: asyncio.Future[None]) -> None:
        error = committed.exception()
        if error is None:
            self._slice()
        else:  # the replica stopped leading; if it leads again, the next append or read goes on
            assert isinstance(error, KafkaError)
            self._under_way = False
            self._reads.fail(error)

    def _slice(self) -> None:
        self._unshown.committed(self._partition.high_watermark, SLICE_RECORDS)
        self._go_on()
