"""Orders batches that can't be appended on arrival, because a thread has to check them or compress them anew.

The rule that this protects: no batch overtakes another batch of the same partition. A batch takes its place when its
request arrives, and keeps that place whichever thread finishes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING

from ottla.broker import contents
from ottla.broker.admission import Admitted, admit
from ottla.broker.inspectors import Inspectors
from ottla.broker.loop_quota import LoopQuota
from ottla.protocol.received import Memory

if TYPE_CHECKING:
    from ottla.broker.partition import Partition


class Turn:
    """A batch's place in the queue of a partition's batches that can't be appended on arrival."""

    __slots__ = ("_before", "_ended", "_partition")

    def __init__(self, partition: Partition, before: asyncio.Future[None] | None) -> None:
        self._partition = partition
        self._before = before
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> asyncio.Future[None]:
        """A future that is done when the next batch of the queue may be appended."""
        return self._ended

    async def comes(self) -> None:
        """Waits until all batches before this one have left the queue."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def end(self) -> None:
        """Takes the batch out of the queue: it is appended, refused or given up. The next batch may be appended once
        all batches before it have left the queue. May be called more than once."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.end())
        elif not self._ended.done():
            self._ended.set_result(None)
            if self._partition.last_turn is self:
                self._partition.last_turn = None  # no batch waits any more


class Received:
    """A record set in the memory in which it was received. The memory can't be resized for as long as this object
    exists, because `view` refers to it."""

    __slots__ = ("memory", "start", "stop", "view")

    def __init__(self, memory: Memory, start: int, stop: int) -> None:
        self.memory = memory
        self.start = max(start, 0)  # a null record set has no bytes
        self.stop = max(stop, 0)
        self.view = memoryview(memory)[self.start : self.stop]

    def copied(self) -> Received:
        """A copy of the record set in memory of its own."""
        return Received(bytearray(self.view), 0, len(self.view))


def take_turn(partition: Partition) -> Turn:
    """Returns a place in the queue behind every batch of the partition that waits now. The caller must call the turn's
    `end`, also after an error."""
    last = partition.last_turn
    turn = partition.last_turn = Turn(partition, None if last is None else last.ended)
    return turn


def needs_turn(partition: Partition, batch: memoryview) -> bool:
    """Whether a batch has to join the queue whatever its size: it needs another codec, or other batches wait."""
    if partition.last_turn is not None:
        return True
    return partition.target_codec is not None and contents.codec_of(batch) != partition.target_codec


def memory_bytes(partition: Partition, batch: memoryview) -> int:
    """The most bytes of memory that `admit_in_turn` takes beside the batch."""
    return contents.memory_bytes(batch, partition.target_codec, partition.rules.message_bytes_max)


async def admit_in_turn(
    partition: Partition, batch: Received, version: int, quota: LoopQuota, inspectors: Inspectors, holder: Hashable
) -> Admitted:
    """Checks a batch whose turn has come, so that it can be passed to `Partition.append_admitted`. The check runs in a
    thread if the records have to be compressed anew for `compression.type`, or are too many for the event loop. Raises
    KafkaError.

    The caller must check again whether this broker leads the partition: another leader may have been elected
    meanwhile."""
    partition.counters.produce_requests += 1
    partition.check_leader_epoch(-1)
    rules, codec, now_ms = partition.rules, partition.target_codec, partition.now_ms()
    view, header = admit(batch.memory, batch.start, batch.stop, rules, version, now_ms)
    if codec is None or codec == header.codec:
        if not rules.validate_records:
            return view, header
        if not contents.leaves_loop(view, rules, quota):
            found = contents.inspect(view, header, rules, now_ms, quota)
            if found is not None:
                return found
    return await inspectors.look(holder, contents.Inspection(view, header, rules, now_ms, codec))
