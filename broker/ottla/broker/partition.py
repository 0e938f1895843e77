"""One replica: its log, its part in the partition, and who waits for it to move.

Owned by the event loop. Clients' batches are admitted, given offsets and written in one go; what is committed is
decided by the high watermark, and those who wait for it (producers, coordinators, fetches) are told when it moves.

A replica leads, follows or does neither. A leader's `LeaderState` says what its followers have; where nobody else has
to have a record, the high watermark is the log's end. A follower's log is written by `ottla.broker.replication` only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.broker import contents
from ottla.broker.admission import AdmissionRules, admit
from ottla.broker.commits import Commits
from ottla.broker.counters import TopicCounters
from ottla.broker.log.log import Log
from ottla.broker.log.resident import WAIT, resident
from ottla.broker.log.segment import DamagedSegment
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.readable import Readable
from ottla.broker.replica.leader import LeaderState
from ottla.broker.turns import Turn, needs_turn
from ottla.metadata import model
from ottla.metadata.image import INTERNAL_TOPICS
from ottla.net.pending import READ_AHEAD_BYTES
from ottla.protocol import batches
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.received import Buffer, Memory

logger = logging.getLogger(__name__)

NO_EPOCH = -1
NOBODY = -1
UP_TO_HIGH_WATERMARK = -1
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class Appended(NamedTuple):
    """Where a batch went. `append_time` is −1 under CreateTime."""

    base_offset: int
    last_offset: int
    append_time: int = -1


class Waiter(Protocol):
    """Somebody who waits for a partition to have more to read."""

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """The partition has `new_bytes` more to read, or (0) changed in another way that ends the waiting."""

    def watermark_moved(self, partition: Partition) -> None:
        """A follower's leader committed more."""


class Partition:
    """A replica that this broker holds."""

    __slots__ = (
        "_clock",
        "_commits",
        "_commits_at_once",
        "_deletions",
        "_flushing",
        "_last_turn",
        "_next_flush",
        "bytes_in",
        "bytes_out",
        "counters",
        "damage_met",
        "elected_uncleanly",
        "elr",
        "epoch",
        "follower_waiters",
        "high_watermark",
        "index",
        "internal",
        "isr",
        "leader",
        "leader_epoch",
        "leading",
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
        "write_failed",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        log: Log,
        counters: TopicCounters,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.internal = topic in INTERNAL_TOPICS
        self.log = log
        self.counters = counters
        self.bytes_in = 0  # that clients appended here
        self.bytes_out = 0  # that consumers read here
        self.now_ms = now_ms
        self._clock = clock
        self.rules = AdmissionRules()
        self.elected_uncleanly = False  # whether the topic lets any replica lead where nobody else is left
        self.min_isr = 1  # as the topic sets it; see `in_sync_min`
        self.target_codec: int | None = None  # None: as the producer sent it
        self.high_watermark = log.log_start_offset  # everything below is committed
        self.leader = NOBODY
        self.epoch = NO_EPOCH  # of the newest leader that this replica knows
        self.leader_epoch = NO_EPOCH  # the same, while this replica leads
        self.leading: LeaderState | None = None
        self.partition_epoch = -1
        self.replicas: Sequence[int] = ()
        self.isr: Sequence[int] = ()
        self.elr: Sequence[int] = ()  # may be elected too (KIP-966): they have what is committed
        self.offline = False
        self.damage_met: tuple[int, str] | None = None  # last: where, and what doesn't go on, with the reason
        self.write_failed: Callable[[Partition], None] = lambda partition: None  # somebody else should lead
        self.waiters: list[Waiter] = []  # for more that is committed
        self.follower_waiters: list[Waiter] = []  # for more at the end
        self._commits = Commits()
        self._deletions = Commits()  # of records, by the low watermark
        self._commits_at_once = False
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

    def become_leader(self, state: model.Partition) -> None:
        """Leads from now on, by `state`; under the epoch that it leads in already, only the replicas and the ISR are
        news."""
        now = self._clock()
        if self.leading is None or state.leader_epoch != self.leader_epoch:
            self.log.epochs.assign(state.leader_epoch, self.log.log_end_offset)
            self.leading = LeaderState(state.leader, state.replicas, state.isr, self.log.log_end_offset, now)
            self.leader_epoch = state.leader_epoch
            logger.info("%r: leads in epoch %d from offset %d", self, state.leader_epoch, self.log.log_end_offset)
        else:
            self.leading.committed(state.replicas, state.isr, now)
        self._note(state)
        self.isr_moved()
        self._wake_all()

    def become_follower(self, state: model.Partition) -> None:
        """Follows the leader that `state` names, or nobody where it names none."""
        self.resign(f"broker {state.leader} leads in epoch {state.leader_epoch}")
        moved = state.leader_epoch != self.epoch
        self._note(state)
        if moved:
            self._wake_all()  # consumers read from followers too

    def go_offline(self) -> None:
        """The log directory has failed: there is nothing to lead, follow or read."""
        self.offline = True
        self.resign("its log directory has failed")
        self._wake_all()  # consumers that read from a follower must hear of it, too

    def leave(self, reason: str) -> None:
        """This broker has no part in the partition any more."""
        self.resign(reason)
        self.leader = NOBODY
        self._wake_all()

    def _note(self, state: model.Partition) -> None:
        self.leader = state.leader
        self.epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = state.isr
        self.elr = state.elr

    def resign(self, reason: str) -> None:
        """Leads no longer: those who wait get NOT_LEADER_OR_FOLLOWER."""
        if self.leader_epoch == NO_EPOCH:
            return
        logger.info("%r: led until epoch %d: %s", self, self.leader_epoch, reason)
        self.leader_epoch = NO_EPOCH
        self.leading = None
        self._commits_at_once = False
        self._commits.fail(KafkaError(ErrorCode.not_leader_or_follower))
        self._deletions.fail(KafkaError(ErrorCode.not_leader_or_follower))
        self._wake_all()

    @property
    def in_sync_min(self) -> int:
        """How many replicas must be in sync for a record to be committed: never more than there are."""
        return min(self.min_isr, len(self.replicas))

    @property
    def under_min_isr(self) -> bool:
        """Whether nothing is committed for want of replicas in sync."""
        return len(self.isr) < self.in_sync_min

    def may_elect(self, replica: int) -> bool:
        """Whether that replica may be the next leader, as far as this broker knows."""
        return self.elected_uncleanly or replica in self.isr or replica in self.elr

    def find_lagging(self, lag_max_s: float) -> list[int]:
        """Members of the ISR that have been behind for longer than that. Leaders only."""
        assert self.leading is not None
        return self.leading.lagging(self.log.log_end_offset, self._clock(), lag_max_s)

    @property
    def frozen(self) -> bool:
        """Whether the high watermark has to stand still: whoever may be elected must have what is committed."""
        return self.under_min_isr or bool(self.elr)

    def is_caught_up(self, replica: int, lag_max_s: float) -> bool:
        """Whether a follower has everything, or had it no longer than that ago. Leaders only."""
        assert self.leading is not None
        return self.leading.caught_up(replica, self.log.log_end_offset, self._clock(), lag_max_s)

    def wait_for(self, candidates: frozenset[int]) -> None:
        """From now on the high watermark waits for these followers outside of the ISR, and no others. Leaders only."""
        assert self.leading is not None
        if candidates != self.leading.candidates:
            self.leading.candidates = candidates
            self.isr_moved()

    def candidates_last_for(self, lag_max_s: float) -> float:
        """In how many seconds the first of them isn't caught up any more, if none is heard of. Leaders only."""
        assert self.leading is not None
        return self.leading.candidates_last_for(self.log.log_end_offset, self._clock(), lag_max_s)

    def is_present(self, replica: int, lag_max_s: float) -> bool:
        """Whether a follower was heard of within that time, or has everything. Leaders only."""
        assert self.leading is not None
        return self.leading.present(replica, self.log.log_end_offset, self._clock(), lag_max_s)

    def isr_moved(self) -> None:
        """Who has to have a record for it to be committed changed: the committed ISR, a proposal of another one, the
        candidates, the minimum."""
        if self.leading is not None:
            self._commits_at_once = self.leading.alone and not self.frozen
            self._advance()
            self._deletions.reached(self.leading.low_watermark(self.log.log_start_offset))

    def follower_fetched(self, replica: int, broker_epoch: int, offset: int, log_start_offset: int) -> bool:
        """A follower has everything below `offset`. Whether that counts, and is news of one that isn't in sync yet.
        Leaders only."""
        assert self.leading is not None
        now = self._clock()
        if not self.leading.fetched(replica, broker_epoch, offset, log_start_offset, self.log.log_end_offset, now):
            return False
        self._advance()
        if self._deletions:
            self._deletions.reached(self.leading.low_watermark(self.log.log_start_offset))
        return replica not in self.leading.maximal_isr

    def _advance(self) -> None:
        """Raises the high watermark as far as the replicas in sync have come, and tells those who wait for it."""
        assert self.leading is not None
        before = self.high_watermark
        after = before if self.frozen else self.leading.advance(before, self.log.log_end_offset)
        if after == before:
            return
        self.high_watermark = after
        self._commit()
        for waiter in self.follower_waiters:
            waiter.watermark_moved(self)
        if self.waiters:
            self._wake(self.waiters, self._bytes_between(before, after))

    def _bytes_between(self, before: int, after: int) -> int:
        """What consumers may read now that the high watermark has risen. Where the files can't be read 0, with which
        they look for themselves, and meet the error."""
        try:
            return max(self.log.bytes_between(before, after), 1)
        except OSError:
            return 0

    def check_leader_epoch(self, epoch: int, *, follower_will_do: bool = False) -> None:
        """Raises what a client's idea of the leader epoch deserves; −1 means that it has none. KIP-320, and for a
        consumer to whom a follower will do KIP-392."""
        if self.offline:
            raise KafkaError(ErrorCode.kafka_storage_error)
        current = self.leader_epoch
        if current == NO_EPOCH and follower_will_do and self.leader != NOBODY:
            current = self.epoch
        if current == NO_EPOCH:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if epoch >= 0 and epoch != current:
            raise KafkaError(ErrorCode.fenced_leader_epoch if epoch < current else ErrorCode.unknown_leader_epoch)

    def check_watermark(self) -> None:
        """Raises OFFSET_NOT_AVAILABLE while a new leader doesn't know yet what its predecessor told consumers was
        committed: until its high watermark has reached the start of its epoch (KIP-207)."""
        if self.leading is not None and self.high_watermark < self.leading.epoch_start:
            raise KafkaError(ErrorCode.offset_not_available)

    # ---- writing

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is undecided; without transactions the high watermark."""
        return self.high_watermark

    def append(self, frame: Memory, start: int, end: int, version: int, quota: LoopQuota) -> Appended | None:
        """Appends the record set frame[start:end] of a Produce request; its offsets are patched in place.

        None where it goes by `ottla.broker.turns`, because others wait before it, because it needs another codec, or
        because it holds more than the event loop looks at. A repeat of one of the producer's last five batches yields
        the original's offsets and writes nothing. Raises KafkaError with the code for the producer.
        """
        if self._last_turn is not None:
            return None
        rules = self.rules
        if self.target_codec is not None or contents.may_leave_loop(frame, start, end, quota):
            batch = memoryview(frame)[max(start, 0) : max(end, 0)]
            if needs_turn(self, batch) or contents.leaves_loop(batch, rules, quota):
                return None
        self.counters.produce_requests += 1
        if self.leader_epoch == NO_EPOCH or self.offline:
            self.check_leader_epoch(-1)
        now_ms = self.now_ms()
        batch, header = admit(frame, start, end, rules, version, now_ms)
        if rules.validate_records:
            admitted = contents.inspect(batch, header, rules, now_ms, quota, True)
            if admitted is None:
                self.counters.produce_requests -= 1  # it comes again
                return None
            batch, header = admitted
        return self.append_admitted(batch, header)

    @property
    def in_turns(self) -> bool:
        """Whether batches wait, so that what comes now has to wait behind them."""
        return self._last_turn is not None

    def take_turn(self) -> Turn:
        """A place behind every batch that waits now; who takes it calls `end`, come what may."""
        last = self._last_turn
        self._last_turn = Turn(self, None if last is None else last.ended)
        return self._last_turn

    def turn_ended(self, turn: Turn) -> None:
        """Nobody waits any more, if it was the last one's."""
        if self._last_turn is turn:
            self._last_turn = None

    def append_admitted(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Appends a batch that has been looked at. Raises KafkaError."""
        if header.producer_id >= 0:
            duplicate = self.log.producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.first_offset, duplicate.last_offset, duplicate.append_time)
        append_time = -1
        if not self.rules.create_time:
            append_time = self.now_ms()
            batches.stamp_append_time(batch, 0, append_time)
        base_offset = self._write(batch, header, append_time)
        counters = self.counters
        counters.messages_in += header.count
        counters.bytes_in += len(batch)
        self.bytes_in += len(batch)
        return _new(Appended, (base_offset, base_offset + header.last_offset_delta, append_time))

    def append_batch(self, batch: bytearray, leader_epoch: int) -> int:
        """Appends a batch that this broker made itself, as with acks=all; its base offset. Raises KafkaError,
        NOT_LEADER_OR_FOLLOWER too where another epoch has begun than the one that the caller loaded its state in."""
        self.check_leader_epoch(-1)
        if leader_epoch != self.leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if self.under_min_isr:
            raise KafkaError(ErrorCode.not_enough_replicas)
        return self._write(memoryview(batch), batches.read_header(batch), -1)

    def _write(self, batch: memoryview, header: BatchHeader, append_time: int) -> int:
        log = self.log
        base_offset = log.log_end_offset
        batches.assign(batch, 0, base_offset, self.leader_epoch)
        try:
            log.append(batch, header, base_offset, self.leader_epoch, append_time)
        except OSError as error:
            raise self.failed(error) from error
        if self._commits_at_once:
            self.high_watermark = log.log_end_offset
            if self._commits:
                self._commit()
            if self.waiters:
                self._wake(self.waiters, len(batch))
        if self.follower_waiters:
            self._wake(self.follower_waiters, len(batch))
        return base_offset

    def failed(self, error: OSError) -> KafkaError:
        """A write failed: nothing was appended. Disk full passes; anything else is for the log directory to judge."""
        self.log.directory_failed(error)
        self.write_failed(self)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.log.directory}: {error.strerror or error}")

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
        """Moves the log's start to `before` (−1: the high watermark); returns it. Raises KafkaError, POLICY_VIOLATION
        where the topic is only compacted."""
        if self.log.config.compacts and not self.log.config.deletes:
            raise KafkaError(ErrorCode.policy_violation)
        high_watermark = self.high_watermark
        target = high_watermark if before == UP_TO_HIGH_WATERMARK else before
        if not 0 <= target <= high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range)
        try:
            self.log.delete_records_before(target)
        except OSError as error:
            raise self.failed(error) from error
        self._wake_all()  # the followers are to be told
        return target

    def deleted(self, before: int) -> asyncio.Future[None]:
        """Done when no replica in sync has anything below `before`. Leaders only."""
        assert self.leading is not None
        return self._deletions.wait_for(before - 1, self.leading.low_watermark(self.log.log_start_offset))

    @property
    def low_watermark(self) -> int:
        """The lowest start among the replicas in sync. Leaders only."""
        assert self.leading is not None
        return self.leading.low_watermark(self.log.log_start_offset)

    # ---- waiting

    def committed(self, offset: int) -> asyncio.Future[None]:
        """Done when the record at `offset` is committed; fails with KafkaError when this broker stops leading."""
        return self._commits.wait_for(offset, self.high_watermark)

    @property
    def commits_waited_for(self) -> int:
        """How many wait for a commit here."""
        return len(self._commits)

    def _commit(self) -> None:
        self._commits.reached(self.high_watermark)

    def _wake(self, waiters: Sequence[Waiter], new_bytes: int) -> None:
        for waiter in tuple(waiters):  # some leave when they hear it
            waiter.moved(self, new_bytes)

    def watchers(self, replica_id: int) -> list[Waiter]:
        """Who waits with that replica (−1: with the consumers)."""
        return self.waiters if replica_id < 0 else self.follower_waiters

    def _wake_all(self) -> None:
        """What was waited for may never come: those who wait must look."""
        self._wake(self.waiters, 0)
        self._wake(self.follower_waiters, 0)

    # ---- following

    def append_replicated(
        self,
        buffer: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        leader_high_watermark: int,
        leader_log_start: int,
    ) -> None:
        """Appends what the leader sent: `headers` are the (position, header) of the whole batches that fill `buffer`.
        The high watermark and the log's start follow the leader's. Raises KafkaError KAFKA_STORAGE_ERROR."""
        log = self.log
        try:
            log.append_replicated(buffer, headers)
            if leader_log_start > log.log_start_offset:
                log.delete_records_before(min(leader_log_start, log.log_end_offset))
        except OSError as error:
            raise self.failed(error) from error
        before = self.high_watermark
        self.high_watermark = max(before, min(leader_high_watermark, log.log_end_offset))
        if self.waiters and self.high_watermark > before:  # consumers that read from the replica next to them
            self._wake(self.waiters, self._bytes_between(before, self.high_watermark))

    def truncate_to(self, offset: int) -> None:
        """Drops what the leader doesn't have, from `offset` on. Raises KafkaError KAFKA_STORAGE_ERROR."""
        if offset < self.high_watermark:
            logger.warning("%r: truncated to %d, below its high watermark %d", self, offset, self.high_watermark)
        try:
            self.log.truncate_to(offset)
        except OSError as error:
            raise self.failed(error) from error
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        if self.damage_met is not None and self.damage_met[0] >= self.log.log_end_offset:
            self.damage_met = None
        self._wake_all()

    def restart_at(self, offset: int) -> None:
        """Drops everything: the leader's log starts at `offset`, beyond this one's end. Raises KafkaError
        KAFKA_STORAGE_ERROR."""
        try:
            self.log.truncate_fully_and_start_at(offset)
        except OSError as error:
            raise self.failed(error) from error
        self.high_watermark = offset
        self.damage_met = None
        self._wake_all()

    # ---- reading

    def read(
        self, offset: int, max_bytes: int, minimum_one: bool, read_committed: bool, small_bytes: int = WAIT
    ) -> Readable:
        """What a consumer may read from `offset`: at most `max_bytes`, but a whole first batch with `minimum_one`
        (KIP-74). Where it is at most `small_bytes`, it is the bytes themselves. Raises KafkaError OFFSET_OUT_OF_RANGE,
        KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE; BlockingIOError where it isn't in memory, unless `small_bytes` is WAIT."""
        return self._read(offset, max_bytes, minimum_one, self.high_watermark, small_bytes)

    def read_as_follower(self, offset: int, max_bytes: int, minimum_one: bool, small_bytes: int = WAIT) -> Readable:
        """As `read`, for a replica: up to the end."""
        return self._read(offset, max_bytes, minimum_one, self.log.log_end_offset, small_bytes)

    def _read(self, offset: int, max_bytes: int, minimum_one: bool, limit: int, small_bytes: int) -> Readable:
        log, high_watermark = self.log, self.high_watermark
        log_start = log.log_start_offset
        if offset == limit:
            return self.nothing_readable()
        if offset > log.log_end_offset and self.leader_epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.offset_not_available)  # the leader may well have it: no reason to start anew
        if offset > log.log_end_offset or offset < log_start:
            raise KafkaError(ErrorCode.offset_out_of_range)
        if offset > limit:  # a consumer that knows of records which aren't committed yet under this leader
            return self.nothing_readable()
        try:
            found = log.read(offset, max_bytes, limit, minimum_one, small_bytes == WAIT)
            ranges, size = resident(found, small_bytes)
        except BlockingIOError:
            raise
        except DamagedSegment as error:  # these bytes make no sense: the directory's others do
            self.damage_met = offset, f"fetches are refused there: {error}"
            raise KafkaError(ErrorCode.corrupt_message, str(error)) from error
        except OSError as error:
            raise self.failed(error) from error
        cut = size >= READ_AHEAD_BYTES and size < found[0].size
        return _new(Readable, (ranges, size, high_watermark, high_watermark, log_start, cut))

    def nothing_readable(self) -> Readable:
        """What a fetch is told while nothing can be sent to it."""
        return Readable((), 0, self.high_watermark, self.high_watermark, self.log.log_start_offset)

    def diverges(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where the log of who fetches at `fetch_offset`, having `last_fetched_epoch` there, leaves this one: the last
        epoch that both may have, and its end here. None where it doesn't. Raises KafkaError OFFSET_OUT_OF_RANGE.

        Source: KIP-595, Kafka's `Partition.readRecords`.
        """
        epoch, end = self.log.epochs.end_offset_for(last_fetched_epoch, self.log.log_end_offset)
        if epoch < 0 or end < 0:
            raise KafkaError(ErrorCode.offset_out_of_range)
        return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None
