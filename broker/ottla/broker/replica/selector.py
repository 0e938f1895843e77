"""Which replica a consumer should read from: the nearest that has what it asks for (KIP-392). Pure.

`replica.selector.class` names the rule by Kafka's class names: with none consumers read from the leader, with
RackAwareReplicaSelector from a replica in their own rack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NONE = -1


class Candidate(NamedTuple):
    """A replica in sync, with the offsets that the leader knows of it."""

    broker_id: int
    log_start_offset: int
    end_offset: int


def preferred_replica(
    rack: str, racks: Mapping[int, str | None], leader: int, offset: int, candidates: Iterable[Candidate]
) -> int:
    """The replica in `rack` to read `offset` from: the leader if it is there, else the one that is furthest; NONE
    where that would be the leader anyway. `racks` are those of the brokers that are alive."""
    if not rack or racks.get(leader) == rack:
        return NONE
    near = [
        candidate
        for candidate in candidates
        if racks.get(candidate.broker_id) == rack and candidate.log_start_offset <= offset <= candidate.end_offset
    ]
    return max(near, key=lambda candidate: candidate.end_offset).broker_id if near else NONE
