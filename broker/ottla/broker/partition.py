"""One replica: its log, its part in the partition, and who waits for it to move.

Owned by the event loop. Clients' batches are admitted, given offsets and written in one go; what is committed is
decided by the high watermark, and those who wait for it (producers, coordinators, fetches) are told when it moves.

With a single replica the high watermark is the log's end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.broker.admission import AdmissionRules, admit
from ottla.broker.counters import TopicCounters
from ottla.broker.log.log import Log
from ottla.broker.log.segment import FileRange
from ottla.metadata.image import INTERNAL_TOPICS
from ottla.protocol import batches
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

NO_EPOCH = -1
UP_TO_HIGH_WATERMARK = -1


class Appended(NamedTuple):
    """Where a batch went. `append_time` is −1 under CreateTime."""

    base_offset: int
    last_offset: int
    append_time: int = -1


class Readable(NamedTuple):
    """What a fetch may send: ranges of files, their bytes in all, and the offsets that go with them."""

    ranges: Sequence[FileRange]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class Turn:
    """A batch's place among those of its partition that can't be appended at once.

    Places are taken when requests arrive and kept whatever runs first, so that no batch overtakes another.
    """

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


class Waiter(Protocol):
    """Somebody who waits for a partition to have more to read."""

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """The partition has `new_bytes` more to read, or (0) changed in another way that ends the waiting."""


class Partition:
    """A replica that this broker holds."""

    __slots__ = (
        "_commits",
        "_flushing",
        "_last_turn",
        "_next_flush",
        "counters",
        "index",
        "internal",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start",
        "log",
        "min_isr",
        "now_ms",
        "offline",
        "partition_epoch",
        "replicas",
        "rules",
        "target_codec",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self, topic: str, topic_id: UUID, index: int, log: Log, counters: TopicCounters, now_ms: Callable[[], int]
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.internal = topic in INTERNAL_TOPICS
        self.log = log
        self.counters = counters
        self.now_ms = now_ms
        self.rules = AdmissionRules()
        self.min_isr = 1  # as the topic sets it; never more than there are replicas counts
        self.target_codec: int | None = None  # None: as the producer sent it
        self.leader = -1
        self.leader_epoch = NO_EPOCH
        self.leader_epoch_start = 0
        self.partition_epoch = -1
        self.replicas: Sequence[int] = ()
        self.isr: Sequence[int] = ()
        self.offline = False
        self.waiters: list[Waiter] = []
        self._commits: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._flushing: asyncio.Future[None] | None = None
        self._next_flush: asyncio.Future[None] | None = None
        self._last_turn: Turn | None = None

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # ---- leadership

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition and can serve it."""
        return self.leader_epoch != NO_EPOCH and not self.offline

    def become_leader(self, leader: int, leader_epoch: int, partition_epoch: int, isr: Sequence[int]) -> None:
        """Leads from now on, by state of `leader_epoch`; a repeated call with the same epoch only takes the ISR."""
        self.leader = leader
        self.partition_epoch = partition_epoch
        self.isr = isr
        if leader_epoch == self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        self.leader_epoch_start = self.log.log_end_offset
        self.log.epochs.assign(leader_epoch, self.log.log_end_offset)
        logger.info("%r: leads in epoch %d from offset %d", self, leader_epoch, self.leader_epoch_start)
        self._wake(0)

    def resign(self, reason: str) -> None:
        """Leads no longer: those who wait get NOT_LEADER_OR_FOLLOWER."""
        if self.leader_epoch == NO_EPOCH:
            return
        logger.info("%r: led until epoch %d: %s", self, self.leader_epoch, reason)
        self.leader_epoch = NO_EPOCH
        commits, self._commits = self._commits, deque()
        for _, future in commits:
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.not_leader_or_follower))
        self._wake(0)

    def check_leader_epoch(self, epoch: int) -> None:
        """Raises what a client's idea of the leader epoch deserves; −1 means that it has none. KIP-320."""
        if self.offline:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if self.leader_epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if epoch >= 0 and epoch != self.leader_epoch:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch if epoch < self.leader_epoch else ErrorCode.unknown_leader_epoch
            )

    # ---- writing

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is undecided; without transactions the high watermark."""
        return self.log.log_end_offset

    def append(self, frame: bytearray, start: int, end: int, version: int) -> Appended:
        """Appends the record set frame[start:end] of a Produce request; its offsets are patched in place.

        A repeat of one of the producer's last five batches yields the original's offsets and writes nothing. Raises
        KafkaError with the code for the producer.
        """
        self.counters.produce_requests += 1
        if self.leader_epoch == NO_EPOCH or self.offline:
            self.check_leader_epoch(-1)
        header = admit(frame, start, end, self.rules, version, self.now_ms())
        if header.producer_id >= 0:
            duplicate = self.log.producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.first_offset, duplicate.last_offset, duplicate.append_time)
        return self._append_admitted(memoryview(frame)[start:end], header)

    def takes_turns(self, frame: bytearray, start: int) -> bool:
        """Whether this batch must go by `append_recompressed`: it needs another codec, or batches before it do."""
        if self._last_turn is not None:
            return True
        codec_at = start + batches.CRC_START + 1
        return self.target_codec is not None and codec_at < len(frame) and frame[codec_at] & 7 != self.target_codec

    def take_turn(self) -> Turn:
        """A place behind every batch that waits now; who takes it calls `end`, come what may."""
        last = self._last_turn
        self._last_turn = Turn(self, None if last is None else last.ended)
        return self._last_turn

    def turn_ended(self, turn: Turn) -> None:
        """Nobody waits any more, if it was the last one's."""
        if self._last_turn is turn:
            self._last_turn = None

    async def append_recompressed(self, batch: bytearray, version: int) -> Appended:
        """`append`, with the records compressed in a thread as `compression.type` asks; called when its turn is."""
        self.counters.produce_requests += 1
        self.check_leader_epoch(-1)
        header = admit(batch, 0, len(batch), self.rules, version, self.now_ms())
        if header.producer_id >= 0:
            duplicate = self.log.producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.first_offset, duplicate.last_offset, duplicate.append_time)
        if self.target_codec is not None and header.codec != self.target_codec:
            batch = await asyncio.to_thread(batches.recompress, batch, self.target_codec)
            self.check_leader_epoch(-1)
            header = batches.read_header(batch)
        return self._append_admitted(memoryview(batch), header)

    def _append_admitted(self, batch: memoryview, header: BatchHeader) -> Appended:
        append_time = -1
        if not self.rules.create_time:
            append_time = self.now_ms()
            batches.stamp_append_time(batch, 0, append_time)
        base_offset = self._write(batch, header, append_time)
        counters = self.counters
        counters.messages_in += header.count
        counters.bytes_in += len(batch)
        return Appended(base_offset, base_offset + header.last_offset_delta, append_time)

    def append_batch(self, batch: bytearray, leader_epoch: int) -> int:
        """Appends a batch that this broker made itself; its base offset. Raises KafkaError, NOT_LEADER_OR_FOLLOWER
        too where another epoch has begun than the one that the caller loaded its state in."""
        self.check_leader_epoch(-1)
        if leader_epoch != self.leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return self._write(memoryview(batch), batches.read_header(batch), -1)

    def _write(self, batch: memoryview, header: BatchHeader, append_time: int) -> int:
        log = self.log
        base_offset = log.log_end_offset
        batches.assign(batch, 0, base_offset, self.leader_epoch)
        try:
            log.append(batch, header, base_offset, self.leader_epoch, append_time)
        except OSError as error:
            raise self.failed(error) from error
        if self._commits:
            self._commit()
        if self.waiters:
            self._wake(len(batch))
        return base_offset

    def failed(self, error: OSError) -> KafkaError:
        """A write failed: nothing was appended. Disk full passes; anything else is for the log directory to judge."""
        self.log.directory_failed(error)
        return KafkaError(ErrorCode.kafka_storage_error, error.strerror or str(error))

    def flush(self) -> asyncio.Future[None]:
        """Forces what is written by now to disk, in a thread. Who comes while a flush runs shares the one after it."""
        running = self._flushing
        if running is None or running.done():
            self._flushing = asyncio.ensure_future(self._flush())
            return self._flushing
        if self._next_flush is None or self._next_flush.done():
            self._next_flush = asyncio.ensure_future(self._flush_after(running))
        return self._next_flush

    async def _flush(self) -> None:
        log = self.log
        try:
            pending = log.begin_flush()
            await asyncio.to_thread(pending.run)
        except OSError as error:
            raise self.failed(error) from error
        log.flushed(pending)

    async def _flush_after(self, running: asyncio.Future[None]) -> None:
        await asyncio.wait([running])
        self._flushing, self._next_flush = self._next_flush, None
        await self._flush()

    def delete_records(self, before: int) -> int:
        """Moves the log's start to `before` (−1: the high watermark); returns the new start. Raises KafkaError."""
        high_watermark = self.high_watermark
        target = high_watermark if before == UP_TO_HIGH_WATERMARK else before
        if not 0 <= target <= high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range)
        try:
            self.log.delete_records_before(target)
        except OSError as error:
            raise self.failed(error) from error
        return self.log.log_start_offset

    # ---- waiting

    def committed(self, offset: int) -> asyncio.Future[None]:
        """Done when the record at `offset` is committed; fails with KafkaError when this broker stops leading."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if offset < self.high_watermark:
            future.set_result(None)
        else:
            self._commits.append((offset, future))
        return future

    @property
    def commits_waited_for(self) -> int:
        """How many wait for a commit here."""
        return len(self._commits)

    def _commit(self) -> None:
        high_watermark = self.high_watermark
        commits = self._commits
        while commits and commits[0][0] < high_watermark:
            _, future = commits.popleft()
            if not future.done():
                future.set_result(None)

    def _wake(self, new_bytes: int) -> None:
        for waiter in self.waiters:
            waiter.moved(self, new_bytes)

    # ---- reading

    def read(self, offset: int, max_bytes: int, minimum_one: bool, read_committed: bool) -> Readable:
        """What a consumer may read from `offset`: at most `max_bytes`, but a whole first batch with `minimum_one`
        (KIP-74). Raises KafkaError OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR."""
        log = self.log
        high_watermark = log.log_end_offset
        log_start = log.log_start_offset
        if offset == high_watermark:
            return Readable((), 0, high_watermark, high_watermark, log_start)
        if offset > high_watermark or offset < log_start:
            raise KafkaError(ErrorCode.offset_out_of_range)
        try:
            ranges = log.read(offset, max_bytes, high_watermark, minimum_one)
        except OSError as error:
            raise self.failed(error) from error
        size = 0
        for piece in ranges:
            size += piece.size
        return Readable(ranges, size, high_watermark, high_watermark, log_start)
