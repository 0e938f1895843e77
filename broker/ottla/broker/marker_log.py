"""Writes the markers that transactions' coordinators ask for into the partitions that this broker leads.

A marker for a partition of `__consumer_offsets` goes through the coordinator of groups, whose offsets it makes valid or
drops. A marker is answered when it is committed. While a partition commits nothing, its markers are answered
REQUEST_TIMED_OUT, and two rules keep the markers of the other partitions from waiting for it, because a coordinator has
one request at a time under way to this broker:

1. An answer to a coordinator waits for a marker for a short time, and not at all if an earlier marker of the same
   partition has waited for that time already.
2. A marker that was appended isn't appended again when its coordinator sends it again, until the coordinator has been
   told of its commit. Otherwise the log would grow with each attempt, and a marker whose commit always falls between
   two attempts would never be confirmed.

When a marker is sent again, its last append counts only if the producer has no open transaction in the partition: no
marker ends a transaction that began after it. Producers of protocol V1 end each of their transactions with an equal
marker. The last append doesn't count either if this broker has been elected anew since, or the partition has been
created anew.

Source: Kafka's KafkaApis.handleWriteTxnMarkersRequest, which appends a repeated marker again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.marker_sender import Marker
from ottla.broker.partitions import PartitionTable
from ottla.broker.transaction.metadata import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

COMMITTED_S = 1.0  # the longest wait for the markers of a coordinator to be committed
PATIENT_S = 25.0  # the longest wait for the markers of a tool; the time-out of its request is 30 s
UNTOLD_S = 60.0  # after which a committed marker is forgotten, if its coordinator hasn't been told of its commit
UNTOLD_MAX = 100_000  # committed markers that aren't forgotten
APPENDED_PER_TURN = 50  # markers that are appended in one turn of the event loop

_Outcome = asyncio.Future[None] | ErrorCode


class GroupMarkers(Protocol):
    """The coordinator of groups."""

    def end_transaction(self, index: int, marker: Marker) -> asyncio.Future[None]:
        """Appends the marker of a transaction with offsets of groups; see `GroupService.end_transaction`."""


class _Leadership(NamedTuple):
    """A time in which this broker leads a partition without an election; the partition is None where this broker has no
    replica of it."""

    partition: Partition | None
    epoch: int


class _Appended(NamedTuple):
    """A marker that was appended at the event loop's time `since_s`, and is committed when `committed` is done. The
    future fails when this broker stops leading the partition."""

    committed: asyncio.Future[None]
    since_s: float
    leadership: _Leadership


class PartitionMarkers:
    """Appends markers to the partitions of `table`. All methods run on the event loop."""

    def __init__(self, table: PartitionTable, groups: GroupMarkers) -> None:
        self._table = table
        self._groups = groups
        self._uncommitted: dict[TopicPartition, OrderedDict[Marker, _Appended]] = {}  # in the order of their appends
        self._untold: OrderedDict[tuple[TopicPartition, Marker], tuple[float, _Appended]] = OrderedDict()
        """The committed markers of whose commit no answer has told yet, in the order of their commits, and the event
        loop's times of these commits."""

    @property
    def remembered_count(self) -> int:
        """How many markers are remembered, because no answer has told of their commit."""
        return len(self._untold) + sum(map(len, self._uncommitted.values()))

    async def append_markers(
        self, marker: Marker, partitions: Sequence[TopicPartition], *, patient: bool = False
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Appends `marker` to each partition, unless its last append there counts. Waits for `COMMITTED_S` at most
        until the markers are committed, and not for partitions of which an older marker isn't committed after that
        time. If `patient`, waits for all partitions, for `PATIENT_S` at most. Returns an error code for each partition;
        REQUEST_TIMED_OUT says that the marker may be committed later. Raises nothing."""
        self._forget_old()
        outcomes: dict[TopicPartition, _Outcome] = {}
        for count, partition in enumerate(partitions, 1):
            outcomes[partition] = self._append(marker, partition)
            if count % APPENDED_PER_TURN == 0:
                await asyncio.sleep(0)
        waits = [
            outcome
            for partition, outcome in outcomes.items()
            if isinstance(outcome, asyncio.Future) and (patient or not self._is_stuck(partition))
        ]
        if waits:
            await asyncio.wait(waits, timeout=PATIENT_S if patient else COMMITTED_S)
        errors = {partition: _error(outcome) for partition, outcome in outcomes.items()}
        for partition, error in errors.items():
            if error is ErrorCode.none:
                self._told(marker, partition, outcomes[partition])
        return errors

    def _is_stuck(self, partition: TopicPartition) -> bool:
        """Whether the partition's oldest uncommitted marker was appended `COMMITTED_S` ago or earlier."""
        oldest = next(iter(self._uncommitted.get(partition, {}).values()), None)
        return oldest is not None and oldest.since_s + COMMITTED_S <= asyncio.get_running_loop().time()

    def _append(self, marker: Marker, partition: TopicPartition) -> _Outcome:
        leadership = self._leadership(partition)
        last = self._last(marker, partition)
        if last is not None and last.leadership == leadership and not _has_begun(leadership.partition, marker):
            return last.committed
        outcome = self._append_anew(marker, partition)
        if isinstance(outcome, asyncio.Future):
            self._remember(marker, partition, _Appended(outcome, asyncio.get_running_loop().time(), leadership))
        return outcome

    def _leadership(self, partition: TopicPartition) -> _Leadership:
        found = self._table.find_or_none(partition.topic, partition.partition)
        return _Leadership(found, -1 if found is None else found.leader_epoch)

    def _last(self, marker: Marker, partition: TopicPartition) -> _Appended | None:
        """The last append of the marker, if it is committed or may still be, and no answer has told of its commit."""
        uncommitted = self._uncommitted.get(partition)
        last = None if uncommitted is None else uncommitted.get(marker)
        if last is None:
            _, last = self._untold.get((partition, marker), (0, None))
        return None if last is None or _has_failed(last.committed) else last

    def _remember(self, marker: Marker, partition: TopicPartition, noted: _Appended) -> None:
        self._untold.pop((partition, marker), None)
        uncommitted = self._uncommitted.setdefault(partition, OrderedDict())
        uncommitted.pop(marker, None)
        uncommitted[marker] = noted
        noted.committed.add_done_callback(lambda _: self._settled(marker, partition, noted))

    def _settled(self, marker: Marker, partition: TopicPartition, noted: _Appended) -> None:
        """Called when the marker is committed, or this broker has stopped leading the partition."""
        if self._drop(marker, partition, noted.committed) and not _has_failed(noted.committed):
            self._untold[partition, marker] = asyncio.get_running_loop().time(), noted
            if len(self._untold) > UNTOLD_MAX:
                self._untold.popitem(last=False)

    def _told(self, marker: Marker, partition: TopicPartition, outcome: _Outcome) -> None:
        """Called when an answer tells that the marker is committed."""
        self._drop(marker, partition, outcome)
        _, untold = self._untold.get((partition, marker), (0, None))
        if untold is not None and untold.committed is outcome:
            del self._untold[partition, marker]

    def _drop(self, marker: Marker, partition: TopicPartition, outcome: _Outcome) -> bool:
        """Drops the marker whose append has this outcome from the uncommitted ones. Returns whether it was there."""
        uncommitted = self._uncommitted.get(partition, OrderedDict())
        noted = uncommitted.get(marker)
        if noted is None or noted.committed is not outcome:
            return False
        del uncommitted[marker]
        if not uncommitted:
            del self._uncommitted[partition]
        return True

    def _forget_old(self) -> None:
        oldest_s = asyncio.get_running_loop().time() - UNTOLD_S
        while self._untold and next(iter(self._untold.values()))[0] < oldest_s:
            self._untold.popitem(last=False)

    def _append_anew(self, marker: Marker, partition: TopicPartition) -> _Outcome:
        try:
            if partition.topic == OFFSETS_TOPIC:
                return self._groups.end_transaction(partition.partition, marker)
            found = self._table.find(partition.topic, partition.partition)
            offset = found.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.commit,
                marker.transaction_version,
            )
        except KafkaError as error:
            return error.code
        return ErrorCode.none if offset < found.high_watermark else found.committed(offset)


def _has_begun(partition: Partition | None, marker: Marker) -> bool:
    """Whether the marker's producer has an open transaction in the partition."""
    known = None if partition is None else partition.log.producers.get(marker.producer_id)
    return known is not None and known.transaction_start >= 0


def _has_failed(committed: asyncio.Future[None]) -> bool:
    return committed.done() and (committed.cancelled() or committed.exception() is not None)


def _error(outcome: _Outcome) -> ErrorCode:
    if isinstance(outcome, ErrorCode):
        return outcome
    if not outcome.done():
        return ErrorCode.request_timed_out
    if outcome.cancelled():
        return ErrorCode.not_leader_or_follower
    problem = outcome.exception()
    if problem is None:
        return ErrorCode.none
    return problem.code if isinstance(problem, KafkaError) else ErrorCode.unknown_server_error
