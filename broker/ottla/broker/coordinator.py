"""Runs the groups whose partitions of `__consumer_offsets` this broker leads.

The shell around `group.shard`: it takes requests to the right shard, performs what the core decides in order, and arms
one timer for all groups. What is decided becomes records; they are appended with the leader epoch that was loaded, the
core hears of it at once (`appended`), and the answer leaves when the high watermark has passed them.

1. An append that fails changes nothing: the core follows only after it succeeded.
2. An append that isn't committed in time is answered COORDINATOR_NOT_AVAILABLE, but stays: it may be committed yet. An
   OffsetFetch that waited for it is told UNSTABLE_OFFSET_COMMIT, and asks again here. Kafka says NOT_COORDINATOR, after
   which librdkafka (2.16, its issue 5586) never asks again, and its consumer reads nothing for good. NOT_COORDINATOR is
   told here only while the metadata store is silent: another broker may lead by then, and clients are to look for it.
3. When this broker stops leading, everything here about the partition is dropped, and whoever waits is told
   NOT_COORDINATOR. The next leader replays what was committed.

Offset commits that arrive in one turn of the event loop are appended as one batch.

An error that nobody foresaw ends what it happened in, and nothing else: a commit, a group's timer, a load that is tried
again. It is said in the log and counted.

Source: Kafka's CoordinatorRuntime and GroupCoordinatorService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ottla.broker.cold_reads import ColdReads
from ottla.broker.committed_view import CommittedView
from ottla.broker.coordinated import Commit, Encoded, GroupCounters, Settings, Shard, encoded_records, limits_of
from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.effects import NEVER_MS, Answer, Effects, Join, Leaver, Now, Store, Sync
from ottla.broker.group.partitioning import partition_for
from ottla.broker.group.records import Committed, GroupKey, OffsetKey
from ottla.broker.group.shard import Change, GroupShard, OffsetToCommit, Plan
from ottla.broker.group.states import State, for_clients
from ottla.broker.group_replay import Replay, ReplayPartition
from ottla.broker.wakeups import Wakeups
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


BATCH_RECORDS_MAX = 1_000  # commits gathered in one append
CONCURRENT_LOADS = 4
LOAD_AGAIN_SECONDS = 1.0  # and twice as long after each failure more, up to LOAD_AGAIN_SECONDS_MAX
LOAD_AGAIN_SECONDS_MAX = 60.0
LOADED_PER_TURN = 200  # groups whose sessions begin, before other work gets its turn
WAKE_AGAIN_MS = 10_000  # a group whose time-outs met an error


@dataclass(frozen=True, slots=True, eq=False)
class _Seat:
    """What the timer wakes: a group in its shard."""

    shard: Shard
    group: ClassicGroup


class GroupService:
    """What `broker.groups` is. All methods run on the event loop; requests raise KafkaError for their error code.

    `partition_count` tells how many partitions `__consumer_offsets` has (or will have); `wall_ms` is the time since
    1970; `leads_for_sure` whether nobody else can have been elected of whom this broker hasn't heard.
    """

    def __init__(
        self,
        settings: Settings,
        partition_count: Callable[[], int],
        wall_ms: Callable[[], int],
        cold_reads: ColdReads,
        leads_for_sure: Callable[[], bool],
    ) -> None:
        self._leads_for_sure = leads_for_sure
        self._partition_count = partition_count
        self._cold_reads = cold_reads
        self._wall_ms = wall_ms
        self._limits = limits_of(settings)
        self._commit_timeout_s = settings["offsets.commit.timeout.ms"] / 1000
        self._expiry_interval_s = settings["offsets.retention.check.interval.ms"] / 1000
        self._chunk_bytes = settings["offsets.load.buffer.size"]
        self._codec = settings["offsets.topic.compression.codec"]
        self._shards: dict[int, Shard] = {}
        self._seats: dict[ClassicGroup, _Seat] = {}
        self._wakeups: Wakeups[_Seat] = Wakeups(self._steady_ms, self._wake)
        self._tasks: set[asyncio.Task[None]] = set()
        self._load_slots = asyncio.Semaphore(CONCURRENT_LOADS)
        self._accepting = False
        self.counters = GroupCounters()

    # --- life ---

    def start(self) -> None:
        """Takes requests from now on, and expires offsets."""
        self._accepting = True
        self._spawn(self._expire_forever())

    async def stop(self) -> None:
        """Lets go of every shard; whoever waits is told to look for another coordinator."""
        self._accepting = False
        for index in list(self._shards):
            self.resigned(index)
        self._wakeups.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def became_leader(self, partition: ReplayPartition) -> None:
        """This broker leads `partition` of `__consumer_offsets`, in its `leader_epoch`: loads its groups."""
        shard = self._shards.get(partition.index)
        if shard is not None and shard.partition is partition:
            shard.leader_epoch = partition.leader_epoch  # it led all the while: nothing was truncated
            return
        if shard is not None:
            self.resigned(partition.index)
        core = GroupShard(self._limits)
        shard = Shard(partition, partition.leader_epoch, core, CommittedView(partition, core.offsets))
        self._shards[partition.index] = shard
        if partition.log.log_start_offset == partition.log.log_end_offset:
            shard.loading = False
        else:
            self._spawn(self._load(shard))

    def resigned(self, index: int) -> None:
        """This broker leads partition `index` no longer."""
        shard = self._shards.pop(index, None)
        if shard is None:
            return
        for group in shard.core.groups.values():
            self._forget(group)
        self._perform(shard, None, shard.core.unload(ErrorCode.not_coordinator))
        shard.view.resign(KafkaError(ErrorCode.not_coordinator))
        commits, shard.commits = shard.commits, []
        for commit in commits:
            commit.fail(KafkaError(ErrorCode.not_coordinator))

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Topics are gone: so are the offsets that groups committed for them."""
        names = list(topics)
        for shard in list(self._shards.values()):
            with self._surviving(f"the offsets of the deleted topics {', '.join(names)}"):
                if not shard.loading:
                    self._delete(shard, shard.core.topics_deleted(names, BATCH_RECORDS_MAX))

    def _delete(self, shard: Shard, plans: Iterator[Plan]) -> None:
        with self._surviving("the offsets of deleted topics"):
            self._flush(shard)
            plan = next(plans, None) if self._holds(shard) else None
            if plan is not None:
                self.counters.offset_deletions += len(plan.changes)
                self._append_unwatched(shard, plan)
                asyncio.get_running_loop().call_soon(self._delete, shard, plans)  # others have their turn

    # --- membership ---

    def join(self, group_id: str, join: Join) -> asyncio.Future[Answer]:
        """A JoinGroup; `join.ticket` is from `ticket()`. The answer comes with the rebalance."""
        shard = self._shard_of(group_id)
        effects = shard.core.join(group_id, join, self._now())
        self._perform(shard, shard.core.groups.get(group_id), effects)
        ticket: asyncio.Future[Answer] = join.ticket
        return ticket

    def sync(self, group_id: str, sync: Sync) -> asyncio.Future[Answer]:
        """A SyncGroup; the answer comes with the leader's assignment."""
        shard = self._shard_of(group_id)
        effects = shard.core.sync(group_id, sync, self._now())
        self._perform(shard, shard.core.groups.get(group_id), effects)
        ticket: asyncio.Future[Answer] = sync.ticket
        return ticket

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """A Heartbeat; while the group is loading every heartbeat is good."""
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
        """A LeaveGroup: an answer for each leaver, once it is written that the group is empty if it is."""
        shard = self._shard_of(group_id)
        answers, effects = shard.core.leave(group_id, leavers, self._now())
        before = shard.last_appended
        self._perform(shard, shard.core.groups.get(group_id), effects)
        if shard.last_appended > before:
            await self._committed(shard, shard.last_appended)
        return answers

    def ticket(self) -> asyncio.Future[Answer]:
        """What a parked request waits on."""
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
        """An OffsetCommit: an error code for each offset, once they are committed."""
        shard = self._shard_of(group_id, allow_empty=True)
        plan = shard.core.commit(group_id, member_id, generation, instance_id, offsets, retention_ms, self._now())
        if plan.changes:
            encoded = encoded_records(plan.changes)
            self.counters.offset_commits += len(plan.changes)
            written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            if not shard.commits:
                asyncio.get_running_loop().call_soon(self._flush, shard)
            shard.commits.append(Commit(plan.changes, encoded, written))
            if len(shard.commits) >= BATCH_RECORDS_MAX:
                self._flush(shard)
            await self._committed(shard, await written)
        response: list[ErrorCode] = plan.response
        return response

    async def fetch(
        self, group_id: str, partitions: Sequence[tuple[str, int]], require_stable: bool
    ) -> list[Committed | ErrorCode | None]:
        """An OffsetFetch: for each (topic, partition) what is committed, None for nothing.

        With `require_stable` what is being written is waited for, and UNSTABLE_OFFSET_COMMIT stands for a partition
        that an undecided transaction has an offset for, or for all where what is being written takes too long.
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

    async def fetch_all(self, group_id: str, require_stable: bool) -> dict[str, dict[int, Committed]]:
        """An OffsetFetch for everything that a group has, by topic and partition."""
        try:
            shard = await self._settled(group_id, require_stable)
        except KafkaError as error:
            if error.code is not ErrorCode.unstable_offset_commit:
                raise
            raise KafkaError(ErrorCode.not_coordinator) from None  # which partitions there are isn't known
        return shard.core.offsets.show_all(group_id)

    async def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """An OffsetDelete: an error code for each (topic, partition)."""
        shard = self._shard_of(group_id)
        self._flush(shard)
        plan = shard.core.delete_offsets(group_id, partitions)
        self.counters.offset_deletions += len(plan.changes)
        await self._write(shard, plan)
        response: list[ErrorCode] = plan.response
        return response

    async def delete_group(self, group_id: str) -> ErrorCode:
        """A DeleteGroups, for one group."""
        try:
            shard = self._shard_of(group_id, allow_empty=True)
            self._flush(shard)
            plan = shard.core.delete_groups([group_id])
            await self._write(shard, plan)
        except KafkaError as error:
            return error.code
        code: ErrorCode = plan.response[0]
        return code

    # --- looking ---

    def group(self, group_id: str) -> ClassicGroup | None:
        """The group, if it exists; for reading only."""
        return self._shard_of(group_id, allow_empty=True).core.groups.get(group_id)

    def groups(self) -> list[ClassicGroup]:
        """All groups of this broker; for reading only. Raises COORDINATOR_LOAD_IN_PROGRESS while some are unknown."""
        if not self._accepting:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if any(shard.loading for shard in self._shards.values()):
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return [group for shard in self._shards.values() for group in shard.core.groups.values()]

    def partition_states(self) -> dict[str, int]:
        """How many partitions of `__consumer_offsets` led here are loading, active, failed (to be loaded again)."""
        states = dict.fromkeys(("loading", "active", "failed"), 0)
        for shard in self._shards.values():
            states["active" if not shard.loading else "failed" if shard.failures else "loading"] += 1
        return states

    def counts(self) -> dict[State, int]:
        """How many groups are in each state."""
        counts = dict.fromkeys(State, 0)
        for shard in self._shards.values():
            for group in shard.core.groups.values():
                counts[group.state] += 1
        return counts

    @property
    def offset_count(self) -> int:
        """How many offsets are kept."""
        return sum(len(shard.core.offsets) for shard in self._shards.values())

    # --- performing ---

    def _perform(self, shard: Shard, group: ClassicGroup | None, effects: Effects) -> None:
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
        if group.state is State.DEAD:
            self._forget(group)
        else:
            self._arm(shard, group)

    def _arm(self, shard: Shard, group: ClassicGroup) -> None:
        if group.wake_ms == NEVER_MS:
            return
        seat = self._seats.get(group)
        if seat is None:
            seat = self._seats[group] = _Seat(shard, group)
        self._wakeups.ask(seat, group.wake_ms)

    def _store(self, shard: Shard, group: ClassicGroup, store: Store) -> None:
        try:
            offset = self._append(shard, [(GroupKey(group.group_id), store.value)])
        except KafkaError as error:
            self._stored(shard, group, store, error.code)
            return
        if shard.partition.high_watermark > offset:
            self._stored(shard, group, store, ErrorCode.none)
        else:
            self._spawn(self._store_committed(shard, group, store, offset))

    async def _store_committed(self, shard: Shard, group: ClassicGroup, store: Store, offset: int) -> None:
        try:
            await self._committed(shard, offset)
        except KafkaError as error:
            self._stored(shard, group, store, error.code)
        else:
            self._stored(shard, group, store, ErrorCode.none)

    def _stored(self, shard: Shard, group: ClassicGroup, store: Store, error: ErrorCode) -> None:
        if error is not ErrorCode.none:
            logger.warning("group %s: its metadata could not be stored: %s", group.group_id, error.name)
        self._perform(shard, group, shard.core.stored(group, store, error, self._now()))

    def _wake(self, seat: _Seat) -> None:
        group = seat.group
        del self._seats[group]
        if group.state is State.DEAD:
            return
        with self._surviving(f"the time-outs of group {group.group_id}"):
            self._perform(seat.shard, group, group.time_passed(self._now()))
            return
        if group not in self._seats and self._holds(seat.shard):
            self._seats[group] = seat
            self._wakeups.ask(seat, self._steady_ms() + WAKE_AGAIN_MS)

    def _forget(self, group: ClassicGroup) -> None:
        seat = self._seats.pop(group, None)
        if seat is not None:
            self._wakeups.forget(seat)

    # --- writing ---

    def _append(self, shard: Shard, changes: Sequence[Change], encoded: Sequence[Encoded] | None = None) -> int:
        """Appends one batch and lets the core follow; the last record's offset. Raises KafkaError, nothing changed."""
        now_ms = self._wall_ms()
        entries = [
            Record(offset, now_ms, key, value)
            for offset, (key, value) in enumerate(encoded_records(changes) if encoded is None else encoded)
        ]
        batch = bytearray(build_batch(entries, codec=self._codec))
        base_offset = shard.partition.append_batch(batch, shard.leader_epoch)
        deleted = [key.group for key, value in changes if value is None and isinstance(key, GroupKey)]
        for group_id in deleted:
            group = shard.core.groups.get(group_id)
            if group is not None:
                self._forget(group)
        shard.core.appended(changes, base_offset)
        shard.view.appended(len(changes))
        shard.last_appended = base_offset + len(changes) - 1
        return shard.last_appended

    def _append_unwatched(self, shard: Shard, plan: Plan) -> None:
        """Appends what nobody waits for. What a plan was made from must be flushed before it is made."""
        for start in range(0, len(plan.changes), BATCH_RECORDS_MAX):
            try:
                self._append(shard, plan.changes[start : start + BATCH_RECORDS_MAX])
            except KafkaError as error:
                logger.warning(
                    "__consumer_offsets-%d: tombstones could not be written: %s", shard.partition.index, error
                )
                return

    async def _write(self, shard: Shard, plan: Plan) -> None:
        """Appends a plan's records and waits until they are committed."""
        if not plan.changes:
            return
        try:
            offset = self._append(shard, plan.changes)
        except KafkaError as error:
            raise for_clients(error) from error
        await self._committed(shard, offset)

    def _flush(self, shard: Shard) -> None:
        """Appends the offset commits that were gathered."""
        commits, shard.commits = shard.commits, []
        if not commits:
            return
        failure = KafkaError(ErrorCode.unknown_server_error)
        with self._surviving(f"{len(commits)} offset commits to __consumer_offsets-{shard.partition.index}"):
            try:
                offset = self._append(
                    shard,
                    [change for commit in commits for change in commit.changes],
                    [record for commit in commits for record in commit.encoded],
                )
            except KafkaError as error:
                failure = for_clients(error)
            else:
                for commit in commits:
                    if not commit.written.done():
                        commit.written.set_result(offset)
                return
        for commit in commits:
            commit.fail(failure)

    async def _committed(self, shard: Shard, offset: int) -> None:
        if shard.partition.high_watermark > offset:
            return
        try:
            async with asyncio.timeout(self._commit_timeout_s):
                await shard.partition.committed(offset)
        except TimeoutError:
            raise KafkaError(ErrorCode.coordinator_not_available, "not replicated in time") from None
        except KafkaError as error:
            raise for_clients(error) from error

    async def _settled(self, group_id: str, require_stable: bool) -> Shard:
        """The group's shard, showing all that is committed now; with `require_stable` all that was written before."""
        shard = self._shard_of(group_id, allow_empty=True)
        if require_stable:
            self._flush(shard)
            try:
                await self._committed(shard, shard.last_appended)
            except KafkaError as error:
                late = error.code is ErrorCode.coordinator_not_available and self._leads_for_sure()
                # Older consumers know no other code that makes them look for the coordinator and try again.
                code = ErrorCode.unstable_offset_commit if late else ErrorCode.not_coordinator
                raise KafkaError(code) from None
        try:
            await shard.view.shown()
        except KafkaError as error:
            raise for_clients(error) from error
        if not self._holds(shard):  # another coordinator may have told groups more since
            raise KafkaError(ErrorCode.not_coordinator)
        return shard

    # --- finding, loading, expiring ---

    def _shard_of(self, group_id: str, allow_empty: bool = False) -> Shard:
        """The loaded shard of a group. Raises the code that sends the client elsewhere, or lets it wait."""
        if not self._accepting:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if not group_id and not allow_empty:
            raise KafkaError(ErrorCode.invalid_group_id)
        shard = self._shards.get(partition_for(group_id, self._partition_count()))
        if shard is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if shard.loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    async def _load(self, shard: Shard) -> None:
        replay = Replay(shard.partition, shard.core, self._chunk_bytes, self._cold_reads)
        async with self._load_slots:
            if not self._holds(shard):
                return
            try:
                await replay.run()
            except OSError as error:
                shard.partition.failed(error)  # if that is the log directory's end, the shard is gone with it
                logger.error("__consumer_offsets-%d can't be read: %s", shard.partition.index, error)
                self._spawn(self._load_again(shard))
                return
            except Exception:  # its groups aren't to wait for the next election, nor others for them
                logger.exception("__consumer_offsets-%d could not be loaded", shard.partition.index)
                self.counters.errors += 1
                self._spawn(self._load_again(shard))
                return
        if not self._holds(shard):
            return
        # A new leader doesn't know at once how much its predecessor told groups was committed (as KIP-207 for logs).
        end = shard.partition.log.log_end_offset
        try:
            await shard.partition.committed(end - 1)
            shard.view.appended(0)
            await shard.view.shown()
        except KafkaError:
            return
        if not self._holds(shard):
            return
        shard.last_appended = end - 1
        shard.loading = False
        self.counters.unreadable_records += replay.unreadable
        groups = shard.core.groups
        logger.info(
            "__consumer_offsets-%d: loaded %d groups from %d records (%d of other kinds)",
            shard.partition.index,
            len(groups),
            replay.replayed,
            replay.foreign,
        )
        for count, group in enumerate(list(groups.values())):
            if count % LOADED_PER_TURN == LOADED_PER_TURN - 1:
                await asyncio.sleep(0)
            if self._holds(shard) and groups.get(group.group_id) is group:
                with self._surviving(f"group {group.group_id}, which was loaded,"):
                    self._perform(shard, group, group.loaded(self._now()))

    async def _load_again(self, shard: Shard) -> None:
        """What was wanting (descriptors, memory) may be there later."""
        shard.failures += 1
        await asyncio.sleep(min(LOAD_AGAIN_SECONDS * 2 ** (shard.failures - 1), LOAD_AGAIN_SECONDS_MAX))
        if self._holds(shard):
            self.resigned(shard.partition.index)
            self.became_leader(shard.partition)
            self._shards[shard.partition.index].failures = shard.failures

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_s)
            await self.expire()

    async def expire(self) -> None:
        """Writes tombstones for offsets and groups that have outlived their retention."""
        for shard in list(self._shards.values()):
            for group_id in [] if shard.loading else list(shard.core.groups):
                if not self._holds(shard):
                    break
                with self._surviving(f"the expiry of group {group_id}'s offsets"):
                    self._flush(shard)
                    plan = shard.core.expire(group_id, self._now())
                    if plan.changes:
                        self.counters.offset_expirations += sum(isinstance(key, OffsetKey) for key, _ in plan.changes)
                        self._append_unwatched(shard, plan)
                await asyncio.sleep(0)

    def _holds(self, shard: Shard) -> bool:
        return self._shards.get(shard.partition.index) is shard

    def _now(self) -> Now:
        return Now(self._steady_ms(), self._wall_ms())

    def _steady_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a coordinator's task failed", exc_info=task.exception())
            self.counters.errors += 1

    @contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Around what concerns one group or one request: an error that nobody foresaw is said and counted, and ends
        nothing else."""
        try:
            yield
        except Exception:
            logger.exception("a coordinator's work on %s failed", what)
            self.counters.errors += 1
