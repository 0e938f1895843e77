"""Writes the markers that transactions' coordinators ask for into the partitions that this broker leads.

A marker is answered when it is committed. A marker for a partition of `__consumer_offsets` goes through the coordinator
of groups, whose offsets it makes valid or drops.

Source: Kafka's KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.marker_sender import Marker
from ottla.broker.partitions import PartitionTable
from ottla.broker.transaction.metadata import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError

COMMITTED_S = 8.0  # the longest wait for markers to be committed; shorter than their sender's wait for the answer
APPENDED_PER_TURN = 50  # markers that are appended in one turn of the event loop

_Outcome = asyncio.Future[None] | ErrorCode


class GroupMarkers(Protocol):
    """The coordinator of groups."""

    async def end_transaction(self, index: int, marker: Marker) -> None:
        """Appends the marker of a transaction with offsets of groups; see `GroupService.end_transaction`."""


class PartitionMarkers:
    """Appends markers to the partitions of `table`. All methods run on the event loop."""

    def __init__(self, table: PartitionTable, groups: GroupMarkers) -> None:
        self._table = table
        self._groups = groups

    async def append_markers(
        self, marker: Marker, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Appends `marker` to each partition, and waits until all of the markers are committed, `COMMITTED_S` at most.
        Returns an error code for each partition; REQUEST_TIMED_OUT says that the marker may be committed later. Raises
        nothing."""
        outcomes: dict[TopicPartition, _Outcome] = {}
        for count, partition in enumerate(partitions, 1):
            outcomes[partition] = self._append(marker, partition)
            if count % APPENDED_PER_TURN == 0:
                await asyncio.sleep(0)
        waits = [outcome for outcome in outcomes.values() if isinstance(outcome, asyncio.Future)]
        if waits:
            await asyncio.wait(waits, timeout=COMMITTED_S)
        return {partition: _error(outcome) for partition, outcome in outcomes.items()}

    def _append(self, marker: Marker, partition: TopicPartition) -> _Outcome:
        if partition.topic == OFFSETS_TOPIC:
            return asyncio.ensure_future(self._groups.end_transaction(partition.partition, marker))
        try:
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
