"""Brings the groups of one partition of `__consumer_offsets` back from its log.

Reads in chunks off the loop and decodes in slices of a few milliseconds on it, so that a broker that takes over a large
partition serves the others meanwhile. Records above the high watermark count as appended, not as committed.

A record that can't be read is left out and counted, as a kind that we don't know is: the state of every other group is
worth more than a refusal to serve any. Source: Kafka's CoordinatorLoaderImpl.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

from ottla.broker.group.shard import GroupShard
from ottla.protocol.batches import BatchHeader, Record, iterate_headers, records
from ottla.protocol.errors import KafkaError, ProtocolError

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.004
_control_key = struct.Struct(">hh")
_COMMIT_MARKER = 1


class Piece(Protocol):
    """A range of a file."""

    @property
    def file(self) -> Any: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


class ReplayLog(Protocol):
    """What is needed of a log."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    def read(self, offset: int, max_bytes: int, limit_offset: int, minimum_one: bool = True) -> Sequence[Piece]: ...


class ReplayPartition(Protocol):
    """What is needed of a partition."""

    @property
    def index(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log(self) -> ReplayLog: ...
    def append_batch(self, batch: bytearray, leader_epoch: int) -> int: ...
    def committed(self, offset: int) -> asyncio.Future[None]: ...
    def failed(self, error: OSError) -> KafkaError: ...


class Replay:
    """One replay; `run` may be cancelled. Afterwards `replayed`, `foreign` and `unreadable` count records."""

    def __init__(self, partition: ReplayPartition, shard: GroupShard, chunk_bytes: int) -> None:
        self._partition = partition
        self._shard = shard
        self._chunk_bytes = chunk_bytes
        self._offset = 0
        self._slice_end = 0.0
        self.replayed = 0
        self.foreign = 0
        self.unreadable = 0

    async def run(self) -> None:
        """Replays everything up to the log's end at the time of the call."""
        log = self._partition.log
        self._offset = log.log_start_offset
        end = log.log_end_offset
        self._slice_end = perf_counter() + SLICE_SECONDS
        while self._offset < end:
            self._offset = max(self._offset, log.log_start_offset)
            before = self._offset
            for piece in log.read(self._offset, self._chunk_bytes, end, True):
                data = await asyncio.to_thread(piece.file.pread, piece.size, piece.position)
                await self._chunk(data)
            if self._offset == before:  # nothing readable there: compaction took the rest
                break
        if self.unreadable:
            logger.error(
                "__consumer_offsets-%d: %d records could not be read and were left out",
                self._partition.index,
                self.unreadable,
            )

    async def _chunk(self, data: bytes) -> None:
        for position, header in iterate_headers(data):
            if header.last_offset < self._offset:
                continue
            try:
                for record in records(memoryview(data)[position : position + header.size]):
                    if record.offset >= self._offset:
                        self._record(header, record)
                    if perf_counter() > self._slice_end:
                        await asyncio.sleep(0)
                        self._slice_end = perf_counter() + SLICE_SECONDS
            except (KafkaError, ProtocolError):
                self.unreadable += header.count
                logger.exception("__consumer_offsets-%d: a batch can't be read", self._partition.index)
            self._offset = header.last_offset + 1

    def _record(self, header: BatchHeader, record: Record) -> None:
        if record.key is None:
            self.unreadable += 1
            return
        if header.is_control:
            _, kind = _control_key.unpack_from(record.key)
            self._shard.offsets.decided(header.producer_id, kind == _COMMIT_MARKER)
            return
        producer_id = header.producer_id if header.is_transactional else -1
        uncommitted_at = record.offset if record.offset >= self._partition.high_watermark else None
        try:
            ours = self._shard.replayed(record.key, record.value, producer_id, uncommitted_at)
        except (ProtocolError, UnicodeDecodeError):
            self.unreadable += 1
            return
        self.replayed += ours
        self.foreign += not ours
