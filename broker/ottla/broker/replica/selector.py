"""Selects the replica that a consumer should read from: one in its rack that has the offset (KIP-392). Pure.

The setting `replica.selector.class` selects the rule by a class name of Kafka's: if it is empty, consumers read from
the leader; with RackAwareReplicaSelector they read from a replica in their own rack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NONE = -1


class Candidate(NamedTuple):
    """A replica in sync, with its offsets as the leader knows them."""

    broker_id: int
    log_start_offset: int
    end_offset: int


def preferred_replica(
    rack: str, racks: Mapping[int, str | None], leader: int, offset: int, candidates: Iterable[Candidate]
) -> int:
    """The replica in `rack` from which to read `offset`: the one with the greatest end offset. NONE where the leader is
    in `rack`, or where no replica in `rack` has the offset. `racks` are the racks of the live brokers."""
    if not rack or racks.get(leader) == rack:
        return NONE
    near = [
        candidate
        for candidate in candidates
        if racks.get(candidate.broker_id) == rack and candidate.log_start_offset <= offset <= candidate.end_offset
    ]
    return max(near, key=lambda candidate: candidate.end_offset).broker_id if near else NONE
