"""Bugs to plant into the product. If the swarm doesn't catch each of them, its oracles prove nothing.

Each bug is a mistake that a developer could make or has made, as the smallest possible patch. `plant` is called in a
process of its own, before a run. The bugs of transactions are in `planted_transactions.py`.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

from ottla.broker import follower_log, isr, reading, replica_fetcher
from ottla.broker.api import await_revision, produce
from ottla.broker.applied_revisions import AppliedRevisions
from ottla.broker.candidates import Candidates
from ottla.broker.coordination.runtime import Runtime
from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.offsets import Offsets
from ottla.broker.log import compaction, compactor, pending_snapshot, producers, segment_recovery, shortening
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.epochs import LeaderEpochs
from ottla.broker.log.flushing import PendingFlush
from ottla.broker.log.producers import Duplicate, ProducerEntry, Producers
from ottla.broker.log.resident import WAIT
from ottla.broker.partition import Partition
from ottla.broker.replica import follower
from ottla.broker.replica.leader import LeaderState
from ottla.controller import decide as decisions
from ottla.controller.runner import Controller
from ottla.metadata import follower as follower_of_metadata
from ottla.metadata import keys, own_store
from ottla.metadata.elections import Electorate
from ottla.metadata.follower import Follower
from ottla.metadata.image import Changed, Image
from ottla.metadata.lineage import Known
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import ForeignStore, Guard
from ottla.protocol.applied_revision import AWAIT_REVISION, write_answer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.frames import response_frame

from . import planted_transactions  # noqa: F401 (its bugs register themselves)
from .bugs import BUGS, bug, replace_attribute


def plant(name: str) -> None:
    """Plants a bug."""
    BUGS[name]()


# ---- commits


@bug
def acknowledged_before_the_isr_has_it() -> None:
    def advance(self: LeaderState, high_watermark: int, leader_end: int, *rest: Any) -> int:
        return max(high_watermark, leader_end)

    LeaderState.advance = advance  # type: ignore[method-assign]
    LeaderState.alone = property(lambda self: True)  # type: ignore[assignment]


@bug
def a_duplicate_is_answered_before_it_is_committed() -> None:
    repeats: list[Any] = []  # the last duplicate
    check, append, appended = Producers.check, Partition.append, produce._Produce.appended

    def checked(self: Producers, header: Any) -> Duplicate | None:
        found = check(self, header)
        repeats[:] = [] if found is None else [found]
        return found

    def append_marked(self: Partition, *args: Any) -> Any:
        repeats.clear()
        return append(self, *args)

    def answered(self: Any, partition: Partition, *rest: Any) -> Any:
        acks, self.acks = self.acks, 1 if repeats else self.acks
        try:
            return appended(self, partition, *rest)
        finally:
            self.acks = acks

    Producers.check = checked  # type: ignore[method-assign]
    Partition.append = append_marked  # type: ignore[method-assign]
    produce._Produce.appended = answered  # type: ignore[method-assign]


@bug
def consumers_read_what_isnt_committed() -> None:
    def read(
        partition: Partition,
        offset: int,
        max_bytes: int,
        minimum_one: bool,
        read_committed: bool,
        small_bytes: int = WAIT,
    ) -> Any:
        return reading.read_as_follower(partition, offset, max_bytes, minimum_one, small_bytes)

    reading.read = read


@bug
def a_coordinator_answers_before_the_commit_is_committed() -> None:
    async def committed(self: Runtime[Any], led: Any, offset: int) -> None:
        return

    Runtime.committed = committed  # type: ignore[method-assign]


@bug
def a_coordinator_shows_what_isnt_committed() -> None:
    def appended(make: Any) -> Any:
        def both(self: Any, *args: Any, **options: Any) -> Any:
            done = make(self, *args, **options)
            self.committed(1 << 60)
            return done

        return both

    replace_attribute(Offsets, "appended", appended)


@bug
def members_commit_under_any_generation() -> None:
    ClassicGroup.commit = lambda self, *args: ErrorCode.none  # type: ignore[method-assign]


@bug
def the_minimum_of_in_sync_replicas_is_ignored() -> None:
    Partition.under_min_isr = property(lambda self: False)  # type: ignore[assignment]
    Partition.frozen = property(lambda self: False)  # type: ignore[assignment]


@bug
def the_high_watermark_goes_by_the_proposed_isr_alone() -> None:
    def proposed(self: LeaderState, isr: Any) -> None:
        self._joining = frozenset(isr)
        self.maximal_isr = frozenset(isr)

    LeaderState.proposed = proposed  # type: ignore[method-assign]


@bug
def a_follower_takes_the_leaders_high_watermark_beyond_its_own_end() -> None:
    def append_replicated(original: Any) -> Any:
        def both(partition: Partition, buffer: Any, headers: Any, leader_high_watermark: int, *rest: Any) -> None:
            original(partition, buffer, headers, leader_high_watermark, *rest)
            partition.high_watermark = max(partition.high_watermark, leader_high_watermark)

        return both

    replace_attribute(follower_log, "append_replicated", append_replicated)


# ---- followers


@bug
def followers_truncate_to_their_high_watermark() -> None:
    def become_follower(original: Any) -> Any:
        def both(self: Partition, state: PartitionState) -> None:
            news = state.leader_epoch != self.epoch
            original(self, state)
            if news and self.log.log_end_offset > self.high_watermark:
                follower_log.truncate_to(self, self.high_watermark)

        return both

    replace_attribute(Partition, "become_follower", become_follower)


@bug
def followers_dont_truncate() -> None:
    def decide(original: Any) -> Any:
        def without(held: Any, told: Any) -> Any:
            decision = original(held, told)
            if isinstance(decision, follower.Truncate):
                return follower.Append((), told.high_watermark, told.log_start_offset)
            return decision

        return without

    replace_attribute(replica_fetcher, "decide", decide)
    reading.diverges = lambda partition, epoch, offset: None


# ---- ISR


@bug
def a_draining_broker_joins_an_isr() -> None:
    def joinable(self: Candidates, leading: LeaderState, replica: int) -> bool:
        registered = self._image().brokers.get(replica)
        return registered is not None and leading.followers[replica].broker_epoch == registered.epoch

    Candidates._is_registered = joinable  # type: ignore[method-assign]


@bug
def a_replica_joins_the_isr_before_it_has_caught_up() -> None:
    LeaderState.has_committed = lambda self, replica, mark: True  # type: ignore[method-assign]

    def caught_up(original: Any) -> Any:
        return lambda self, replica, *rest: replica not in self.isr or original(self, replica, *rest)

    replace_attribute(LeaderState, "caught_up", caught_up)


@bug
def a_leader_alone_in_sync_waits_for_no_follower() -> None:
    Partition.wait_for = lambda self, candidates: None  # type: ignore[method-assign]


@bug
def a_fetch_from_before_a_restart_counts() -> None:
    def fetched(original: Any) -> Any:
        def any_epoch(self: LeaderState, replica: int, broker_epoch: int, *rest: Any) -> bool:
            progress = self.followers.get(replica)
            return bool(original(self, replica, max(broker_epoch, progress.broker_epoch if progress else -1), *rest))

        return any_epoch

    def joinable(self: Candidates, leading: LeaderState, replica: int) -> bool:
        registered = self._image().brokers.get(replica)
        return registered is not None and registered.electable

    replace_attribute(LeaderState, "fetched", fetched)
    Candidates._is_registered = joinable  # type: ignore[method-assign]


@bug
def a_leader_writes_its_isr_without_comparing() -> None:
    def propose(original: Any) -> Any:
        def unguarded(self: isr.IsrChanges, partition: Partition) -> Any:
            proposal = original(self, partition)
            if proposal is not None:
                object.__setattr__(proposal, "guards", ())
            return proposal

        return unguarded

    replace_attribute(isr.IsrChanges, "_propose", propose)


# ---- elections


@bug
def a_restart_within_the_session_keeps_its_place_in_the_isr() -> None:
    Electorate.alive = lambda self, replica, epoch: replica in self.brokers  # type: ignore[method-assign]
    PartitionState.leads = lambda self, broker_id, epoch: self.leader == broker_id  # type: ignore[method-assign]


@bug
def a_stale_controller_writes() -> None:
    class Unguarded:
        """The store for a controller whose transactions compare nothing."""

        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def transact(self, guards: list[Guard], writes: Any) -> Any:
            if any(write.key == keys.controller.key for write in writes):
                return await self._store.transact(guards, writes)
            return await self._store.transact([], writes)

    def init(original: Any) -> Any:
        def unguarded(self: Controller, store: Any, *args: Any, **options: Any) -> None:
            original(self, Unguarded(store), *args, **options)

        return unguarded

    replace_attribute(Controller, "__init__", init)
    Controller._check_term = lambda self: None  # type: ignore[method-assign]


@bug
def any_replica_may_be_elected() -> None:
    def electorate(original: Any) -> Any:
        def unclean(*args: Any, **options: Any) -> Electorate:
            made = original(*args, **options)
            return Electorate(made.brokers, made.drained, made.min_isr, True, made.preferred)

        return unclean

    replace_attribute(decisions, "_electorate", electorate)


@bug
def who_is_elected_uncleanly_keeps_only_what_it_knows_to_be_committed() -> None:
    def become_leader(original: Any) -> Any:
        def both(self: Partition, state: PartitionState) -> None:
            if state.recovering and self.log.log_end_offset > self.high_watermark:
                follower_log.truncate_to(self, self.high_watermark)
            original(self, state)

        return both

    replace_attribute(Partition, "become_leader", become_leader)


@bug
def a_drained_broker_is_elected() -> None:
    def electorate(original: Any) -> Any:
        return lambda *args, **options: replace(original(*args, **options), drained=())

    replace_attribute(decisions, "_electorate", electorate)


@bug
def an_unclean_stop_doesnt_end_eligibility() -> None:
    Broker.holds_all_since = lambda self, epoch: True  # type: ignore[method-assign]


@bug
def the_eligible_may_be_elected_and_the_watermark_moves_on() -> None:
    Partition.frozen = property(lambda self: False)  # type: ignore[assignment]


# ---- the log


@bug
def producers_state_survives_a_truncation() -> None:
    shortening.producers_at = lambda end, now, *rest: now  # type: ignore[attr-defined]


@bug
def repeated_batches_are_appended_again() -> None:
    def check(original: Any) -> Any:
        def careless(self: Producers, header: Any) -> Any:
            original(self, header)
            return None

        return careless

    replace_attribute(Producers, "check", check)


@bug
def gaps_in_a_producers_sequence_are_let_through() -> None:
    def check(original: Any) -> Any:
        def careless(self: Producers, header: Any) -> Any:
            try:
                return original(self, header)
            except KafkaError:
                return None

        return careless

    replace_attribute(Producers, "check", check)


@bug
def leader_epochs_survive_a_truncation() -> None:
    LeaderEpochs.truncate_from_end = lambda self, offset: None  # type: ignore[method-assign]


@bug
def a_sync_is_reported_and_not_made() -> None:
    PendingFlush.run = lambda self: None  # type: ignore[method-assign]


@bug
def a_failed_start_is_marked_as_a_clean_stop() -> None:
    def close(original: Any) -> Any:
        def always(self: LogDirectories, broker_epoch: int = -1) -> None:
            self._opened = True
            original(self, broker_epoch)

        return always

    replace_attribute(LogDirectories, "close", close)


@bug
def recovery_believes_every_batch() -> None:
    segment_recovery.crc_valid = lambda *args: True  # type: ignore[attr-defined]


@bug
def compaction_goes_beyond_the_high_watermark() -> None:
    def everything(original: Any) -> Any:
        def careless(sizes: Any, **rest: Any) -> Any:
            return original(sizes, **{**rest, "stable_offset": 1 << 60})

        return careless

    replace_attribute(compactor, "cleanable", everything)


@bug
def compaction_takes_tombstones_at_once() -> None:
    def stays(original: Any) -> Any:
        return lambda cleaning, header, raw: (
            original(cleaning, header, raw) and (not raw.is_tombstone or raw.offset >= cleaning.end_offset)
        )

    replace_attribute(compaction, "_stays", stays)


@bug
def compaction_goes_by_a_part_of_the_key() -> None:
    replace_attribute(compaction, "fingerprint", lambda original: lambda key: original(key)[:4])


@bug
def producer_snapshots_keep_one_batch() -> None:
    def pieces(original: Any) -> Any:
        def short(entry: ProducerEntry) -> ProducerEntry:
            shortened = copy.copy(entry)
            shortened.batches = entry.batches[-1:]
            return shortened

        return lambda producers: original((producer_id, short(entry)) for producer_id, entry in producers)

    for module in (producers, pending_snapshot):
        replace_attribute(module, "snapshot_pieces", pieces)


# ---- metadata


@bug
def a_compacted_watch_goes_on_without_a_snapshot() -> None:
    async def resync(self: Follower) -> None:
        if self.resync_count:
            snapshot = await self._store.read()
            object.__setattr__(self.image, "revision", snapshot.revision)
            self.resync_count += 1
        else:
            await original(self)

    original = Follower._resync
    Follower._resync = resync  # type: ignore[method-assign]


@bug
def a_registration_isnt_renewed() -> None:
    async def run(self: Registration) -> None:
        await asyncio.Event().wait()

    Registration.run = run  # type: ignore[method-assign]
    RenewalTask.hold = lambda self, *lease: None  # type: ignore[method-assign]


@bug
def an_image_skips_revisions() -> None:
    def apply(original: Any) -> Any:
        def careless(self: Image, revision: Any) -> Any:
            image, changed = original(self, revision)
            if revision.revision % 7:
                return image, changed
            return replace(self, revision=revision.revision), Changed()

        return careless

    replace_attribute(Image, "apply", apply)


@bug
def an_administrator_is_answered_before_the_others_know() -> None:
    async def everywhere(self: AppliedRevisions) -> frozenset[int]:
        return frozenset()

    AppliedRevisions.everywhere = everywhere  # type: ignore[method-assign]


@bug
def a_broker_says_that_it_has_applied_what_it_has_only_heard_of() -> None:
    def answer(broker: Any, header: Any) -> bytes:
        return response_frame(AWAIT_REVISION, 0, header.correlation_id, write_answer(heard[-1]))

    def read(original: Any) -> Any:
        def listening(*args: Any) -> Any:
            question = original(*args)
            heard.append(question.revision)
            return question.replace_attribute(revision=0)

        return listening

    heard = [0]
    await_revision._answer = answer
    replace_attribute(await_revision, "read_question", read)


@bug
def any_store_is_believed_to_be_the_own_one() -> None:
    def judged(before: Known | None, cluster: Any, rows: Any) -> Known:
        return before or Known("any", 0)

    own_store.judge = judged  # type: ignore[attr-defined]
    own_store.OwnStore._guards = lambda self: []  # type: ignore[method-assign]
    follower_of_metadata.check_successor = lambda *args: iter(())  # type: ignore[attr-defined]


@bug
def a_new_connection_to_the_store_isnt_looked_at() -> None:
    async def verify(self: own_store.OwnStore) -> None:
        return

    own_store.OwnStore._verify = verify  # type: ignore[method-assign]
    own_store.OwnStore._guards = lambda self: []  # type: ignore[method-assign]


@bug
def a_store_of_a_higher_revision_is_believed_to_be_the_same() -> None:
    def judge(original: Any) -> Any:
        def by_revision(before: Known | None, cluster: Any, rows: Any) -> Known:
            found = original(None, cluster, rows)
            if before is not None and (found.cluster_id != before.cluster_id or found.number < before.number):
                raise ForeignStore("it is older")
            return found

        return by_revision

    replace_attribute(own_store, "judge", judge)
    own_store.OwnStore._guards = lambda self: []  # type: ignore[method-assign]
    follower_of_metadata.check_successor = lambda *args: iter(())  # type: ignore[attr-defined]
