"""The transactional ids of one partition of `__transaction_state`. Pure.

A method for a request returns a `Plan`: the change to append as one record, and the answer, which is given when the
record is committed. The state of an id moves at that moment and not before (`committed`), so all readers see committed
state only. Three rules follow for the time between a decision and its commit:

1. An id has one change under way at most. Meanwhile, its other requests are answered CONCURRENT_TRANSACTIONS, and
   clients repeat them.
2. If the append fails for certain, nothing has changed (`append_failed`). If the record was appended, but isn't
   committed in time, its outcome is unknown: the change stays under way until the record is committed, or until this
   broker stops leading the partition. No client is told that the change has failed.
3. The records say neither which changes are under way nor which markers are missing. Both are dropped with the shard.
   After a load no change is under way, and all markers of each decided transaction are missing.

Source: Kafka's TransactionStateManager, TransactionCoordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.protocol.errors import ErrorCode

from . import additions
from .decision import Answer, Decision, Limits, Moment, Wanted
from .ending import Ending, aborted_by_coordinator, end
from .initialization import Init, Producer, initialize, refusal
from .markers import Markers
from .metadata import TopicPartition, Transaction
from .records import id_key, read_key, read_value, value, value_version
from .states import AT_REST, PREDECESSORS, State


class Change(NamedTuple):
    """A change of one id, which becomes a record. `after` is None if the id expires."""

    transactional_id: str
    after: Transaction | None


class Plan(NamedTuple):
    """A change to append, and the answer that is given when the change is committed. Without a change, the answer is
    given at once."""

    answer: Answer
    change: Change | None = None


def encode(change: Change, feature_level: int) -> tuple[bytes, bytes | None]:
    """A record's key and value, at a level of the feature `transaction.version`."""
    after = change.after
    return id_key(change.transactional_id), None if after is None else value(after, value_version(after, feature_level))


class TransactionShard:
    """The committed state of each transactional id (`transactions`), and the markers of each id whose transaction is
    decided (`markers`)."""

    def __init__(self, limits: Limits) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.markers: dict[str, Markers] = {}
        self._limits = limits
        self._under_way: dict[str, Change] = {}
        self._appended: deque[tuple[int, Change]] = deque()
        self._open: dict[str, Transaction] = {}  # the Ongoing ones, for the sweep of time-outs
        self._begun: dict[str, Markers] = {}

    # --- requests ---

    def init_producer_id(
        self, transactional_id: str, init: Init, moment: Moment, unused_producer_id: int | None = None
    ) -> Plan | Wanted:
        """Decides an InitProducerId request. `unused_producer_id` is a producer id that was never used. If the decision
        needs such
        an id, and it is None, the result is `Wanted`."""
        error = refusal(transactional_id, init, self._limits)
        if error is not ErrorCode.none:
            return Plan(Answer(error))
        decision = initialize(*self._state(transactional_id), init, moment, unused_producer_id)
        return self._plan(transactional_id, decision)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Set[TopicPartition],
        client_version: int,
        moment: Moment,
    ) -> Plan:
        """Decides an AddPartitionsToTxn or AddOffsetsToTxn request of a client that speaks protocol `client_version`
        (V1 or V2)."""
        if not transactional_id:
            return Plan(Answer(ErrorCode.invalid_request))
        known, under_way = self._state(transactional_id)
        decision = additions.add(known, under_way, producer, partitions, client_version, moment.now_ms)
        return self._decided(transactional_id, decision)

    def may_begin(self, transactional_id: str) -> bool:
        """Whether the id's producer may begin its next transaction now: no transaction is open, nor its markers
        missing, and no change is under way."""
        known, under_way = self._state(transactional_id)
        return known is not None and not under_way and known.state in AT_REST

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Answers an AddPartitionsToTxn request that only verifies that the transaction has the partitions, and adds
        none: returns an error code for each partition."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.invalid_request)
        return additions.verified(self.transactions.get(transactional_id), producer, partitions)

    def end(
        self, transactional_id: str, ending: Ending, moment: Moment, unused_producer_id: int | None = None
    ) -> Plan | Wanted:
        """Decides an EndTxn request. `unused_producer_id` is as in `init_producer_id`."""
        if not transactional_id:
            return Plan(Answer(ErrorCode.invalid_request))
        return self._plan(transactional_id, end(*self._state(transactional_id), ending, moment, unused_producer_id))

    def described(self, transactional_id: str) -> Transaction | None:
        """The committed state of an id; None if it doesn't exist, or is about to expire."""
        change = self._under_way.get(transactional_id)
        return None if change is not None and change.after is None else self.transactions.get(transactional_id)

    # --- time ---

    def ids(self) -> list[str]:
        """All ids."""
        return list(self.transactions)

    def open_ids(self) -> list[str]:
        """The ids whose transactions are open."""
        return list(self._open)

    def overdue(self, ids: Iterable[str], now_ms: int) -> list[str]:
        """Those of `ids` whose transactions are open for longer than their time-outs, and have no change under way."""
        return [
            transactional_id
            for transactional_id in ids
            if (transaction := self._open.get(transactional_id)) is not None
            and transaction.overdue(now_ms)
            and transactional_id not in self._under_way
        ]

    def abort_overdue(
        self, transactional_id: str, moment: Moment, unused_producer_id: int | None = None
    ) -> Plan | Wanted | None:
        """Aborts the overdue transaction of an id. Returns None if the transaction isn't overdue any more, or a change
        is under way. `unused_producer_id` is as in `init_producer_id`."""
        known, under_way = self._state(transactional_id)
        if known is None or under_way or not known.overdue(moment.now_ms):
            return None
        aborted = aborted_by_coordinator(known, moment, unused_producer_id)
        return aborted if isinstance(aborted, Wanted) else self._decided(transactional_id, Decision(Answer(), aborted))

    def expire(self, ids: Iterable[str], now_ms: int) -> list[Change]:
        """The tombstones of those of `ids` that weren't used for the expiration time. The tombstones are under way from
        now on."""
        oldest_ms = now_ms - self._limits.expiration_ms
        changes = [
            Change(transactional_id, None)
            for transactional_id in ids
            if (transaction := self.transactions.get(transactional_id)) is not None
            and transaction.last_update_ms <= oldest_ms
            and transaction.state in AT_REST
            and transactional_id not in self._under_way
        ]
        self._under_way.update((change.transactional_id, change) for change in changes)
        return changes

    # --- markers ---

    def take_begun(self) -> list[Markers]:
        """The markers that are to be sent: those of all transactions whose decisions were committed since the last
        call."""
        begun, self._begun = self._begun, {}
        return list(begun.values())

    def is_current(self, markers: Markers) -> bool:
        """Whether the transaction to which `markers` belong hasn't ended yet."""
        return self.markers.get(markers.transactional_id) is markers

    def complete(self, markers: Markers, moment: Moment) -> Plan | None:
        """Ends the transaction to which `markers` belong. Returns None if a marker is missing, or if the transaction
        has ended or is being ended already."""
        transactional_id = markers.transactional_id
        if not self.is_current(markers) or markers.missing or markers.stopped or transactional_id in self._under_way:
            return None
        completed = markers.transaction.completed(moment.now_ms, fenced=bool(markers.overtaken))
        return self._decided(transactional_id, Decision(Answer(), completed))

    def counts(self) -> dict[str, int]:
        """How many ids have an open transaction (`open`), a decided one whose markers are being written (`ending`), and
        no transaction (`idle`)."""
        opened, ending = len(self._open), len(self.markers)
        return {"open": opened, "ending": ending, "idle": len(self.transactions) - opened - ending}

    # --- changes of the state ---

    def append_failed(self, changes: Sequence[Change]) -> None:
        """Notes that the append of `changes` has failed for certain: the changes aren't under way any more."""
        for change in changes:
            if self._under_way.get(change.transactional_id) is change:
                del self._under_way[change.transactional_id]

    def appended(self, changes: Sequence[Change], base_offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Notes that `changes` were appended, one record each from `base_offset` on. `committed` applies them later.
        `producer_id` is as in `replayed`."""
        self._appended.extend(enumerate(changes, base_offset))

    def committed(self, high_watermark: int, records_max: int | None = None) -> None:
        """Applies the changes below `high_watermark`: all of them, or the `records_max` oldest."""
        appended = self._appended
        left = len(appended) if records_max is None else records_max
        while left and appended and appended[0][0] < high_watermark:
            self._apply(appended.popleft()[1])
            left -= 1

    @property
    def first_unshown(self) -> int | None:
        """The log offset of the oldest change that was appended and isn't applied; None if there is none."""
        return self._appended[0][0] if self._appended else None

    @property
    def unshown(self) -> TransactionShard:
        """The shard itself keeps the list of appended changes."""
        return self

    def replayed(
        self, key: bytes, value: bytes | None, offset: int, visible: bool, producer_id: int = NO_PRODUCER_ID
    ) -> bool:
        """Applies one record that was read back from `offset` of the log. Returns False if the record's kind or version
        is skipped.

        If the record isn't `visible` yet, because it isn't below the high watermark, `committed` applies it later, and
        with it all records behind it: the high watermark may rise while the log is read.
        Records of this topic never belong to a transaction, so `producer_id` is ignored. Raises ProtocolError at
        malformed bytes.
        """
        transactional_id = read_key(key)
        if transactional_id is None:
            return False
        after = None if value is None else read_value(value)
        if value is not None and after is None:
            return False
        change = Change(transactional_id, after)
        if visible and not self._appended:
            self._apply(change)
        else:
            self._appended.append((offset, change))
        return True

    def decided(self, producer_id: int, commit: bool, offset: int, visible: bool) -> int:
        """Skips a marker: no transaction writes to this topic."""
        return 0

    def _apply(self, change: Change) -> None:
        transactional_id, after = change
        if self._under_way.get(transactional_id) is change:
            del self._under_way[transactional_id]
        self._open.pop(transactional_id, None)
        self.markers.pop(transactional_id, None)
        self._begun.pop(transactional_id, None)
        if after is None:
            self.transactions.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = after
        if after.state is State.ONGOING:
            self._open[transactional_id] = after
        elif after.prepared:
            markers = Markers(transactional_id, after)
            self.markers[transactional_id] = self._begun[transactional_id] = markers

    # --- decisions ---

    def _state(self, transactional_id: str) -> tuple[Transaction | None, bool]:
        """The id's committed state, and whether a change is under way."""
        return self.transactions.get(transactional_id), transactional_id in self._under_way

    def _plan(self, transactional_id: str, decision: Decision | Wanted) -> Plan | Wanted:
        return decision if isinstance(decision, Wanted) else self._decided(transactional_id, decision)

    def _decided(self, transactional_id: str, decision: Decision) -> Plan:
        after = decision.after
        if after is None:
            return Plan(decision.answer)
        before = self.transactions.get(transactional_id)
        assert transactional_id not in self._under_way, f"{transactional_id} already has a change under way"
        assert before is None or before.state in PREDECESSORS[after.state], (before, after)
        change = self._under_way[transactional_id] = Change(transactional_id, after)
        return Plan(decision.answer, change)
