"""The states of a classic group, as tables. Pure.

A group moves through a ring of states. In PreparingRebalance it collects the members' JoinGroup requests with their
protocols. The next generation begins when all members have joined, or when the rebalance time-out is over; dynamic
members that haven't joined by then are removed. One protocol is chosen, and all JoinGroups are answered. In
CompletingRebalance the group waits for the leader's SyncGroup, which has the assignments of all members. The
assignments are written to `__consumer_offsets`; once they are committed, the group is Stable, and all SyncGroups are
answered. Each change of the membership begins the next rebalance.

Two states are outside the ring. An Empty group has no members, and keeps its offsets. A Dead group was deleted, or this
broker no longer coordinates it.

        join                 all joined              assignment stored
Empty ────────→ Preparing ────────────→ Completing ─────────────────────→ Stable
  ↑              ↑  │ ↑                     │                                │
  └──────────────┘  │ └─────────────────────┴────────────────────────────────┘
    no member joined join with something new, leave, time-out

Source: Kafka's ClassicGroupState and GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ottla.protocol.errors import ErrorCode, KafkaError


class State(Enum):
    """A classic group's state; values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Rejoin(Enum):
    """The ways to handle a JoinGroup request of a client that is a member already."""

    REBALANCE = "take the new protocols, park the request, rebalance"
    CURRENT = "answer at once with the current generation"
    UNKNOWN = "answer UNKNOWN_MEMBER_ID"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = State

NEXT: Mapping[State, frozenset[State]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY, _DEAD}),
    _COMPLETING: frozenset({_PREPARING, _STABLE, _DEAD}),
    _STABLE: frozenset({_PREPARING, _DEAD}),
    _DEAD: frozenset({_DEAD}),
}
"""The states that may follow each state of a group."""

HEARTBEAT: Mapping[State, ErrorCode] = {
    _EMPTY: ErrorCode.unknown_member_id,
    _PREPARING: ErrorCode.rebalance_in_progress,
    _COMPLETING: ErrorCode.none,
    _STABLE: ErrorCode.none,
    _DEAD: ErrorCode.coordinator_not_available,
}
"""The answer to a heartbeat of a member with the right generation, by the group's state."""

COMMIT: Mapping[State, ErrorCode] = {
    _EMPTY: ErrorCode.none,
    _PREPARING: ErrorCode.none,  # the next generation starts from the offsets of the ending one
    _COMPLETING: ErrorCode.rebalance_in_progress,
    _STABLE: ErrorCode.none,
    _DEAD: ErrorCode.coordinator_not_available,
}
"""The answer to an offset commit of a member with the right generation, by the group's state."""

COMMIT_RENEWS_SESSION = frozenset({_PREPARING, _STABLE})
"""The states in which an offset commit renews the session of the member that sent it, as a heartbeat does."""

DELETE: Mapping[State, ErrorCode] = {
    _EMPTY: ErrorCode.none,
    _PREPARING: ErrorCode.non_empty_group,
    _COMPLETING: ErrorCode.non_empty_group,
    _STABLE: ErrorCode.non_empty_group,
    _DEAD: ErrorCode.group_id_not_found,
}
"""The answer to DeleteGroups, by the group's state."""

_ALWAYS = dict.fromkeys([(leader, same) for leader in (False, True) for same in (False, True)], Rejoin.REBALANCE)

REJOIN: Mapping[State, Mapping[tuple[bool, bool], Rejoin]] = {
    _PREPARING: _ALWAYS,
    # The same protocols again: the member missed its answer, and the generation is still valid.
    _COMPLETING: _ALWAYS | {(False, True): Rejoin.CURRENT, (True, True): Rejoin.CURRENT},
    # A leader rejoins because something outside its own subscription changed, such as a topic's partitions.
    _STABLE: _ALWAYS | {(False, True): Rejoin.CURRENT},
    _EMPTY: dict.fromkeys(_ALWAYS, Rejoin.UNKNOWN),
    _DEAD: dict.fromkeys(_ALWAYS, Rejoin.UNKNOWN),
}
"""The answer to a JoinGroup of a known member, by the group's state, and then by two facts: whether the member is the
group's leader, and whether its JoinGroup has the same protocols as the last one."""

APPEND_ERROR: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.fenced_leader_epoch: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
}
"""The error that a group's client gets, by the error with which a write to `__consumer_offsets` failed. Errors that
aren't listed reach the client unchanged."""


def for_clients(error: KafkaError) -> KafkaError:
    """The error that a group's client gets when a write to `__consumer_offsets` has failed with `error`."""
    return KafkaError(APPEND_ERROR.get(error.code, error.code), error.message)
