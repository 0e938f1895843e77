"""Random requests to a shard (the transactional ids of one partition of `__transaction_state`), whose state is compared
with that of a shard that replays the log.

After every step, a fresh shard that replays the committed records knows the same ids in the same states, has the same
open transactions, and has markers begun for the same decided transactions. The comparison leaves out fields that no
record has: the last epoch and, in records of version 0, the fields of the newer protocol. Also, a producer id's epochs
never go back, and each record's state may follow the state before it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ottla.broker.transaction.decision import Limits, Moment, Wanted
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.initialization import Init, Producer
from ottla.broker.transaction.metadata import V1, V2, TopicPartition, Transaction
from ottla.broker.transaction.records import id_key, read_key, read_value, value
from ottla.broker.transaction.shard import Change, Plan, TransactionShard, encode
from ottla.broker.transaction.states import PREDECESSORS, State
from ottla.protocol.errors import ErrorCode
from tests.unit.examples import examples

IDS = st.sampled_from(("a", "b"))
EPOCH_STEPS = st.sampled_from((0, 0, 0, 0, 0, 0, -1, 1))  # from the current epoch to that of a request
PARTITIONS = st.sets(st.builds(TopicPartition, st.sampled_from(("t", "u")), st.integers(0, 1)), min_size=1)
FATES = st.sampled_from(("commit",) * 6 + ("append", "wait", "fail"))  # of a change
EXPIRATION_MS = 50_000
Log = list[tuple[bytes, bytes | None]]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = TransactionShard(Limits(expiration_ms=EXPIRATION_MS))
        self.log: Log = []
        self.high_watermark = 0
        self.decided: list[Change] = []  # not appended yet
        self.now_ms = 1_000
        self.level = 2
        self.next_producer_id = 1

    @initialize(epoch=st.sampled_from((0, 32_764)), level=st.integers(0, 2))
    def begin(self, epoch: int, level: int) -> None:
        """The id "a" may have few epochs left."""
        self.level = level
        begun = Transaction(0, epoch, 10_000, State.EMPTY, frozenset(), self.now_ms)
        self.log.append((id_key("a"), value(begun, min(level, 1))))
        self.high_watermark = 1
        self.fail_over(0)

    def moment(self) -> Moment:
        return Moment(self.now_ms, self.level)

    def unused(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def producer(self, name: str, epoch_step: int, previous: bool) -> Producer:
        known = self.shard.transactions.get(name)
        if known is None:
            return Producer(999, 0)
        if previous and known.previous_producer_id != known.producer_id:
            return Producer(known.previous_producer_id, 32_766)
        return Producer(known.producer_id, known.epoch + epoch_step)

    def take(self, plan: Plan | None, fate: str = "wait") -> None:
        if plan is None or plan.change is None:
            return
        assert plan.answer.error in (ErrorCode.none, ErrorCode.concurrent_transactions)
        self.decided.append(plan.change)
        if fate == "fail":
            self.append_fails()
        elif fate != "wait":
            self.append()
            self.commit(len(self.log) if fate == "commit" else 0, None)

    # --- requests ---

    @rule(name=IDS, epoch_step=EPOCH_STEPS, previous=st.booleans(), anew=st.booleans(), fate=FATES)
    def init_producer_id(self, name: str, epoch_step: int, previous: bool, anew: bool, fate: str) -> None:
        init = Init(10_000, None if anew else self.producer(name, epoch_step, previous))
        plan = self.shard.init_producer_id(name, init, self.moment())
        if isinstance(plan, Wanted):
            plan = self.shard.init_producer_id(name, init, self.moment(), self.unused())
        assert isinstance(plan, Plan)
        self.take(plan, fate)

    @rule(name=IDS, epoch_step=EPOCH_STEPS, partitions=PARTITIONS, version=st.sampled_from((V1, V2)), fate=FATES)
    def add_partitions(
        self, name: str, epoch_step: int, partitions: set[TopicPartition], version: int, fate: str
    ) -> None:
        producer = self.producer(name, epoch_step, False)
        self.take(self.shard.add_partitions(name, producer, partitions, version, self.moment()), fate)

    @rule(
        name=IDS,
        epoch_step=EPOCH_STEPS,
        previous=st.booleans(),
        commit=st.booleans(),
        version=st.sampled_from((V1, V2)),
        fate=FATES,
    )
    def end(self, name: str, epoch_step: int, previous: bool, commit: bool, version: int, fate: str) -> None:
        ending = Ending(*self.producer(name, epoch_step, previous), commit, version)
        plan = self.shard.end(name, ending, self.moment())
        if isinstance(plan, Wanted):
            plan = self.shard.end(name, ending, self.moment(), self.unused())
        assert isinstance(plan, Plan)
        self.take(plan, fate)

    @rule(ms=st.sampled_from((1, 5_000, 20_000, 60_000)))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(fate=FATES)
    def sweep(self, fate: str) -> None:
        for name in self.shard.overdue(self.shard.open_ids(), self.now_ms):
            plan = self.shard.abort_overdue(name, self.moment())
            if isinstance(plan, Wanted):
                plan = self.shard.abort_overdue(name, self.moment(), self.unused())
            assert isinstance(plan, Plan)
            self.take(plan, fate)

    @rule(ids=st.sets(IDS))
    def expire(self, ids: set[str]) -> None:
        self.decided += self.shard.expire(sorted(ids), self.now_ms)

    @rule(fate=FATES)
    def all_markers_are_written(self, fate: str) -> None:
        for markers in list(self.shard.markers.values()):
            for partition in list(markers.missing):
                markers.answered(partition, ErrorCode.none)
            self.take(self.shard.complete(markers, self.moment()), fate)

    @rule(data=st.data())
    def a_marker_is_answered(self, data: st.DataObject) -> None:
        for markers in list(self.shard.markers.values()):
            if markers.missing:
                partition = data.draw(st.sampled_from(sorted(markers.missing)))
                markers.answered(partition, data.draw(st.sampled_from((ErrorCode.none, ErrorCode.request_timed_out))))
            self.take(self.shard.complete(markers, self.moment()))

    @rule(level=st.integers(0, 2))
    def the_feature_changes(self, level: int) -> None:
        self.level = level

    # --- the log ---

    @precondition(lambda self: self.decided)
    @rule()
    def append(self) -> None:
        base_offset = len(self.log)
        self.log += (encode(change, self.level) for change in self.decided)
        self.shard.appended(self.decided, base_offset)
        self.decided = []

    @precondition(lambda self: self.decided)
    @rule()
    def append_fails(self) -> None:
        self.shard.append_failed(self.decided)
        self.decided = []

    @rule(records=st.integers(1, 3), at_once=st.sampled_from((None, 1, 2)))
    def commit(self, records: int, at_once: int | None) -> None:
        self.high_watermark = min(self.high_watermark + records, len(self.log))
        while self.shard.first_unshown is not None and self.shard.first_unshown < self.high_watermark:
            self.shard.committed(self.high_watermark, at_once)

    @rule(lost=st.integers(0, 2))
    def fail_over(self, lost: int) -> None:
        """Another broker leads the partition. It may lack records that weren't committed."""
        self.decided = []
        del self.log[max(self.high_watermark, len(self.log) - lost) :]
        self.shard = TransactionShard(Limits(expiration_ms=EXPIRATION_MS))
        for offset, (key, data) in enumerate(self.log):
            assert self.shard.replayed(key, data, offset, offset < self.high_watermark)
        self.high_watermark = len(self.log)
        self.shard.committed(self.high_watermark)
        decided = {name for name, transaction in self.shard.transactions.items() if transaction.prepared}
        assert {markers.transactional_id for markers in self.shard.take_begun()} == decided
        for markers in self.shard.markers.values():
            assert markers.missing == markers.transaction.partitions

    # --- rules ---

    @invariant()
    def a_replay_gives_the_same_state(self) -> None:
        committed = self.log[: self.high_watermark]
        compacted = list(dict(committed).items())
        for records in (committed, compacted):
            other = TransactionShard(Limits())
            for offset, (key, data) in enumerate(records):
                other.replayed(key, data, offset, True)
            assert other.transactions == self.as_loaded(dict(committed))
            assert set(other.markers) == set(self.shard.markers)
            assert {name for name, t in other.transactions.items() if t.state is State.ONGOING} >= set(
                other.overdue(other.open_ids(), 2**62)
            )

    def as_loaded(self, latest: dict[bytes, bytes | None]) -> dict[str, Transaction]:
        """The shard's transactional ids, in the states that they have after a load from the log."""
        loaded = {}
        for name, transaction in self.shard.transactions.items():
            record = latest[id_key(name)]
            assert record is not None
            stored = read_value(value(transaction, record[1]))
            assert stored is not None
            loaded[name] = stored
        return loaded

    @invariant()
    def epochs_never_go_back(self) -> None:
        epochs: dict[int, int] = {}
        states: dict[str, State] = {}
        for key, data in self.log:
            name = read_key(key)
            assert name is not None
            if data is None:
                states.pop(name, None)
                continue
            transaction = read_value(data)
            assert transaction is not None
            assert epochs.get(transaction.producer_id, 0) <= transaction.epoch
            epochs[transaction.producer_id] = transaction.epoch
            if name in states:
                assert states[name] in PREDECESSORS[transaction.state]
            states[name] = transaction.state


def test_lives_and_replays_agree() -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
    )
