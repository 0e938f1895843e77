"""Reads the log of an internal topic's partition, and restores the coordinator's state for that partition.

Threads read chunks of the log, and the event loop decodes them in slices of a few milliseconds. So a broker that takes
over a large partition serves other partitions meanwhile. Records that aren't below the high watermark count as
appended, not as committed.

Data that can't be read is left out, logged and counted, and the replay continues behind it. This may be a record, the
rest of a batch, or the rest of a segment if a batch's header is malformed. A record that breaks a rule of the core is
left out, too. So the partition's other groups (or transactions) are still served. Kafka, in contrast, doesn't load a
partition with a record that it can't read.

Source: Kafka's CoordinatorLoaderImpl.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from ottla.broker.cold_reads import ColdReads, ReadLog
from ottla.broker.log.segment import DamagedSegment
from ottla.broker.verification import Guard
from ottla.protocol.batches import BatchHeader, Record, iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.markers import read_marker

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.004
TOLD_MAX = 10  # the first errors of a replay get a log line each; further errors are only counted


class Piece(Protocol):
    """A range of a file."""

    @property
    def file(self) -> Any: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


class ReplayLog(ReadLog, Protocol):
    """The part of a log's interface that a replay uses."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    def read(
        self, offset: int, max_bytes: int, limit_offset: int, minimum_one: bool = True, wait: bool = True
    ) -> Sequence[Piece]: ...
    def segment_after(self, offset: int) -> int | None: ...


class ReplayPartition(Protocol):
    """The part of a partition's interface that a coordinator uses."""

    damage_met: tuple[int, str] | None

    @property
    def index(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log(self) -> ReplayLog: ...
    def append_batch(self, batch: bytearray, leader_epoch: int, guard: Guard | None = None) -> int: ...
    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, committed: bool, transaction_version: int
    ) -> int: ...
    def guard_for(self, producer_id: int, epoch: int, first_sequence: int, *, bumps: bool) -> Guard | None: ...
    def committed(self, offset: int) -> asyncio.Future[None]: ...
    def failed(self, error: OSError) -> KafkaError: ...


class Replayed(Protocol):
    """The part of a core's interface that a replay uses."""

    def replayed(self, key: bytes, value: bytes | None, offset: int, visible: bool, producer_id: int) -> bool:
        """Applies one record that was read back from `offset` of the log. Returns False if the core doesn't know the
        record's kind. A `visible` record is below the high watermark. With a `producer_id` ≥ 0 the record belongs to a
        transaction. Raises ProtocolError at malformed bytes."""

    def decided(self, producer_id: int, commit: bool, offset: int, visible: bool) -> int:
        """Applies the marker at `offset`: the producer's transaction was committed (`commit`) or aborted. A `visible`
        marker is below the high watermark. Returns how many entries the marker has in `Unshown` if it isn't visible."""


class Replay:
    """One replay. `run` may be cancelled. `replayed` counts the records that the core has applied, `foreign` the
    records of kinds that it doesn't know. `unreadable` counts records that were left out; the unreadable rest of a
    segment counts as one."""

    def __init__(
        self, topic: str, partition: ReplayPartition, core: Replayed, chunk_bytes: int, cold_reads: ColdReads
    ) -> None:
        self._topic = topic
        self._cold_reads = cold_reads
        self._partition = partition
        self._core = core
        self._chunk_bytes = chunk_bytes
        self._offset = 0
        self._slice_end = 0.0
        self._told = 0
        self.replayed = 0
        self.foreign = 0
        self.unreadable = 0

    async def run(self) -> None:
        """Replays all records up to the log's end at the time of the call. Raises OSError where the disk fails."""
        log = self._partition.log
        self._offset = log.log_start_offset
        end = log.log_end_offset
        self._slice_end = perf_counter() + SLICE_SECONDS
        while self._offset < end:
            self._offset = max(self._offset, log.log_start_offset)
            before = self._offset
            try:
                pieces = await self._read(log, end)
                for piece in pieces:
                    read = partial(piece.file.pread, piece.size, piece.position)
                    await self._chunk(await self._cold_reads.run(log, read), end)
            except (DamagedSegment, KafkaError) as error:
                self._leave_out_damaged(1, f"the segment of offset {self._offset} can't be read further: {error}")
            else:
                if self._offset > before:
                    continue
                if pieces:
                    self._leave_out_damaged(1, f"the batch of offset {self._offset} doesn't end within its segment")
                # else this segment has no further records: compaction removed them
            following = log.segment_after(self._offset)
            if following is None:
                break
            self._offset = max(following, self._offset)
        if self.unreadable:
            logger.error(
                "%s-%d: %d records could not be read and were left out",
                self._topic,
                self._partition.index,
                self.unreadable,
            )

    async def _read(self, log: ReplayLog, end: int) -> Sequence[Piece]:
        """The file ranges of the next chunk. A thread looks them up if the event loop would have to wait for the
        disk."""
        try:
            return log.read(self._offset, self._chunk_bytes, end, True, wait=False)
        except BlockingIOError:
            # Other tasks may wait for the same look-up, so a cancelled replay doesn't cancel it.
            with suppress(OSError):  # if no thread can be started, the event loop waits for the disk
                await asyncio.shield(self._cold_reads.read_ahead(log, self._offset, end, self._chunk_bytes))
            return log.read(self._offset, self._chunk_bytes, end, True)

    async def _chunk(self, data: bytes, end: int) -> None:
        """Replays the whole batches of `data`. Raises KafkaError at a malformed header."""
        for position, header in iterate_headers(data):
            if header.last_offset < self._offset <= header.base_offset or header.last_offset >= end:
                raise KafkaError(
                    ErrorCode.corrupt_message,
                    f"a batch states impossible offsets, {header.base_offset} to {header.last_offset}",
                )
            if header.last_offset < self._offset:
                continue
            batch = memoryview(data)[position : position + header.size]
            if header.is_control:
                self._marker(header, batch)
                if perf_counter() > self._slice_end:
                    await self._pause()
            else:
                await self._data(header, batch)
            self._offset = header.last_offset + 1

    async def _data(self, header: BatchHeader, batch: memoryview) -> None:
        """Replays the records of a batch from `_offset` on."""
        seen = 0
        try:
            for record in records(batch):
                seen += 1
                if record.offset >= self._offset:
                    self._replay(header, record)
                if perf_counter() > self._slice_end:
                    await self._pause()
        except (MemoryError, OSError):
            raise
        except Exception as error:  # the next load would meet the same error, so the batch is left out
            missing = min(header.count, header.last_offset_delta + 1) - seen
            self._leave_out_damaged(max(missing, 1), f"the batch of offset {header.base_offset} can't be read: {error}")

    async def _pause(self) -> None:
        """Ends a slice: lets other tasks run."""
        await asyncio.sleep(0)
        self._slice_end = perf_counter() + SLICE_SECONDS

    def _marker(self, header: BatchHeader, batch: memoryview) -> None:
        """Replays the transaction marker in a control batch. If the batch is empty, compaction has removed the
        marker."""
        marker = read_marker(batch)
        if marker is not None:
            visible = header.base_offset < self._partition.high_watermark
            self._core.decided(header.producer_id, marker.committed, header.base_offset, visible)
        elif header.count:
            self._leave_out(1, f"the control batch at offset {header.base_offset} has no transaction marker")

    def _replay(self, header: BatchHeader, record: Record) -> None:
        try:
            self._record(header, record)
        except Exception as error:  # the other records are still of use
            self._leave_out(1, f"the record at offset {record.offset} can't be read: {error!r}")

    def _record(self, header: BatchHeader, record: Record) -> None:
        if record.key is None:
            raise ProtocolError("the record has no key")
        producer_id = header.producer_id if header.is_transactional else -1
        visible = record.offset < self._partition.high_watermark
        ours = self._core.replayed(record.key, record.value, record.offset, visible, producer_id)
        self.replayed += ours
        self.foreign += not ours

    def _leave_out_damaged(self, count: int, why: str) -> None:
        self._partition.damage_met = self._offset, f"left out of the coordinator's state: {why}"
        self._leave_out(count, why)

    def _leave_out(self, count: int, why: str) -> None:
        self.unreadable += count
        if self._told < TOLD_MAX:
            self._told += 1
            logger.error("%s-%d: %s; it is left out", self._topic, self._partition.index, why)
