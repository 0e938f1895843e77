"""Bugs of transactions to plant into the product (see `planted.py`). Each breaks one of the rules that make a
transaction atomic; most of them are bugs that Kafka or one of its relatives had."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ottla.broker import partition as partitions
from ottla.broker.group.offsets import Offsets
from ottla.broker.group.shard import GroupShard
from ottla.broker.group.undecided import UndecidedOffsets
from ottla.broker.log import pending_snapshot, producers, segment_recovery
from ottla.broker.log.log import Log
from ottla.broker.log.producers import Producers
from ottla.broker.log.transaction_index import TransactionIndex
from ottla.broker.partition import Partition
from ottla.broker.transaction import ending as endings
from ottla.broker.transaction import initialization, shard
from ottla.broker.transaction.decision import Answer, Decision
from ottla.broker.transaction.metadata import Transaction
from ottla.broker.transaction_service import TransactionService
from ottla.broker.transaction_verifier import TransactionVerifier
from ottla.broker.verification import Verifications
from ottla.protocol.errors import ErrorCode, KafkaError

from .bugs import bug, replace_attribute

# ---- the partition's side


@bug
def a_guard_need_not_be_the_partitions_own() -> None:
    Verifications.is_current = lambda self, producer_id, guard: guard is not None  # type: ignore[method-assign]


@bug
def a_marker_doesnt_drop_the_guard() -> None:
    def appended(original: Any) -> Any:
        return lambda self, header: None if header.is_control else original(self, header)

    replace_attribute(Verifications, "appended", appended)


@bug
def batches_that_begin_transactions_arent_verified() -> None:
    def confirm(original: Any) -> Any:
        async def trusting(self: Any, name: str, producer: Any, asked: Any, *, adds: bool) -> Any:
            if adds:
                return await original(self, name, producer, asked, adds=adds)
            return dict.fromkeys(asked, ErrorCode.none)

        return trusting

    replace_attribute(TransactionVerifier, "confirm", confirm)


@bug
def the_last_stable_offset_is_the_high_watermark() -> None:
    Partition.last_stable_offset = property(lambda self: self.high_watermark)  # type: ignore[assignment]


@bug
def a_repeated_marker_is_refused() -> None:
    def check(original: Any) -> Any:
        def strict(known: Any, producer_id: int, epoch: int, *rest: Any) -> None:
            original(known, producer_id, epoch, *rest)
            if known is not None and rest[-1] >= 2 and epoch == known.epoch:
                raise partitions.KafkaError(ErrorCode.transaction_coordinator_fenced)

        return strict

    replace_attribute(partitions, "check_marker", check)


# ---- the log


@bug
def the_aborted_list_ends_with_the_first_segment() -> None:
    def between(self: Log, offset: int, end_offset: int, wait: bool = True) -> Any:
        found: list[Any] = []
        segment = self.segments.all[self.segments.index_of(offset)]
        if segment.aborted is not None:
            segment.aborted.find(offset, end_offset, found, wait)
        return found

    Log.aborted_between = between  # type: ignore[method-assign]


@bug
def entries_of_the_aborted_list_dont_know_of_other_transactions() -> None:
    def ended(original: Any) -> Any:
        def alone(self: Any, producer_id: int, epoch: int, marker: Any, offset: int) -> Any:
            found = original(self, producer_id, epoch, marker, offset)
            return None if found is None else found._replace(last_stable_offset=offset + 1)

        return alone

    replace_attribute(Producers, "transaction_ended", ended)


@bug
def a_truncation_empties_the_aborted_list() -> None:
    TransactionIndex.truncate_to = lambda self, end_offset: self.clear()  # type: ignore[method-assign]


@bug
def the_aborted_list_survives_a_truncation() -> None:
    TransactionIndex.truncate_to = lambda self, end_offset: None  # type: ignore[method-assign]


@bug
def recovery_doesnt_rebuild_the_aborted_list() -> None:
    def note(original: Any) -> Any:
        def without(*args: Any) -> None:
            original(*args)

        return without

    replace_attribute(segment_recovery, "note_batch", note)


@bug
def snapshots_have_no_open_transactions() -> None:
    def pieces(original: Any) -> Any:
        def closed(entry: Any) -> Any:
            made = entry.copy(entry.version)
            made.transaction_start = -1
            return made

        return lambda found: original((producer_id, closed(entry)) for producer_id, entry in found)

    for module in (producers, pending_snapshot):
        replace_attribute(module, "snapshot_pieces", pieces)


@bug
def a_new_leader_forgets_the_batches_of_producers() -> None:
    def lead(original: Any) -> Any:
        def forgetful(self: Partition, *args: Any) -> None:
            if self.leading is None:
                for producer_id, entry in list(self.log.producers.items()):
                    made = entry.copy(entry.version)
                    made.batches = ()
                    self.log.producers._entries[producer_id] = made
            original(self, *args)

        return forgetful

    replace_attribute(Partition, "become_leader", lead)


# ---- the coordinator


@bug
def a_transaction_is_complete_before_all_markers_are_written() -> None:
    def progressed(self: TransactionService, led: Any, markers: Any) -> None:
        markers.missing.clear()
        self._runtime.spawn(self._complete(led, markers))

    TransactionService.progressed = progressed  # type: ignore[method-assign]


@bug
def the_end_of_a_transaction_is_answered_before_it_is_committed() -> None:
    def write(original: Any) -> Any:
        def at_once(self: TransactionService, led: Any, changes: Any) -> Any:
            original(self, led, changes)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        return at_once

    replace_attribute(TransactionService, "_write", write)


@bug
def a_decision_whose_outcome_is_unknown_is_taken_back() -> None:
    def resigned(original: Any) -> Any:
        def taken_back(self: TransactionService, led: Any) -> None:
            for waits in self._unanswered.pop(led, set()):
                if not waits.done():
                    waits.set_exception(KafkaError(ErrorCode.invalid_txn_state))
            original(self, led)

        return taken_back

    replace_attribute(TransactionService, "resigned", resigned)


@bug
def v2_keeps_the_epoch() -> None:
    def end(known: Any, under_way: bool, ending: Any, moment: Any, unused: Any) -> Any:
        decision = endings._end_v1(known, under_way, ending, moment)
        answer = decision.answer
        return Decision(Answer(answer.error, ending.producer_id, ending.epoch), decision.after)

    endings._end_v2 = end


@bug
def a_new_producer_doesnt_fence_the_old_one() -> None:
    def begins(original: Any) -> Any:
        def again(known: Transaction, present: Any, timeout_ms: int, moment: Any, unused: Any) -> Any:
            if present is None:
                return initialization._begun(known.initialized(known.epoch, -1, timeout_ms, moment.now_ms))
            return original(known, present, timeout_ms, moment, unused)

        return again

    replace_attribute(initialization, "_begins_anew", begins)
    aborts_in_the_same_epoch()


def aborts_in_the_same_epoch() -> None:
    """Lets the coordinator's own aborts keep the epoch."""
    for module in (initialization, shard):
        module.aborted_by_coordinator = lambda known, moment, unused: known.ended_v1(False, moment.now_ms)  # type: ignore[attr-defined]


@bug
def a_time_out_doesnt_fence_the_producer() -> None:
    aborts_in_the_same_epoch()


@bug
def transactions_have_no_time_out() -> None:
    Transaction.overdue = lambda self, now_ms: False  # type: ignore[method-assign]


@bug
def a_new_coordinator_doesnt_send_markers_again() -> None:
    async def loaded(self: TransactionService, led: Any, replay: Any) -> None:
        led.core.take_begun()

    TransactionService.loaded = loaded  # type: ignore[method-assign]


@bug
def a_partition_that_is_added_replaces_the_others() -> None:
    def added(original: Any) -> Any:
        def only_these(self: Transaction, added: Any, *rest: Any) -> Transaction:
            return replace(original(self, added, *rest), partitions=frozenset(added))

        return only_these

    replace_attribute(Transaction, "with_partitions", added)


# ---- offsets


@bug
def offsets_of_a_transaction_replace_later_ones() -> None:
    UndecidedOffsets.supersede = lambda self, key, log_offset: None  # type: ignore[method-assign]


@bug
def a_new_group_coordinator_skips_markers() -> None:
    def decided(original: Any) -> Any:
        def unless_read(self: GroupShard, producer_id: int, commit: bool, offset: int, visible: bool) -> int:
            return 0 if visible else int(original(self, producer_id, commit, offset, visible))

        return unless_read

    replace_attribute(GroupShard, "decided", decided)


@bug
def offsets_count_before_their_transaction_is_committed() -> None:
    def at_once(original: Any) -> Any:
        return lambda self, log_offset, key, value, producer_id=-1: original(self, log_offset, key, value)

    replace_attribute(Offsets, "appended", at_once)
    replace_attribute(Offsets, "replayed", at_once)
