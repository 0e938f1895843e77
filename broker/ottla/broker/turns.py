"""Batches that can't be appended where they were received, because a thread has to look at them or compress them anew.

The rule it protects: no batch overtakes another one of its partition. Places are taken when requests arrive and kept
whatever runs first.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ottla.broker import contents
from ottla.broker.admission import Admitted, admit
from ottla.protocol import batches
from ottla.protocol.received import Buffer, Memory

if TYPE_CHECKING:
    from ottla.broker.partition import Partition


class Turn:
    """A batch's place among those of its partition that can't be appended at once."""

    __slots__ = ("_before", "_ended", "_partition")

    def __init__(self, partition: Partition, before: asyncio.Future[None] | None) -> None:
        self._partition = partition
        self._before = before
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the next one may go on."""
        return self._ended

    async def comes(self) -> None:
        """Waits for those before."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def end(self) -> None:
        """The batch is appended, refused or given up: the next one's turn comes, though not before this one's would
        have. May be called again."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.end())
        elif not self._ended.done():
            self._ended.set_result(None)
            self._partition.turn_ended(self)


def takes_turn(partition: Partition, frame: Memory, start: int, end: int) -> bool:
    """Whether the batch frame[start:end] needs a turn: it needs another codec, is large, or others wait before it."""
    if partition.in_turns:
        return True
    codec_at = start + batches.CRC_START + 1
    if codec_at >= end:
        return False
    codec = frame[codec_at] & batches.CODEC_MASK
    if partition.target_codec is not None and codec != partition.target_codec:
        return True
    return partition.rules.validate_records and contents.leaves_loop(codec, end - start)


def memory_bytes(partition: Partition, batch: Buffer) -> int:
    """What `admit_in_turn` takes beside that batch, in bytes, at most."""
    return contents.memory_bytes(batch, partition.target_codec, partition.rules.message_bytes_max)


async def admit_in_turn(partition: Partition, batch: bytearray, version: int, threads: Executor) -> Admitted:
    """Makes a batch whose turn has come ready for `Partition.append_admitted`: in a thread where its records have to be
    compressed anew, as `compression.type` asks, or there is much to look at. Raises KafkaError.

    Whoever called it asks again whether the partition may be written to: others may lead by now."""
    partition.counters.produce_requests += 1
    partition.check_leader_epoch(-1)
    rules, codec, now_ms = partition.rules, partition.target_codec, partition.now_ms()
    view, header = admit(batch, 0, len(batch), rules, version, now_ms)
    if codec is None or codec == header.codec:
        if not rules.validate_records:
            return view, header
        if not contents.leaves_loop(header.codec, len(batch)):
            found = contents.inspect(view, header, rules, now_ms, on_loop=True)
            if found is not None:
                return found
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(threads, contents.inspect, view, header, rules, now_ms, codec)
    assert found is not None
    return found
