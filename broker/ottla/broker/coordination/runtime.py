"""Leads the partitions of one internal topic for a coordinator: loads, appends, waits for commits, resigns.

Each partition's state is a `led.Core`, which is pure, and each coordinator is a `Kind`. The runtime enforces the rules
that all coordinators share:

1. An append that fails changes nothing: the core applies changes only after their append. An append carries the leader
   epoch in which the partition was loaded.
2. A request whose append isn't committed in time is answered COORDINATOR_NOT_AVAILABLE, but the append stays: it may be
   committed later.
3. When this broker stops leading a partition, the partition's state is dropped, and waiting requests are answered
   NOT_COORDINATOR. The next leader replays the committed records.

Changes that are gathered in one turn of the event loop are appended as one batch.

An unexpected error is logged and counted. It ends only the work in which it happened: a request, a timer's call, or a
load, which is tried again.

Source: Kafka's CoordinatorRuntime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from ottla.broker.cold_reads import ColdReads
from ottla.broker.coordination.committed_view import CommittedView
from ottla.broker.coordination.led import NO_TRANSACTION, C, Encoded, Gathered, Led, Transaction
from ottla.broker.coordination.replay import Replay, ReplayPartition
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 1_000  # how many gathered changes are appended at most in one batch
CONCURRENT_LOADS = 4
LOAD_AGAIN_SECONDS = 1.0  # doubled after each further failure, up to LOAD_AGAIN_SECONDS_MAX
LOAD_AGAIN_SECONDS_MAX = 60.0
SETTLE_AGAIN_SECONDS = 0.1


class Kind(Protocol[C]):
    """The part of a coordinator's interface that the runtime uses."""

    def empty(self) -> C:
        """A core for a partition without records."""

    async def loaded(self, led: Led[C], replay: Replay) -> None:
        """Called when the partition's core has applied the whole log, and the log is committed. Requests for the
        partition are served from now on."""

    def resigned(self, led: Led[C]) -> None:
        """Answers NOT_COORDINATOR to waiting requests: this broker no longer leads the partition."""

    def for_clients(self, error: KafkaError) -> KafkaError:
        """The error that a client gets where `error` is an error of the log or of its replication."""


@dataclass(slots=True)
class RuntimeCounters:
    """Plain counters, read by a scrape of the metrics."""

    unreadable_records: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """The runtime's limits, from the settings of an internal topic."""

    commit_timeout_s: float
    load_chunk_bytes: int
    codec: int


class Runtime(Generic[C]):
    """The partitions of `topic` that this broker leads, by index in `partitions`. All methods run on the event loop.

    `wall_ms` returns the time in ms since 1970.
    """

    def __init__(
        self,
        topic: str,
        kind: Kind[C],
        limits: RuntimeLimits,
        counters: RuntimeCounters,
        wall_ms: Callable[[], int],
        cold_reads: ColdReads,
    ) -> None:
        self.topic = topic
        self.partitions: dict[int, Led[C]] = {}
        self.counters = counters
        self.accepting = False
        self._kind = kind
        self._limits = limits
        self._wall_ms = wall_ms
        self._cold_reads = cold_reads
        self._tasks: set[asyncio.Task[None]] = set()
        self._load_slots = asyncio.Semaphore(CONCURRENT_LOADS)

    # --- life ---

    def start(self) -> None:
        """Accepts requests from now on."""
        self.accepting = True

    async def stop(self) -> None:
        """Resigns from every partition; waiting requests are answered NOT_COORDINATOR."""
        self.accepting = False
        for index in list(self.partitions):
            self.resigned(index)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def became_leader(self, partition: ReplayPartition) -> None:
        """Begins to load `partition`, which this broker leads in its `leader_epoch`."""
        led = self.partitions.get(partition.index)
        if led is not None and led.partition is partition:
            # This broker has led without a break, so the log wasn't truncated.
            led.leader_epoch = partition.leader_epoch
            return
        if led is not None:
            self.resigned(partition.index)
        core = self._kind.empty()
        led = Led(partition, partition.leader_epoch, core, CommittedView(partition, core.unshown))
        self.partitions[partition.index] = led
        if partition.log.log_start_offset == partition.log.log_end_offset:
            led.loading = False
        else:
            self.spawn(self._load(led))

    def resigned(self, index: int) -> None:
        """Drops the state of partition `index`, which this broker no longer leads."""
        led = self.partitions.pop(index, None)
        if led is None:
            return
        self._kind.resigned(led)
        led.view.resign(KafkaError(ErrorCode.not_coordinator))
        gathered, led.gathered = led.gathered, []
        for each in gathered:
            each.fail(KafkaError(ErrorCode.not_coordinator))

    def holds(self, led: Led[C]) -> bool:
        """Whether this broker has led `led`'s partition without a break since the object `led` was made."""
        return self.partitions.get(led.partition.index) is led

    def serving(self, index: int) -> Led[C]:
        """The loaded partition `index`. Raises KafkaError: COORDINATOR_NOT_AVAILABLE while the runtime accepts no
        requests, NOT_COORDINATOR if this broker doesn't lead the partition, COORDINATOR_LOAD_IN_PROGRESS while it
        loads."""
        if not self.accepting:
            raise KafkaError(ErrorCode.coordinator_not_available)
        led = self.partitions.get(index)
        if led is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if led.loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return led

    def all_serving(self) -> list[Led[C]]:
        """All partitions, each of them loaded. Raises KafkaError: COORDINATOR_NOT_AVAILABLE while the runtime accepts
        no requests, COORDINATOR_LOAD_IN_PROGRESS while a partition loads."""
        if not self.accepting:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if any(led.loading for led in self.partitions.values()):
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return list(self.partitions.values())

    def states(self) -> dict[str, int]:
        """How many partitions that this broker leads are loading, active, and failed (to be loaded again)."""
        states = dict.fromkeys(("loading", "active", "failed"), 0)
        for led in self.partitions.values():
            states["active" if not led.loading else "failed" if led.failures else "loading"] += 1
        return states

    # --- writing ---

    def append(
        self,
        led: Led[C],
        changes: Sequence[Any],
        encoded: Sequence[Encoded],
        transaction: Transaction = NO_TRANSACTION,
    ) -> int:
        """Appends one batch, which the core then applies; the batch may belong to a `transaction`. Returns the last
        record's offset. If it raises KafkaError, nothing has changed."""
        producer_id, producer_epoch, guard = transaction
        now_ms = self._wall_ms()
        entries = [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(encoded)]
        batch = build_batch(
            entries,
            codec=self._limits.codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transaction is not NO_TRANSACTION,
        )
        base_offset = led.partition.append_batch(bytearray(batch), led.leader_epoch, guard)
        led.core.appended(changes, base_offset, producer_id)
        led.view.appended(len(changes))
        led.last_appended = base_offset + len(changes) - 1
        return led.last_appended

    def append_marker(
        self, led: Led[C], producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, transaction_version: int
    ) -> int:
        """Appends the marker that ends a producer's transaction in the partition, which the core then applies. Returns
        the marker's offset. If it raises KafkaError, an error of `Partition.append_marker`, nothing has changed."""
        if led.partition.leader_epoch != led.leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        offset = led.partition.append_marker(producer_id, epoch, coordinator_epoch, commit, transaction_version)
        led.view.appended(led.core.decided(producer_id, commit, offset, False))
        led.last_appended = offset
        return offset

    async def write_gathered(self, led: Led[C], changes: Sequence[Any], encoded: Sequence[Encoded]) -> None:
        """Appends `changes` in one batch with the other changes of this turn of the event loop, and waits until the
        batch is committed. Raises KafkaError, with the error for clients."""
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not led.gathered:
            asyncio.get_running_loop().call_soon(self.flush, led)
        led.gathered.append(Gathered(changes, encoded, written))
        if len(led.gathered) >= BATCH_RECORDS_MAX:
            self.flush(led)
        await self.committed(led, await written)

    def flush(self, led: Led[C]) -> None:
        """Appends the gathered changes. A caller that plans changes from the core's state calls this first."""
        gathered, led.gathered = led.gathered, []
        if not gathered:
            return
        failure = KafkaError(ErrorCode.unknown_server_error)
        with self.surviving(f"{len(gathered)} writes to {self.topic}-{led.partition.index}"):
            try:
                offset = self.append(
                    led,
                    [change for each in gathered for change in each.changes],
                    [record for each in gathered for record in each.encoded],
                )
            except KafkaError as error:
                failure = self._kind.for_clients(error)
            else:
                for each in gathered:
                    if not each.written.done():
                        each.written.set_result(offset)
                return
        for each in gathered:
            each.fail(failure)

    async def committed(self, led: Led[C], offset: int) -> None:
        """Waits until the record at `offset` is committed. Raises KafkaError, with the error for clients."""
        if led.partition.high_watermark > offset:
            return
        try:
            async with asyncio.timeout(self._limits.commit_timeout_s):
                await led.partition.committed(offset)
        except TimeoutError:
            raise KafkaError(ErrorCode.coordinator_not_available, "the records weren't replicated in time") from None
        except KafkaError as error:
            raise self._kind.for_clients(error) from error

    async def settled(self, led: Led[C], offset: int) -> None:
        """Waits until the record at `offset` is committed and visible, however long that takes. Raises KafkaError
        NOT_COORDINATOR when this broker stops leading the partition; even then, the record may be committed later."""
        while self.holds(led):
            try:
                await led.partition.committed(offset)
                await led.view.shown()
            except KafkaError:
                await asyncio.sleep(SETTLE_AGAIN_SECONDS)  # the replica stopped leading for a moment, or for good
            else:
                if self.holds(led):
                    return
        raise KafkaError(ErrorCode.not_coordinator)

    async def shown(self, led: Led[C]) -> None:
        """Waits until all records that are committed now are visible. Raises KafkaError, with the error for clients."""
        try:
            await led.view.shown()
        except KafkaError as error:
            raise self._kind.for_clients(error) from error
        if not self.holds(led):  # another broker may have led meanwhile, and shown newer records
            raise KafkaError(ErrorCode.not_coordinator)

    # --- loading ---

    async def _load(self, led: Led[C]) -> None:
        partition = led.partition
        replay = Replay(self.topic, partition, led.core, self._limits.load_chunk_bytes, self._cold_reads)
        async with self._load_slots:
            if not self.holds(led):
                return
            try:
                await replay.run()
            except OSError as error:
                partition.failed(error)  # if the log directory has failed, this ends the leadership, too
                logger.error("%s-%d can't be read: %s", self.topic, partition.index, error)
                self.spawn(self._load_again(led))
                return
            except Exception:  # the load is tried again, so that clients needn't wait for the next election
                logger.exception("%s-%d couldn't be loaded; the load is tried again", self.topic, partition.index)
                self.counters.errors += 1
                self.spawn(self._load_again(led))
                return
        if not self.holds(led):
            return
        # A new leader doesn't know at first which records its predecessor answered as committed. So it waits until its
        # whole log is committed, as in KIP-207.
        end = partition.log.log_end_offset
        try:
            await partition.committed(end - 1)
            led.view.appended(0)
            await led.view.shown()
        except KafkaError:
            return
        if not self.holds(led):
            return
        led.last_appended = end - 1
        led.loading = False
        self.counters.unreadable_records += replay.unreadable
        await self._kind.loaded(led, replay)

    async def _load_again(self, led: Led[C]) -> None:
        """Loads a partition again after a pause, because file descriptors or memory may be free by then."""
        led.failures += 1
        await asyncio.sleep(min(LOAD_AGAIN_SECONDS * 2 ** (led.failures - 1), LOAD_AGAIN_SECONDS_MAX))
        if self.holds(led):
            self.resigned(led.partition.index)
            self.became_leader(led.partition)
            self.partitions[led.partition.index].failures = led.failures

    # --- unexpected errors ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` until it ends, or the runtime stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a coordinator's task failed", exc_info=task.exception())
            self.counters.errors += 1

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        """Confines an unexpected error to the work on one group or one request: the error is logged and counted."""
        try:
            yield
        except Exception:
            logger.exception("a coordinator's work on %s failed", what)
            self.counters.errors += 1
