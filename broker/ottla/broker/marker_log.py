"""Writes the markers that transactions' coordinators ask for into the partitions that this broker leads.

A marker for a partition of `__consumer_offsets` goes through the coordinator of groups, whose offsets it makes valid or
drops. A marker is answered when it is committed. While a partition commits nothing, its markers are answered
REQUEST_TIMED_OUT, and two rules keep the markers of the other partitions from waiting for it, because a coordinator has
one request at a time under way to this broker:

1. An answer waits for a marker for a short time, and not at all if an earlier marker of the same partition has waited
   for that time already.
2. A marker that was appended, and isn't committed yet, isn't appended again when its coordinator sends it again: the
   log would grow with each attempt.

Source: Kafka's KafkaApis.handleWriteTxnMarkersRequest, which appends a repeated marker again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.marker_sender import Marker
from ottla.broker.partitions import PartitionTable
from ottla.broker.transaction.metadata import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError

COMMITTED_S = 1.0  # the longest wait for the markers of a coordinator to be committed
APPENDED_PER_TURN = 50  # markers that are appended in one turn of the event loop

_Outcome = asyncio.Future[None] | ErrorCode


class GroupMarkers(Protocol):
    """The coordinator of groups."""

    def end_transaction(self, index: int, marker: Marker) -> asyncio.Future[None]:
        """Appends the marker of a transaction with offsets of groups; see `GroupService.end_transaction`."""


class _Uncommitted(NamedTuple):
    """A marker that was appended at the event loop's time `since_s`, and is committed when `committed` is done. The
    future fails when this broker stops leading the partition."""

    committed: asyncio.Future[None]
    since_s: float


class PartitionMarkers:
    """Appends markers to the partitions of `table`. All methods run on the event loop."""

    def __init__(self, table: PartitionTable, groups: GroupMarkers) -> None:
        self._table = table
        self._groups = groups
        self._uncommitted: dict[TopicPartition, dict[Marker, _Uncommitted]] = {}  # in the order of their appends

    async def append_markers(
        self, marker: Marker, partitions: Sequence[TopicPartition], wait_s: float = COMMITTED_S
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Appends `marker` to each partition, unless its last append there may still be committed. Waits for `wait_s`
        at most until the markers are committed, and not for partitions of which an older marker isn't committed after
        `wait_s`. Returns an error code for each partition; REQUEST_TIMED_OUT says that the marker may be committed
        later. Raises nothing."""
        outcomes: dict[TopicPartition, _Outcome] = {}
        for count, partition in enumerate(partitions, 1):
            outcomes[partition] = self._append(marker, partition)
            if count % APPENDED_PER_TURN == 0:
                await asyncio.sleep(0)
        waits = [
            outcome
            for partition, outcome in outcomes.items()
            if isinstance(outcome, asyncio.Future) and not self._is_stuck(partition, wait_s)
        ]
        if waits:
            await asyncio.wait(waits, timeout=wait_s)
        return {partition: _error(outcome) for partition, outcome in outcomes.items()}

    def _is_stuck(self, partition: TopicPartition, wait_s: float) -> bool:
        """Whether the partition's oldest uncommitted marker was appended `wait_s` ago or earlier."""
        oldest = next(iter(self._uncommitted.get(partition, {}).values()), None)
        return oldest is not None and oldest.since_s + wait_s <= asyncio.get_running_loop().time()

    def _append(self, marker: Marker, partition: TopicPartition) -> _Outcome:
        last = self._uncommitted.get(partition, {}).get(marker)
        if last is not None and not last.committed.done():
            return last.committed
        outcome = self._append_anew(marker, partition)
        if isinstance(outcome, asyncio.Future) and not outcome.done():
            self._remember(marker, partition, outcome)
        return outcome

    def _remember(self, marker: Marker, partition: TopicPartition, committed: asyncio.Future[None]) -> None:
        uncommitted = self._uncommitted.setdefault(partition, {})
        uncommitted.pop(marker, None)
        uncommitted[marker] = noted = _Uncommitted(committed, asyncio.get_running_loop().time())

        def forget(_: object) -> None:
            if uncommitted.get(marker) is noted:
                del uncommitted[marker]
            if not uncommitted and self._uncommitted.get(partition) is uncommitted:
                del self._uncommitted[partition]

        committed.add_done_callback(forget)

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
