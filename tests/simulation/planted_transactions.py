"""Bugs of transactions to plant into the product (see `planted.py`). Each breaks one of the rules that make a
transaction atomic; most of them are bugs that Kafka or one of its relatives had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.broker import partition as partitions
from ottla.broker.group.offsets import Offsets
from ottla.broker.group.undecided import UndecidedOffsets
from ottla.broker.log import segment_recovery
from ottla.broker.partition import Partition
from ottla.broker.transaction import ending as endings
from ottla.broker.transaction import initialization, shard
from ottla.broker.transaction.decision import Answer, Decision
from ottla.broker.transaction.metadata import Transaction
from ottla.broker.transaction_service import TransactionService
from ottla.protocol.errors import ErrorCode

from .bugs import bug, replace_attribute

# ---- the partition's side


@bug
def the_last_stable_offset_is_the_high_watermark() -> None:
    Partition.last_stable_offset = property(lambda self: self.high_watermark)  # type: ignore[assignment]


@bug
def a_repeated_marker_is_refused() -> None:
    def check(original: Any) -> Any:
        def strict(known: Any, producer_id: int, epoch: int, *rest: Any) -> None:
            original(known, producer_id, epoch, *rest)
            if known is not None and rest[-1] >= 2 and epoch == known.epoch:
                raise partitions.KafkaError(ErrorCode.invalid_producer_epoch)

        return strict

    replace_attribute(partitions, "check_marker", check)


# ---- the log


@bug
def recovery_doesnt_rebuild_the_aborted_list() -> None:
    def note(original: Any) -> Any:
        def without(*args: Any) -> None:
            original(*args)

        return without

    replace_attribute(segment_recovery, "note_batch", note)


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
def offsets_count_before_their_transaction_is_committed() -> None:
    def at_once(original: Any) -> Any:
        return lambda self, log_offset, key, value, producer_id=-1: original(self, log_offset, key, value)

    replace_attribute(Offsets, "appended", at_once)
    replace_attribute(Offsets, "replayed", at_once)
