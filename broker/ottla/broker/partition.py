"""One replica: its log, its role in the partition, its high watermark, and the batches that it appends as the leader.

Owned by the event loop. Clients' batches are checked, given offsets and written without another task running in
between. Records below the high watermark are committed; when the high watermark moves, the producers, coordinators and
fetches that wait for it are woken.

A replica leads, follows or does neither. A leader's `LeaderState` tracks its followers' offsets; where no follower has
to have a record for it to be committed, the high watermark is the log's end. `reading` reads a replica for fetches,
`follower_log` changes a follower's log, and `turns` orders the batches that can't be appended on arrival.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from ottla.broker import contents
from ottla.broker.admission import AdmissionRules, admit
from ottla.broker.commits import Commits
from ottla.broker.counters import TopicCounters
from ottla.broker.flushes import Flushes
from ottla.broker.log.log import Log
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.replica.leader import LeaderState
from ottla.broker.transactional_appends import (
    check_beginning,
    check_coordinators,
    check_epoch,
    check_marker,
    in_transaction,
)
from ottla.broker.turns import Turn, needs_turn
from ottla.broker.verification import NOT_NEEDED, Guard, Verifications
from ottla.broker.waiters import Waiter, bytes_between, wake
from ottla.metadata.image import INTERNAL_TOPICS
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol import batches
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import Marker, marker_batch
from ottla.protocol.received import Memory

logger = logging.getLogger(__name__)

NO_EPOCH = -1
NOBODY = -1
UP_TO_HIGH_WATERMARK = -1
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class Appended(NamedTuple):
    """The offsets of an appended batch. `append_time`, in ms, is −1 if the topic has CreateTime timestamps."""

    base_offset: int
    last_offset: int
    append_time: int = -1


class Partition:
    """A replica that this broker holds."""

    __slots__ = (
        "_commits",
        "_commits_at_once",
        "_deletions",
        "bytes_in",
        "bytes_out",
        "clock",
        "committed_waiters",
        "counters",
        "damage_met",
        "elected_uncleanly",
        "elr",
        "epoch",
        "flushes",
        "follower_waiters",
        "high_watermark",
        "index",
        "internal",
        "isr",
        "last_turn",
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
        "stable_told",
        "target_codec",
        "topic",
        "topic_id",
        "verifications",
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
        write_failed: Callable[[Partition], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.internal = topic in INTERNAL_TOPICS
        self.log = log
        self.counters = counters
        self.bytes_in = 0  # bytes that clients appended here
        self.bytes_out = 0  # bytes that consumers read here
        self.now_ms = now_ms
        self.clock = clock  # in seconds, by which the followers' progress is timed
        self.rules = AdmissionRules()
        self.elected_uncleanly = False  # whether the topic allows unclean elections
        self.min_isr = 1  # as the topic sets it; see `in_sync_min`
        self.target_codec: int | None = None  # None: the codec that the producer chose
        self.high_watermark = log.log_start_offset  # everything below is committed
        self.leader = NOBODY
        self.epoch = NO_EPOCH  # the newest leader epoch that this replica knows
        self.leader_epoch = NO_EPOCH  # the same while this replica leads; else NO_EPOCH
        self.leading: LeaderState | None = None
        self.partition_epoch = -1
        self.replicas: Sequence[int] = ()
        self.isr: Sequence[int] = ()
        self.elr: Sequence[int] = ()  # eligible leader replicas (KIP-966): they have all committed records
        self.offline = False
        self.damage_met: tuple[int, str] | None = None  # the last damage: its offset, and which work it stops and why
        self.write_failed = write_failed  # called so that another replica is elected leader
        self.waiters: list[Waiter] = []  # waiting fetches of consumers, for records below the high watermark
        self.committed_waiters: list[Waiter] = []  # the same, for records below the last stable offset
        self.stable_told = 0  # the last stable offset that `committed_waiters` were told last
        self.follower_waiters: list[Waiter] = []  # waiting fetches of followers, for records at the log's end
        self._commits = Commits()
        self._deletions = Commits()  # waits for deletions of records, by the low watermark
        self._commits_at_once = False
        self.verifications = Verifications()
        self.flushes = Flushes(log, self.failed)
        self.last_turn: Turn | None = None  # the place of the newest batch that couldn't be appended on arrival

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # ---- leadership

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition and can serve it."""
        return self.leader_epoch != NO_EPOCH and not self.offline

    def become_leader(self, state: PartitionState) -> None:
        """Makes this replica the leader, by `state`. If it leads in that epoch already, only the replicas and the ISR
        of `state` are taken over."""
        now = self.clock()
        if self.leading is None or state.leader_epoch != self.leader_epoch:
            self.log.epochs.assign(state.leader_epoch, self.log.log_end_offset)
            self.leading = LeaderState(state.leader, state.replicas, state.isr, self.log.log_end_offset, now)
            self.leader_epoch = state.leader_epoch
            logger.info("%r: leads in epoch %d from offset %d", self, state.leader_epoch, self.log.log_end_offset)
        else:
            self.leading.committed(state.replicas, state.isr, now)
        self._note(state)
        self.isr_moved()
        self.wake_all()

    def become_follower(self, state: PartitionState) -> None:
        """Makes this replica a follower of the leader that `state` names. If `state` names no leader, the replica
        follows no broker."""
        self.resign(f"broker {state.leader} leads in epoch {state.leader_epoch}")
        moved = state.leader_epoch != self.epoch
        self._note(state)
        if moved:
            self.wake_all()  # consumers that wait for this follower's records get an answer

    def go_offline(self) -> None:
        """Takes the replica offline, because its log directory has failed or its log is damaged: it no longer leads,
        follows or serves reads."""
        self.offline = True
        self.resign("its log directory has failed, or its log is damaged")
        self.wake_all()  # consumers that wait for a follower's records get the error, too

    def leave(self, reason: str) -> None:
        """Ends this broker's role in the partition, because the broker has no replica of it any more."""
        self.resign(reason)
        self.leader = NOBODY
        self.wake_all()

    def _note(self, state: PartitionState) -> None:
        self.leader = state.leader
        self.epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = state.isr
        self.elr = state.elr

    def resign(self, reason: str) -> None:
        """Ends this broker's leadership, if it leads: producers and coordinators that wait get
        NOT_LEADER_OR_FOLLOWER."""
        if self.leader_epoch == NO_EPOCH:
            return
        logger.info("%r: led until epoch %d: %s", self, self.leader_epoch, reason)
        self.leader_epoch = NO_EPOCH
        self.leading = None
        self._commits_at_once = False
        self.verifications.clear()
        self._commits.fail(KafkaError(ErrorCode.not_leader_or_follower))
        self._deletions.fail(KafkaError(ErrorCode.not_leader_or_follower))
        self.wake_all()

    @property
    def in_sync_min(self) -> int:
        """How many replicas must be in sync for a record to be committed: `min.insync.replicas`, but at most the number
        of replicas."""
        return min(self.min_isr, len(self.replicas))

    @property
    def under_min_isr(self) -> bool:
        """Whether no record can be committed at present, because too few replicas are in sync."""
        return len(self.isr) < self.in_sync_min

    def may_elect(self, replica: int) -> bool:
        """Whether the controller may elect `replica` as the next leader, as far as this broker knows."""
        return self.elected_uncleanly or replica in self.isr or replica in self.elr

    @property
    def frozen(self) -> bool:
        """Whether the high watermark mustn't move. Otherwise a replica that may be elected might lack a committed
        record."""
        return self.under_min_isr or bool(self.elr)

    def wait_for(self, candidates: frozenset[int]) -> None:
        """Makes the high watermark wait for these followers outside of the ISR, and no longer for other ones. Leaders
        only."""
        assert self.leading is not None
        if candidates != self.leading.candidates:
            self.leading.candidates = candidates
            self.isr_moved()

    def isr_moved(self) -> None:
        """Moves the watermarks after a change of the replicas that must have a record for it to be committed: the
        committed ISR, a proposed ISR, the candidates or the minimum."""
        if self.leading is not None:
            self._commits_at_once = self.leading.alone and not self.frozen
            self._advance()
            self._deletions.reached(self.leading.low_watermark(self.log.log_start_offset))

    def follower_fetched(self, replica: int, broker_epoch: int, offset: int, log_start_offset: int) -> bool:
        """Notes a follower's fetch, which shows that it has all records below `offset`. Returns whether the fetch
        counts and the follower isn't in sync yet. Leaders only."""
        assert self.leading is not None
        now = self.clock()
        if not self.leading.fetched(replica, broker_epoch, offset, log_start_offset, self.log.log_end_offset, now):
            return False
        self._advance()
        if self._deletions:
            self._deletions.reached(self.leading.low_watermark(self.log.log_start_offset))
        return replica not in self.leading.maximal_isr

    def _advance(self) -> None:
        """Raises the high watermark to the lowest end of the replicas in sync, and wakes requests that wait for
        this."""
        assert self.leading is not None
        before = self.high_watermark
        after = before if self.frozen else self.leading.advance(before, self.log.log_end_offset)
        if after == before:
            return
        self.high_watermark = after
        self._commits.reached(after)
        for waiter in self.follower_waiters:
            waiter.watermark_moved(self)
        if self.waiters:
            wake(self.waiters, self, bytes_between(self.log, before, after))
        if self.committed_waiters:
            self.stable_moved()

    def check_leader_epoch(self, epoch: int, *, follower_will_do: bool = False) -> None:
        """Raises KafkaError where a client's leader epoch `epoch` (−1: none stated) isn't the present one, or this
        broker can't serve the partition. Source: KIP-320, and KIP-392 for a consumer that may read from a follower."""
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
        """Raises OFFSET_NOT_AVAILABLE until a new leader's high watermark has reached the start of its epoch: before
        that, the leader may not know that some records are committed, although its predecessor has served them to
        consumers (KIP-207)."""
        if self.leading is not None and self.high_watermark < self.leading.epoch_start:
            raise KafkaError(ErrorCode.offset_not_available)

    # ---- writing

    @property
    def last_stable_offset(self) -> int:
        """The offset below which each transaction has ended, and its marker is committed (Kafka's LSO). Without
        transactions it is the high watermark."""
        high_watermark = self.high_watermark
        unstable = self.log.producers.transactions.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log.log_start_offset)

    def append(
        self, frame: Memory, start: int, end: int, version: int, quota: LoopQuota, guard: Guard | None = None
    ) -> Appended | None:
        """Appends the record set frame[start:end] of a Produce request; its offsets are patched in place.

        Returns None where the batch has to be appended by way of `ottla.broker.turns`: other batches wait before it, it
        needs another codec, or it is too large for a check on the event loop. A repeat of one of the producer's last
        five batches returns the original's offsets and writes nothing. `guard` is as in `append_admitted`. Raises
        KafkaError with the error code for the producer.
        """
        if self.last_turn is not None:
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
                self.counters.produce_requests -= 1  # the batch is counted when it is appended by way of `turns`
                return None
            batch, header = admitted
        return self.append_admitted(batch, header, guard)

    def append_admitted(self, batch: memoryview, header: BatchHeader, guard: Guard | None = None) -> Appended:
        """Appends a client's batch that has been admitted. A transactional batch needs the `guard` that `guard_for`
        gave before the transaction's coordinator confirmed the batch; None says that the request names no transactional
        id. Raises KafkaError."""
        if header.producer_id >= 0:
            producers = self.log.producers
            duplicate = producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.first_offset, duplicate.last_offset, duplicate.append_time)
            if header.attributes & batches.TRANSACTIONAL:
                if guard is None:
                    raise KafkaError(
                        ErrorCode.transactional_id_authorization_failed,
                        "the request has a transactional batch, and names no transactional id",
                    )
                check_beginning(producers.get(header.producer_id), header, self.verifications, guard, from_client=True)
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

    def guard_for(self, producer_id: int, epoch: int, first_sequence: int, *, bumps: bool) -> Guard:
        """The guard that a transactional batch needs. The caller takes it before it asks the transaction's coordinator,
        and passes it to the append afterwards. NOT_NEEDED where the transaction has begun in this partition already:
        then the coordinator needn't be asked. `first_sequence` is the batch's base sequence. `bumps` says whether the
        producer gets a new epoch with each transaction. Raises KafkaError INVALID_PRODUCER_EPOCH."""
        known = self.log.producers.get(producer_id)
        check_epoch(known, producer_id, epoch)
        if in_transaction(known, epoch):
            return NOT_NEEDED
        expiration_ms = self.log.config.producer_id_expiration_ms
        return self.verifications.ask(
            producer_id, epoch, first_sequence, bumps=bumps, now_ms=self.now_ms(), expiration_ms=expiration_ms
        )

    def append_batch(self, batch: bytearray, leader_epoch: int, guard: Guard | None = None) -> int:
        """Appends a coordinator's batch, which this broker has built itself; as with acks=all, there must be enough
        replicas in sync. `guard` is as in `append_admitted`. Returns the base offset. Raises KafkaError. `leader_epoch`
        is the epoch in which the coordinator works: if it has ended, the error is NOT_LEADER_OR_FOLLOWER."""
        self._check_coordinator(leader_epoch)
        header = batches.read_header(batch)
        if header.producer_id >= 0:
            known = self.log.producers.get(header.producer_id)
            check_coordinators(known, header, self.verifications, guard)
        return self._write(memoryview(batch), header, -1)

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, committed: bool, transaction_version: int
    ) -> int:
        """Appends the marker that ends a producer's transaction, as its coordinator demands; as with acks=all, there
        must be enough replicas in sync. A repeat of the last marker is appended once more. Returns the marker's offset.
        `transaction_version` is the version of the transaction's protocol, 0 where the coordinator doesn't state it.
        Raises KafkaError INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, NOT_LEADER_OR_FOLLOWER,
        NOT_ENOUGH_REPLICAS or KAFKA_STORAGE_ERROR."""
        self._check_coordinator(self.leader_epoch)
        known = self.log.producers.get(producer_id)
        check_marker(known, producer_id, epoch, coordinator_epoch, transaction_version)
        batch = marker_batch(producer_id, epoch, Marker(committed, coordinator_epoch, self.now_ms()))
        offset = self._write(memoryview(batch), batches.read_header(batch), -1)
        self.log.producers.transactions.replicated(self.high_watermark)
        return offset

    def _check_coordinator(self, leader_epoch: int) -> None:
        """Raises KafkaError where a coordinator that works in `leader_epoch` may not append now."""
        self.check_leader_epoch(-1)
        if leader_epoch != self.leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if self.under_min_isr:
            raise KafkaError(ErrorCode.not_enough_replicas)

    def _write(self, batch: memoryview, header: BatchHeader, append_time: int) -> int:
        log = self.log
        base_offset = log.log_end_offset
        batches.assign(batch, 0, base_offset, self.leader_epoch)
        try:
            log.append(batch, header, base_offset, self.leader_epoch, append_time)
        except OSError as error:
            raise self.failed(error) from error
        if header.attributes & batches.TRANSACTIONAL:
            self.verifications.appended(header)
        if self._commits_at_once:
            self.high_watermark = log.log_end_offset
            if self._commits:
                self._commits.reached(self.high_watermark)
            if self.waiters:
                wake(self.waiters, self, len(batch))
            if self.committed_waiters:
                self.stable_moved()
        if self.follower_waiters:
            wake(self.follower_waiters, self, len(batch))
        return base_offset

    def failed(self, error: OSError) -> KafkaError:
        """Reports a failed access to the log, and returns the error for clients. The log directory decides whether it
        is full or has failed."""
        self.log.directory_failed(error)
        self.write_failed(self)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.log.directory}: {error.strerror or error}")

    def delete_records(self, before: int) -> int:
        """Moves the log start offset to `before` (−1: the high watermark), and returns the new one. Raises KafkaError,
        POLICY_VIOLATION where the cleanup policy is compaction alone."""
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
        self.wake_all()  # so that the answers to followers carry the new log start offset
        return target

    def deleted(self, before: int) -> asyncio.Future[None]:
        """A future that is done when no replica in sync has a record below `before`. Leaders only."""
        assert self.leading is not None
        return self._deletions.wait_for(before - 1, self.leading.low_watermark(self.log.log_start_offset))

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the replicas in sync. Leaders only."""
        assert self.leading is not None
        return self.leading.low_watermark(self.log.log_start_offset)

    # ---- waiting

    def committed(self, offset: int) -> asyncio.Future[None]:
        """A future that is done when the record at `offset` is committed; fails with KafkaError when this broker stops
        leading."""
        return self._commits.wait_for(offset, self.high_watermark)

    @property
    def commits_waited_for(self) -> int:
        """How many requests wait until the high watermark passes their records."""
        return len(self._commits)

    def watchers(self, replica_id: int, read_committed: bool) -> list[Waiter]:
        """The list of waiting fetches to which one of `replica_id` belongs: the followers' list, or (for −1) one of the
        two lists of consumers. `read_committed` says whether the fetch reads committed records only."""
        if replica_id >= 0:
            return self.follower_waiters
        if not read_committed:
            return self.waiters
        if not self.committed_waiters:
            self.stable_told = self.last_stable_offset
        return self.committed_waiters

    def stable_moved(self) -> None:
        """Called when the high watermark has moved. Wakes the fetches that read committed records only, if the last
        stable offset has moved, too; otherwise these fetches are only told of the high watermark."""
        before, after = self.stable_told, self.last_stable_offset
        if after == before:
            for waiter in self.committed_waiters:
                waiter.watermark_moved(self)
            return
        self.stable_told = after
        wake(self.committed_waiters, self, bytes_between(self.log, before, after))

    def wake_all(self) -> None:
        """Wakes all waiting fetches, because the records that they wait for may never come."""
        wake(self.waiters, self, 0)
        wake(self.committed_waiters, self, 0)
        wake(self.follower_waiters, self, 0)
