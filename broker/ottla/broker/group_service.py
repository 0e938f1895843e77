"""Runs the groups whose partitions of `__consumer_offsets` this broker leads.

This is the shell around the pure core `group.shard`, on the runtime that all coordinators share. A shard has the groups
of one partition. The shell routes a request to the group's shard, performs the effects that the core returns (records
to append, answers, timers) in order, and sets one timer for all groups. A change of the stored state is
a record: the core applies it as soon as the record is appended, and the answer is sent when the record is committed.

If an OffsetFetch waits too long for uncommitted records, it is answered UNSTABLE_OFFSET_COMMIT, and the client asks
this broker again. Kafka answers NOT_COORDINATOR, after which librdkafka (2.16, its issue 5586) never asks again, and
its consumer never reads a record. Ottla answers NOT_COORDINATOR if another broker may have been elected, because this
broker hasn't heard from the metadata store for a while; the client then looks for that broker. A request for the
offsets of all topics is always answered NOT_COORDINATOR, because UNSTABLE_OFFSET_COMMIT is an error of a partition.

Source: Kafka's GroupCoordinatorService.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ottla.broker.cold_reads import ColdReads
from ottla.broker.coordination.certainty import Certainty
from ottla.broker.coordination.led import NO_TRANSACTION, Encoded, Led, Transaction
from ottla.broker.coordination.replay import Replay, ReplayPartition
from ottla.broker.coordination.runtime import BATCH_RECORDS_MAX, Runtime, RuntimeCounters, RuntimeLimits
from ottla.broker.coordination.timers import Timers, steady_ms
from ottla.broker.group.effects import NEVER_MS, Answer, Effects, Join, Leaver, Limits, Now, Store, Sync
from ottla.broker.group.group import Group, GroupType
from ottla.broker.group.partitioning import OFFSETS_TOPIC, partition_for
from ottla.broker.group.records import Committed, GroupKey, OffsetKey
from ottla.broker.group.shard import Change, GroupShard, OffsetToCommit, Plan, encode
from ottla.broker.group.states import State, for_clients
from ottla.broker.marker_sender import Marker
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import TopicPartition
from ottla.broker.verification import NOT_NEEDED
from ottla.protocol.batches import NO_SEQUENCE
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

LOADED_PER_TURN = 200  # groups whose members' sessions begin in one turn of the event loop

_OF_COORDINATORS = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)

Shard = Led[GroupShard]


class Settings(Protocol):
    """The broker's settings by name."""

    def __getitem__(self, name: str, /) -> Any: ...


class TransactionalCommits(NamedTuple):
    """The commits of one transaction in a partition that this broker leads."""

    led: Shard
    transaction: Transaction

    @property
    def partition(self) -> TopicPartition:
        """The partition of `__consumer_offsets`."""
        return TopicPartition(OFFSETS_TOPIC, self.led.partition.index)

    @property
    def needs_confirmation(self) -> bool:
        """Whether the transaction's coordinator must confirm that the transaction has the partition."""
        return self.transaction.guard is not NOT_NEEDED


@dataclass(slots=True)
class GroupCounters(RuntimeCounters):
    """Plain counters, read by a scrape of the metrics."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0


class GroupService:
    """The coordinator of groups. All methods run on the event loop. The methods for requests raise KafkaError with the
    answer's error code.

    `partition_count` returns how many partitions `__consumer_offsets` has (or will have), `wall_ms` the time in ms
    since 1970. `leads_for_sure` returns False if another broker may have been elected without this broker's knowledge.
    """

    def __init__(
        self,
        settings: Settings,
        partition_count: Callable[[], int],
        wall_ms: Callable[[], int],
        cold_reads: ColdReads,
        leads_for_sure: Callable[[], bool],
    ) -> None:
        self.counters = GroupCounters()
        self._leads_for_sure = leads_for_sure
        self._partition_count = partition_count
        self._wall_ms = wall_ms
        self._limits = _limits_of(settings)
        self._expiry_interval_s = settings["offsets.retention.check.interval.ms"] / 1000
        self._runtime: Runtime[GroupShard] = Runtime(
            OFFSETS_TOPIC,
            self,
            RuntimeLimits(
                commit_timeout_s=settings["offsets.commit.timeout.ms"] / 1000,
                load_chunk_bytes=settings["offsets.load.buffer.size"],
                codec=settings["offsets.topic.compression.codec"],
            ),
            self.counters,
            wall_ms,
            cold_reads,
        )
        self._certainty = Certainty(leads_for_sure, self._runtime.spawn)
        self._timers: Timers[GroupShard, Group] = Timers(
            self._runtime, self._time_passed, lambda group: f"the time-outs of group {group.group_id}"
        )

    # --- life ---

    def start(self) -> None:
        """Accepts requests from now on, and expires offsets."""
        self._runtime.start()
        self._runtime.spawn(self._expire_forever())

    async def stop(self) -> None:
        """Resigns from every partition of `__consumer_offsets`; requests that wait are answered NOT_COORDINATOR."""
        self._timers.stop()
        await self._runtime.stop()

    def became_leader(self, partition: ReplayPartition) -> None:
        """Begins to load `partition` of `__consumer_offsets`, which this broker leads in its `leader_epoch`."""
        self._runtime.became_leader(partition)

    def lost_leadership(self, index: int) -> None:
        """Resigns from partition `index`, which this broker no longer leads."""
        self._runtime.resigned(index)

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Deletes the offsets of deleted topics, in all partitions that are loaded."""
        names = list(topics)
        for shard in list(self._runtime.partitions.values()):
            with self._runtime.surviving(f"the offsets of the deleted topics {', '.join(names)}"):
                if not shard.loading:
                    self._delete(shard, shard.core.topics_deleted(names, BATCH_RECORDS_MAX))

    def _delete(self, shard: Shard, plans: Iterator[Plan]) -> None:
        with self._runtime.surviving("the offsets of deleted topics"):
            self._runtime.flush(shard)
            plan = next(plans, None) if self._runtime.holds(shard) else None
            if plan is not None:
                self.counters.offset_deletions += len(plan.changes)
                self._append_unwatched(shard, plan)
                asyncio.get_running_loop().call_soon(self._delete, shard, plans)  # other requests are served in between

    # --- membership ---

    def join(self, group_id: str, join: Join) -> asyncio.Future[Answer]:
        """Handles a JoinGroup request. Returns `join.ticket`, a future that `ticket()` made. If the request is
        accepted, the future gets the answer after the rebalance."""
        shard = self._shard_of(group_id)
        effects = shard.core.join(group_id, join, self._now())
        self._perform(shard, shard.core.groups.get(group_id), effects)
        ticket: asyncio.Future[Answer] = join.ticket
        return ticket

    def sync(self, group_id: str, sync: Sync) -> asyncio.Future[Answer]:
        """Handles a SyncGroup request. Returns `sync.ticket`, a future that `ticket()` made. The future gets the answer
        when the assignments are committed."""
        shard = self._shard_of(group_id)
        effects = shard.core.sync(group_id, sync, self._now())
        self._perform(shard, shard.core.groups.get(group_id), effects)
        ticket: asyncio.Future[Answer] = sync.ticket
        return ticket

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Handles a Heartbeat request, and returns the error code of the answer: NONE for every heartbeat while the
        group's partition loads."""
        try:
            shard = self._shard_of(group_id)
        except KafkaError as error:
            return ErrorCode.none if error.code is ErrorCode.coordinator_load_in_progress else error.code
        code = shard.core.heartbeat(group_id, member_id, generation, instance_id, self._now())
        group = shard.core.groups.get(group_id)
        if group is not None:
            self._arm(shard, group)
        return code

    async def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[Answer]:
        """Handles a LeaveGroup request: returns an answer for each member that leaves. If the group has become empty,
        the answers wait until the record of the empty group is committed."""
        shard = self._shard_of(group_id)
        answers, effects = shard.core.leave(group_id, leavers, self._now())
        before = shard.last_appended
        self._perform(shard, shard.core.groups.get(group_id), effects)
        if shard.last_appended > before:
            await self._runtime.committed(shard, shard.last_appended)
        return answers

    def ticket(self) -> asyncio.Future[Answer]:
        """A new future for the answer to a JoinGroup or SyncGroup request."""
        return asyncio.get_running_loop().create_future()

    # --- offsets ---

    async def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        retention_ms: int = -1,
    ) -> list[ErrorCode]:
        """Handles an OffsetCommit request: returns an error code for each offset, once the offsets' records are
        committed."""
        shard = self._shard_of(group_id, allow_empty=True)
        plan = shard.core.commit(group_id, member_id, generation, instance_id, offsets, retention_ms, self._now())
        if plan.changes:
            encoded = _encoded(plan.changes)
            self.counters.offset_commits += len(plan.changes)
            await self._runtime.write_gathered(shard, plan.changes, encoded)
        response: list[ErrorCode] = plan.response
        return response

    def prepare(self, group_id: str, producer: Producer, *, bumps: bool) -> TransactionalCommits:
        """Prepares the commits of a transaction's offsets for a group. Unless the transaction has begun in the group's
        partition, the result has a guard, and the caller asks the transaction's coordinator to confirm that the
        transaction has the partition, before it calls `commit_in_transaction`. `bumps` is as in `Partition.guard_for`.

        Raises KafkaError INVALID_PRODUCER_EPOCH for a fenced producer.
        """
        led = self._shard_of(group_id)
        guard = led.partition.guard_for(producer.id, producer.epoch, NO_SEQUENCE, bumps=bumps)
        return TransactionalCommits(led, Transaction(producer.id, producer.epoch, guard))

    async def commit_in_transaction(
        self,
        group_id: str,
        prepared: TransactionalCommits,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
    ) -> list[ErrorCode]:
        """Handles a TxnOffsetCommit request: returns an error code for each offset, once the offsets' records are
        committed. The offsets count when the transaction is committed. `prepared` comes from `prepare`."""
        led = prepared.led
        if not self._runtime.holds(led):
            raise KafkaError(ErrorCode.not_coordinator)
        plan = led.core.commit_in_transaction(group_id, member_id, generation, instance_id, offsets, self._now())
        if plan.changes:
            self.counters.offset_commits += len(plan.changes)
            await self._write(led, plan, prepared.transaction)
        response: list[ErrorCode] = plan.response
        return response

    def end_transaction(self, index: int, marker: Marker) -> asyncio.Future[None]:
        """Appends the marker of a transaction to partition `index` of `__consumer_offsets`: the offsets of the
        transaction count from now on, or are dropped. The returned future is done when the marker is committed and
        readers see that, and fails when this broker stops leading the partition.

        Raises KafkaError with an error of `Partition.append_marker`. If this broker isn't the partition's coordinator,
        the error is NOT_LEADER_OR_FOLLOWER, also that of the future: the coordinator of transactions sends the marker
        again then, and doesn't expect a coordinator's errors.
        """
        try:
            led = self._runtime.serving(index)
            self._runtime.flush(led)
            offset = self._runtime.append_marker(
                led,
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.commit,
                marker.transaction_version,
            )
        except KafkaError as error:
            if error.code in _OF_COORDINATORS:
                raise KafkaError(ErrorCode.not_leader_or_follower, error.message) from error
            raise
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody may wait for it
        self._runtime.spawn(self._settle(led, offset, ended))
        return ended

    async def _settle(self, led: Shard, offset: int, ended: asyncio.Future[None]) -> None:
        with suppress(KafkaError):
            try:
                await self._runtime.settled(led, offset)
                ended.set_result(None)
            finally:
                if not ended.done():
                    ended.set_exception(KafkaError(ErrorCode.not_leader_or_follower))

    async def fetch(
        self, group_id: str, partitions: Sequence[tuple[str, int]], require_stable: bool
    ) -> list[Committed | ErrorCode | None]:
        """Handles an OffsetFetch request: returns the committed offset of each (topic, partition), None where there is
        none.

        With `require_stable` the answer waits until all appended records are committed. UNSTABLE_OFFSET_COMMIT is the
        answer for a partition if an undecided transaction has an offset for it, and for all partitions if the wait
        takes too long.
        """
        try:
            shard = await self._settled(group_id, require_stable)
        except KafkaError as error:
            if error.code is not ErrorCode.unstable_offset_commit:
                raise
            return [ErrorCode.unstable_offset_commit] * len(partitions)
        offsets = shard.core.offsets
        keys = [OffsetKey(group_id, topic, partition) for topic, partition in partitions]
        return [
            ErrorCode.unstable_offset_commit if require_stable and offsets.undecided(key) else offsets.show(key)
            for key in keys
        ]

    async def fetch_all(self, group_id: str, require_stable: bool) -> Mapping[str, Mapping[int, Committed | ErrorCode]]:
        """Handles an OffsetFetch request for all topics: returns all committed offsets of a group, by topic and
        partition. With `require_stable` the answer waits, and may be UNSTABLE_OFFSET_COMMIT for a partition, as in
        `fetch`."""
        try:
            shard = await self._settled(group_id, require_stable)
        except KafkaError as error:
            if error.code is not ErrorCode.unstable_offset_commit:
                raise
            # The response has no partition to carry the other code.
            raise KafkaError(ErrorCode.not_coordinator) from None
        shown = shard.core.offsets.show_all(group_id)
        if not require_stable:
            return shown
        found: dict[str, dict[int, Committed | ErrorCode]] = {topic: {**shown[topic]} for topic in shown}
        for key in shard.core.offsets.all_undecided(group_id):
            found.setdefault(key.topic, {})[key.partition] = ErrorCode.unstable_offset_commit
        return found

    async def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Handles an OffsetDelete request: returns an error code for each (topic, partition)."""
        shard = self._shard_of(group_id)
        self._runtime.flush(shard)
        plan = shard.core.delete_offsets(group_id, partitions)
        self.counters.offset_deletions += len(plan.changes)
        await self._write(shard, plan)
        response: list[ErrorCode] = plan.response
        return response

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Handles the part of a DeleteGroups request that is about one group: returns the group's error code."""
        try:
            shard = self._shard_of(group_id, allow_empty=True)
            self._runtime.flush(shard)
            plan = shard.core.delete_groups([group_id])
            await self._write(shard, plan)
        except KafkaError as error:
            return error.code
        code: ErrorCode = plan.response[0]
        return code

    # --- reading ---

    def group(self, group_id: str) -> Group | None:
        """The group, if it exists; for reading only."""
        return self._shard_of(group_id, allow_empty=True).core.groups.get(group_id)

    def groups(self) -> list[Group]:
        """All groups of this broker; for reading only. Raises COORDINATOR_LOAD_IN_PROGRESS while a partition loads."""
        return [group for shard in self._runtime.all_serving() for group in shard.core.groups.values()]

    def partition_states(self) -> dict[str, int]:
        """How many partitions of `__consumer_offsets` that this broker leads are loading, active, and failed (to be
        loaded again)."""
        return self._runtime.states()

    def counts(self, group_type: GroupType) -> Counter[str]:
        """How many groups of a type are in each state, by the state's name."""
        shards = self._runtime.partitions.values()
        groups = (group for shard in shards for group in shard.core.groups.values())
        return Counter(group.state_name for group in groups if group.type is group_type)

    @property
    def offset_count(self) -> int:
        """How many committed offsets all groups of this broker have."""
        return sum(len(shard.core.offsets) for shard in self._runtime.partitions.values())

    # --- calls of the runtime ---

    def empty(self) -> GroupShard:
        """A core without groups, for a partition without records."""
        return GroupShard(self._limits)

    async def loaded(self, led: Shard, replay: Replay) -> None:
        """Begins the sessions of all members of a partition's groups anew."""
        groups = led.core.groups
        logger.info(
            "%s-%d: loaded %d groups from %d records (%d of other kinds)",
            OFFSETS_TOPIC, led.partition.index, len(groups), replay.replayed, replay.foreign,
        )  # fmt: skip
        for count, group in enumerate(list(groups.values())):
            if count % LOADED_PER_TURN == LOADED_PER_TURN - 1:
                await asyncio.sleep(0)
            if self._runtime.holds(led) and groups.get(group.group_id) is group:
                with self._runtime.surviving(f"group {group.group_id}, which was loaded,"):
                    self._perform(led, group, group.loaded(self._now()))

    def resigned(self, led: Shard) -> None:
        """Answers NOT_COORDINATOR to all waiting requests for groups of the partition."""
        for group in led.core.groups.values():
            self._timers.forget(group)
        self._perform(led, None, led.core.unload(ErrorCode.not_coordinator))

    def for_clients(self, error: KafkaError) -> KafkaError:
        """The error that a client gets where `error` is an error of the log or of its replication."""
        return for_clients(error)

    # --- performing ---

    def _perform(self, shard: Shard, group: Group | None, effects: Effects) -> None:
        for ticket, answer in effects.answers:
            if not ticket.done():
                ticket.set_result(answer)
        if group is None:
            return
        for old, new, generation, why in effects.transitions:
            logger.info("group %s: %s to %s, generation %d: %s", group.group_id, old.value, new.value, generation, why)
            self.counters.completed_rebalances += new is State.STABLE
        for store in effects.stores:
            self._store(shard, group, store)
        if group.is_dead:
            self._timers.forget(group)
        else:
            self._arm(shard, group)

    def _arm(self, shard: Shard, group: Group) -> None:
        wake_ms = group.wake_ms
        if wake_ms != NEVER_MS:
            self._timers.ask(shard, group, wake_ms)

    def _store(self, shard: Shard, group: Group, store: Store) -> None:
        try:
            offset = self._append(shard, [(GroupKey(group.group_id), store.value)])
        except KafkaError as error:
            self._stored(shard, group, store, error.code)
            return
        if shard.partition.high_watermark > offset:
            self._stored(shard, group, store, ErrorCode.none)
        else:
            self._runtime.spawn(self._store_committed(shard, group, store, offset))

    async def _store_committed(self, shard: Shard, group: Group, store: Store, offset: int) -> None:
        try:
            await self._runtime.committed(shard, offset)
        except KafkaError as error:
            self._stored(shard, group, store, error.code)
        else:
            self._stored(shard, group, store, ErrorCode.none)

    def _stored(self, shard: Shard, group: Group, store: Store, error: ErrorCode) -> None:
        if error is not ErrorCode.none:
            logger.warning("group %s: its metadata could not be stored: %s", group.group_id, error.name)
        self._perform(shard, group, shard.core.stored(group, store, error, self._now()))

    def _time_passed(self, shard: Shard, group: Group) -> None:
        if not group.is_dead:
            self._perform(shard, group, group.time_passed(self._now()))

    # --- writing ---

    def _append(self, shard: Shard, changes: Sequence[Change], transaction: Transaction = NO_TRANSACTION) -> int:
        """Appends one batch, and drops the timers of groups that the batch deletes. Returns the batch's last offset. If
        it raises KafkaError, nothing has changed."""
        deleted = [shard.core.groups.get(key.group) for key, value in changes if _is_deletion(key, value)]
        offset = self._runtime.append(shard, changes, _encoded(changes), transaction)
        for group in deleted:
            if group is not None:
                self._timers.forget(group)
        return offset

    def _append_unwatched(self, shard: Shard, plan: Plan) -> None:
        """Appends a plan's records, and doesn't wait until they are committed. Before the plan is made, the records
        that the runtime has gathered for a common batch must be flushed."""
        for start in range(0, len(plan.changes), BATCH_RECORDS_MAX):
            try:
                self._append(shard, plan.changes[start : start + BATCH_RECORDS_MAX])
            except KafkaError as error:
                logger.warning(
                    "%s-%d: tombstones could not be written: %s", OFFSETS_TOPIC, shard.partition.index, error
                )
                return

    async def _write(self, shard: Shard, plan: Plan, transaction: Transaction = NO_TRANSACTION) -> None:
        """Appends a plan's records, which may belong to a transaction, and waits until they are committed."""
        if not plan.changes:
            return
        try:
            offset = self._append(shard, plan.changes, transaction)
        except KafkaError as error:
            raise self.for_clients(error) from error
        await self._runtime.committed(shard, offset)

    async def _settled(self, group_id: str, require_stable: bool) -> Shard:
        """Waits until OffsetFetch would see all records that are committed at the call, or, with `require_stable`, all
        records that are appended at the call. Returns the group's shard."""
        shard = self._shard_of(group_id, allow_empty=True)
        await self._certainty.known()
        if require_stable:
            self._runtime.flush(shard)
            try:
                await self._runtime.committed(shard, shard.last_appended)
            except KafkaError as error:
                late = error.code is ErrorCode.coordinator_not_available and self._leads_for_sure()
                # NOT_COORDINATOR: at no other code do older consumers look for the coordinator and try again.
                code = ErrorCode.unstable_offset_commit if late else ErrorCode.not_coordinator
                raise KafkaError(code) from None
        await self._runtime.shown(shard)
        return shard

    # --- finding, expiring ---

    def _shard_of(self, group_id: str, allow_empty: bool = False) -> Shard:
        """The group's partition of `__consumer_offsets`, which has to be loaded. Raises KafkaError: INVALID_GROUP_ID at
        an empty id unless `allow_empty`, or an error of `Runtime.serving`."""
        if not group_id and not allow_empty and self._runtime.accepting:
            raise KafkaError(ErrorCode.invalid_group_id)
        return self._runtime.serving(partition_for(group_id, self._partition_count()))

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_s)
            await self.expire()

    async def expire(self) -> None:
        """Appends tombstones for offsets and groups whose retention time has passed."""
        for shard in list(self._runtime.partitions.values()):
            for group_id in [] if shard.loading else list(shard.core.groups):
                if not self._runtime.holds(shard):
                    break
                with self._runtime.surviving(f"the expiry of group {group_id}'s offsets"):
                    self._runtime.flush(shard)
                    plan = shard.core.expire(group_id, self._now())
                    if plan.changes:
                        self.counters.offset_expirations += sum(isinstance(key, OffsetKey) for key, _ in plan.changes)
                        self._append_unwatched(shard, plan)
                await asyncio.sleep(0)

    def _now(self) -> Now:
        return Now(steady_ms(), self._wall_ms())


def _limits_of(settings: Settings) -> Limits:
    return Limits(
        group_min_session_timeout_ms=settings["group.min.session.timeout.ms"],
        group_max_session_timeout_ms=settings["group.max.session.timeout.ms"],
        group_initial_rebalance_delay_ms=settings["group.initial.rebalance.delay.ms"],
        group_max_size=settings["group.max.size"],
        offset_metadata_max_bytes=settings["offset.metadata.max.bytes"],
        offsets_retention_ms=settings["offsets.retention.minutes"] * 60_000,
    )


def _encoded(changes: Sequence[Change]) -> list[Encoded]:
    """The records of `changes`. Raises KafkaError if a text from a client is too long for its field in a record."""
    try:
        return [encode(change) for change in changes]
    except struct.error:
        raise KafkaError(
            ErrorCode.unknown_server_error,
            "the group's id, or an id or a protocol's name of one of its members, is longer than a record may hold",
        ) from None


def _is_deletion(key: OffsetKey | GroupKey, value: object) -> bool:
    return value is None and isinstance(key, GroupKey)
