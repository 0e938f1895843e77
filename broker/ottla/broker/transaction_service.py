"""Coordinates the transactions of the ids whose partitions of `__transaction_state` this broker leads.

This is the shell around the core `transaction.shard`, on the runtime that all coordinators share. It appends the core's
changes, waits for their commits, answers the clients, and hands the markers of decided transactions to the sender. It
also aborts transactions that are overdue, and lets unused ids expire. Rules:

1. A change is followed by a task of its own, until it is committed or this broker stops leading the partition. What
   follows from the change (its markers) doesn't depend on the client that asked for it.
2. A client is answered within `ANSWER_S`. If its change isn't committed by then, the answer is
   COORDINATOR_NOT_AVAILABLE, at which the client asks again; the change stays under way.
3. An answer that shares a response with the answers for other ids comes within `SHARED_ANSWER_S`. While a change of the
   id's partition has been uncommitted for longer than that, it comes at once. So the ids of a partition that commits
   nothing don't hold up the ids of other partitions.
4. If a decision needs a producer id that was never used, the service takes one from the metadata store. Then it makes
   the decision anew, because the state may have changed meanwhile.

Source: Kafka's TransactionCoordinator and TransactionStateManager.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from ottla.broker.cold_reads import ColdReads
from ottla.broker.coordination.led import Encoded, Led
from ottla.broker.coordination.replay import Replay, ReplayPartition
from ottla.broker.coordination.runtime import Runtime, RuntimeCounters, RuntimeLimits
from ottla.broker.marker_sender import Sending
from ottla.broker.transaction.decision import Answer, Limits, Moment, Wanted
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.initialization import Init, Producer
from ottla.broker.transaction.listing import Wish
from ottla.broker.transaction.markers import Markers
from ottla.broker.transaction.metadata import TopicPartition, Transaction
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC, partition_for
from ottla.broker.transaction.shard import Change, Plan, TransactionShard, encode
from ottla.broker.transaction.states import for_clients
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

ANSWER_S = 10.0  # shorter than the time for which clients wait
SHARED_ANSWER_S = 1.0
COMPLETE_AGAIN_S = 1.0
SLICE_SECONDS = 0.004
LOOKED_AT_PER_TURN = 500  # ids whose age is looked at in one turn of the event loop
BEGUN_PER_TURN = 100  # transactions whose markers begin to be sent in one turn of the event loop
_NO_CODEC = 0

Shard = Led[TransactionShard]
Decide = Callable[[TransactionShard, Moment, int | None], Plan | Wanted | None]


class Settings(Protocol):
    """The broker's settings by name."""

    def __getitem__(self, name: str, /) -> Any: ...


class ProducerIds(Protocol):
    """The source of new producer ids."""

    async def next(self) -> int:
        """A producer id that was never handed out before. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""


class MarkerSending(Protocol):
    """The sender of markers."""

    @property
    def waiting_count(self) -> int:
        """How many markers wait for the requests that are under way."""

    def send(self, sending: Sending) -> None:
        """Begins to send all missing markers of one transaction."""


@dataclass(slots=True)
class TransactionCounters(RuntimeCounters):
    """Plain counters, read by a scrape of the metrics."""

    time_outs: int = 0
    expirations: int = 0


class TransactionService:
    """The coordinator of transactions. All methods run on the event loop. The methods for requests raise KafkaError
    with the answer's error code.

    `partition_count` returns how many partitions `__transaction_state` has (or will have), `feature_level` the
    finalised level of the feature `transaction.version`, `wall_ms` the time in ms since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        partition_count: Callable[[], int],
        feature_level: Callable[[], int],
        producer_ids: ProducerIds,
        sender: MarkerSending,
        wall_ms: Callable[[], int],
        cold_reads: ColdReads,
    ) -> None:
        self.counters = TransactionCounters()
        self._partition_count = partition_count
        self._feature_level = feature_level
        self._producer_ids = producer_ids
        self._sender = sender
        self._wall_ms = wall_ms
        self._limits = Limits(
            timeout_ms_max=settings["transaction.max.timeout.ms"],
            expiration_ms=settings["transactional.id.expiration.ms"],
            two_phase_commit=settings["transaction.two.phase.commit.enable"],
        )
        self._sweep_s = settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000
        self._expiry_s = settings["transaction.remove.expired.transaction.cleanup.interval.ms"] / 1000
        self._refused_at_level_0 = 0
        self._complete_next: list[tuple[Shard, Markers]] = []
        # For each write that isn't settled, the event loop's time of its append, in the order of the appends.
        self._unsettled: dict[Shard, dict[asyncio.Future[None], float]] = {}
        self._runtime: Runtime[TransactionShard] = Runtime(
            TRANSACTIONS_TOPIC,
            self,
            RuntimeLimits(ANSWER_S, settings["transaction.state.log.load.buffer.size"], _NO_CODEC),
            self.counters,
            wall_ms,
            cold_reads,
        )

    # --- life ---

    def start(self) -> None:
        """Accepts requests from now on, and looks for overdue transactions and expired ids."""
        self._runtime.start()
        self._runtime.spawn(self._every(self._sweep_s, self.sweep))
        self._runtime.spawn(self._every(self._expiry_s, self.expire))

    async def stop(self) -> None:
        """Resigns from every partition of `__transaction_state`; requests that wait are answered NOT_COORDINATOR."""
        await self._runtime.stop()

    def became_leader(self, partition: ReplayPartition) -> None:
        """Begins to load `partition` of `__transaction_state`, which this broker leads in its `leader_epoch`."""
        self._runtime.became_leader(partition)

    def lost_leadership(self, index: int) -> None:
        """Resigns from partition `index`, which this broker no longer leads."""
        self._runtime.resigned(index)

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Changes nothing: the sender of markers itself drops partitions that the metadata lacks."""

    # --- requests ---

    # At level 0 of `transaction.version` brokers may register that don't know transactions. So no producer begins then,
    # and no transaction. The transactions that were open when the level was lowered go on to their ends.

    async def init_producer_id(self, transactional_id: str, init: Init) -> Answer:
        """Handles an InitProducerId request with a transactional id. Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED at
        level 0."""
        if not self._feature_level():
            raise self._at_level_0(f"{transactional_id}: its producer can't begin")
        return await self._answer(
            transactional_id,
            lambda shard, moment, unused: shard.init_producer_id(transactional_id, init, moment, unused),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Set[TopicPartition],
        client_version: int,
        *,
        shares_response: bool = False,
    ) -> ErrorCode:
        """Handles an AddPartitionsToTxn request that adds partitions, for a client of protocol `client_version` (V1 or
        V2). `shares_response` says that the request may be about other transactional ids, too. Raises
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED if a transaction would begin at level 0."""
        if not self._feature_level() and self._led(transactional_id).core.may_begin(transactional_id):
            raise self._at_level_0(f"{transactional_id}: its next transaction can't begin")
        answer = await self._answer(
            transactional_id,
            lambda shard, moment, _: shard.add_partitions(
                transactional_id, producer, partitions, client_version, moment
            ),
            shares_response=shares_response,
        )
        return answer.error

    def _at_level_0(self, what: str) -> KafkaError:
        self._refused_at_level_0 += 1
        if self._refused_at_level_0 & (self._refused_at_level_0 - 1) == 0:
            logger.warning(
                "%s, because the feature transaction.version has the level 0: raise the level if all brokers shall "
                "know transactions (refused so far: %d)",
                what, self._refused_at_level_0,
            )  # fmt: skip
        return KafkaError(ErrorCode.transactional_id_authorization_failed, "the level of transaction.version is 0")

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Handles an AddPartitionsToTxn request that only verifies that the transaction has the partitions, and adds
        none. Returns an error code for each partition."""
        return self._led(transactional_id).core.verify(transactional_id, producer, partitions)

    async def end(self, transactional_id: str, ending: Ending) -> Answer:
        """Handles an EndTxn request. The answer is given when the decision is committed, before the markers are
        written."""
        return await self._answer(
            transactional_id, lambda shard, moment, unused: shard.end(transactional_id, ending, moment, unused)
        )

    def described(self, transactional_id: str) -> Transaction:
        """The committed state of a transactional id. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request)
        found = self._led(transactional_id).core.described(transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return found

    async def listed(self, wish: Wish) -> list[tuple[str, Transaction]]:
        """All transactional ids of this broker that `wish` admits. Raises COORDINATOR_LOAD_IN_PROGRESS while a
        partition loads.

        The ids are looked at in slices, between which other requests are served: each id is listed in the state of one
        moment, and not all ids in the state of the same moment.
        """
        now_ms = self._wall_ms()
        found = []
        for led in self._runtime.all_serving():
            slice_end = perf_counter() + SLICE_SECONDS
            for transactional_id in list(led.core.transactions):
                transaction = led.core.described(transactional_id)
                if transaction is not None and wish.admits(transactional_id, transaction, now_ms):
                    found.append((transactional_id, transaction))
                if perf_counter() > slice_end:
                    await asyncio.sleep(0)
                    slice_end = perf_counter() + SLICE_SECONDS
        return found

    def partition_states(self) -> dict[str, int]:
        """How many partitions of `__transaction_state` that this broker leads are loading, active, and failed."""
        return self._runtime.states()

    @property
    def markers_waiting(self) -> int:
        """How many markers wait for the requests that are under way to other brokers."""
        return self._sender.waiting_count

    def counts(self) -> Counter[str]:
        """How many transactional ids of this broker have an open transaction (`open`), a decided transaction whose
        markers are being written (`ending`), and no transaction (`idle`)."""
        counts = Counter({"open": 0, "ending": 0, "idle": 0})
        for led in self._runtime.partitions.values():
            counts.update(led.core.counts())
        return counts

    # --- time ---

    async def sweep(self) -> None:
        """Aborts the transactions that are open for longer than their time-outs."""
        async for led, ids in self._in_slices(TransactionShard.open_ids):
            for count, transactional_id in enumerate(led.core.overdue(ids, self._wall_ms()), 1):
                if not self._runtime.holds(led):
                    break
                with self._runtime.surviving(f"the time-out of {transactional_id}"):
                    await self._abort_overdue(led, transactional_id)
                if count % BEGUN_PER_TURN == 0:
                    await asyncio.sleep(0)  # thousands of clients may have gone at once

    async def _abort_overdue(self, led: Shard, transactional_id: str) -> None:
        try:
            plan = await self._decide(
                lambda: led,
                lambda shard, moment, unused: shard.abort_overdue(transactional_id, moment, unused),
            )
            if plan is not None and plan.change is not None:
                self._write(led, [plan.change])
                self.counters.time_outs += 1
                logger.info("%s: the transaction took longer than its time-out, and is aborted", transactional_id)
        except KafkaError as error:
            logger.warning("%s: its overdue transaction could not be aborted yet: %s", transactional_id, error)

    async def expire(self) -> None:
        """Appends tombstones for ids that weren't used for the expiration time."""
        failed = None
        async for led, ids in self._in_slices(TransactionShard.ids):
            changes = [] if led is failed else led.core.expire(ids, self._wall_ms())
            if not changes:
                continue
            try:
                self._write(led, changes)
            except KafkaError as error:
                logger.warning("tombstones of transactional ids could not be written: %s", error)
                failed = led
            else:
                self.counters.expirations += len(changes)

    async def _in_slices(
        self, ids_of: Callable[[TransactionShard], list[str]]
    ) -> AsyncIterator[tuple[Shard, Sequence[str]]]:
        """The ids of all loaded partitions, in slices between which other requests are served. Each id comes once; it
        may have changed, or gone, since the list of the ids was made."""
        for led in list(self._runtime.partitions.values()):
            ids = [] if led.loading else ids_of(led.core)
            for start in range(0, len(ids), LOOKED_AT_PER_TURN):
                if not self._runtime.holds(led):
                    break
                yield led, ids[start : start + LOOKED_AT_PER_TURN]
                await asyncio.sleep(0)

    async def _every(self, seconds: float, work: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(seconds)
            with self._runtime.surviving("time-outs"):
                await work()

    # --- calls of the runtime ---

    def empty(self) -> TransactionShard:
        """A core without transactional ids."""
        return TransactionShard(self._limits)

    async def loaded(self, led: Shard, replay: Replay) -> None:
        """Sends the markers of all decided transactions again, in this coordinator's epoch."""
        begun = led.core.take_begun()
        logger.info(
            "%s-%d: loaded %d transactional ids, of which %d have markers missing",
            TRANSACTIONS_TOPIC, led.partition.index, len(led.core.transactions), len(begun),
        )  # fmt: skip
        for start in range(0, len(begun), BEGUN_PER_TURN):
            self._send(led, begun[start : start + BEGUN_PER_TURN])
            await asyncio.sleep(0)

    def resigned(self, led: Shard) -> None:
        """Answers NOT_COORDINATOR to the requests that wait for commits in the partition."""
        for waits in self._unsettled.pop(led, {}):
            if not waits.done():
                waits.set_exception(KafkaError(ErrorCode.not_coordinator))

    def for_clients(self, error: KafkaError) -> KafkaError:
        """The error that a client gets where `error` is an error of the log or of its replication."""
        return for_clients(error)

    # --- deciding and writing ---

    def _led(self, transactional_id: str) -> Shard:
        """The loaded partition of `__transaction_state` that has the id. Raises an error of `Runtime.serving`."""
        return self._runtime.serving(partition_for(transactional_id, self._partition_count()))

    async def _answer(self, transactional_id: str, decide: Decide, *, shares_response: bool = False) -> Answer:
        if not transactional_id:
            return Answer(ErrorCode.invalid_request)
        led = self._led(transactional_id)

        def the_same() -> Shard:
            if not self._runtime.holds(led):
                raise KafkaError(ErrorCode.not_coordinator)
            return led

        try:
            async with asyncio.timeout(self._shared_answer_s(led) if shares_response else ANSWER_S):
                plan = await self._decide(the_same, decide)
                assert plan is not None
                if plan.change is not None:
                    await asyncio.shield(self._write(led, [plan.change]))
        except TimeoutError:
            raise KafkaError(ErrorCode.coordinator_not_available, "not replicated in time") from None
        return plan.answer

    def _shared_answer_s(self, led: Shard) -> float:
        """How long an answer may take that shares its response with others."""
        oldest_s = next(iter(self._unsettled.get(led, {}).values()), None)
        is_stuck = oldest_s is not None and oldest_s + SHARED_ANSWER_S <= asyncio.get_running_loop().time()
        return 0.0 if is_stuck else SHARED_ANSWER_S

    async def _decide(self, led: Callable[[], Shard], decide: Decide) -> Plan | None:
        """Makes a decision, with a new producer id if the decision needs one."""
        plan = decide(led().core, self._moment(), None)
        if isinstance(plan, Wanted):
            try:
                async with asyncio.timeout(ANSWER_S):
                    unused = await self._producer_ids.next()
            except TimeoutError:
                raise KafkaError(
                    ErrorCode.coordinator_not_available, "no new producer id was available in time"
                ) from None
            plan = decide(led().core, self._moment(), unused)
            assert not isinstance(plan, Wanted)
        return plan

    def _write(self, led: Shard, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Appends decided changes. The returned future is done when the changes are committed, and fails when this
        broker stops leading the partition. If it is certain that nothing was appended, the changes are taken back, and
        KafkaError is raised."""
        try:
            if not self._runtime.holds(led):
                raise KafkaError(ErrorCode.not_coordinator)
            offset = self._runtime.append(led, changes, self._encoded(changes))
        except KafkaError as error:
            led.core.append_failed(changes)
            raise for_clients(error) from error
        except Exception:  # the records may be in the log or not, so the log is read again
            if self._runtime.holds(led):
                self._runtime.resigned(led.partition.index)
                self._runtime.became_leader(led.partition)
            raise
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settled.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody may wait for it
        first = led.core.first_unshown
        if first is None or first > offset:
            self._send(led, led.core.take_begun())
            settled.set_result(None)
            return settled
        self._unsettled.setdefault(led, {})[settled] = asyncio.get_running_loop().time()
        self._runtime.spawn(self._settle(led, offset, settled))
        return settled

    def _encoded(self, changes: Sequence[Change]) -> list[Encoded]:
        """The records of `changes`. Raises KafkaError if a text from a client is too long for its field in a record."""
        level = self._feature_level()
        try:
            return [encode(change, level) for change in changes]
        except struct.error:
            raise KafkaError(
                ErrorCode.unknown_server_error,
                "the transactional id or a topic's name is longer than a record may hold",
            ) from None

    async def _settle(self, led: Shard, offset: int, settled: asyncio.Future[None]) -> None:
        try:
            await self._runtime.settled(led, offset)
        except KafkaError:
            return  # `resigned` has answered
        self._unsettled.get(led, {}).pop(settled, None)
        self._send(led, led.core.take_begun())
        if not settled.done():
            settled.set_result(None)

    # --- markers ---

    def _send(self, led: Shard, begun: Iterable[Markers]) -> None:
        for markers in begun:
            self._sender.send(_Sending(self, led, markers))

    def holds(self, led: Shard) -> bool:
        """Whether this broker has led `led`'s partition without a break since the object `led` was made."""
        return self._runtime.holds(led)

    def progressed(self, led: Shard, markers: Markers) -> None:
        """Completes the transaction to which `markers` belong, if no marker is missing."""
        if markers.missing:
            return
        self._complete_next.append((led, markers))
        if len(self._complete_next) == 1:
            self._runtime.spawn(self._complete_all())

    async def _complete_all(self) -> None:
        """Completes the transactions in `_complete_next`, in slices: an answer to WriteTxnMarkers may be the last one
        for thousands of transactions."""
        while self._complete_next:
            taken = self._complete_next[:BEGUN_PER_TURN]
            for led, markers in taken:
                self._runtime.spawn(self._complete(led, markers))
            await asyncio.sleep(0)  # further transactions may join the list meanwhile
            del self._complete_next[: len(taken)]

    async def _complete(self, led: Shard, markers: Markers) -> None:
        """Writes the record by which the transaction is complete, and tries again after each failure."""
        while self._runtime.holds(led):
            plan = led.core.complete(markers, self._moment())
            if plan is None or plan.change is None:
                return
            try:
                self._write(led, [plan.change])
            except KafkaError as error:
                logger.warning("%s: its transaction can't be completed yet: %s", markers.transactional_id, error)
                await asyncio.sleep(COMPLETE_AGAIN_S)
            else:
                return

    def _moment(self) -> Moment:
        return Moment(self._wall_ms(), self._feature_level())


class _Sending:
    """A transaction in a partition of `__transaction_state` that this broker leads, as the marker sender sees it."""

    def __init__(self, service: TransactionService, led: Shard, markers: Markers) -> None:
        self.markers = markers
        self._service = service
        self._led = led

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch in which this broker leads the partition of `__transaction_state`."""
        return self._led.leader_epoch

    @property
    def is_wanted(self) -> bool:
        """Whether this broker still coordinates the transaction, and the transaction hasn't ended."""
        markers = self.markers
        return not markers.stopped and self._led.core.is_current(markers) and self._service.holds(self._led)

    def progressed(self) -> None:
        """Called when fewer markers are missing: completes the transaction if none is missing."""
        self._service.progressed(self._led, self.markers)
