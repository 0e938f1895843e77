"""The input and output of a classic group: commands, answers, metadata to store. Pure.

A command is a request, with the shell's ticket for its answer, or the passing of time. The shell (`group_service`)
performs the effects of a command: it sends the answers, and then appends each `Store`. When a `Store` is committed, or
has failed, the shell calls `ClassicGroup.stored`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.protocol.errors import ErrorCode

from .records import GroupMetadata
from .roster import Protocols, Ticket
from .states import State

NEVER_MS = 2**63 - 1

Answer = Mapping[str, Any]  # a response body, or one element of it, under kio's field names


class Now(NamedTuple):
    """The present time by two clocks: `steady_ms` for deadlines, `wall_ms` (ms since 1970) for records."""

    steady_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of groups. The fields have Kafka's names, with underscores for dots, except `offsets_retention_ms`:
    Kafka's setting is in minutes."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000


class Join(NamedTuple):
    """A JoinGroup request. `new_member_id` is the id for a client that has no member id.

    `requires_known_id` (version 4 on, KIP-394): an unknown dynamic member first gets an id, and must join again with
    it. `skips_assignment` (version 9 on, KIP-814): if the member is the leader, the answer may say that no assignment
    is needed.
    """

    ticket: Ticket
    member_id: str
    new_member_id: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str | None = None
    requires_known_id: bool = True
    skips_assignment: bool = True

    def why(self, event: str) -> str:
        """The text of `event`, with the reason that the client states, for a log line."""
        return f"{event}; client reason: {self.reason or 'not provided'}"


class Sync(NamedTuple):
    """A SyncGroup request. `assignments`, member id → opaque bytes, count only if the member is the leader."""

    ticket: Ticket
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Leaver:
    """A member that a LeaveGroup request removes. An administrator removes a static member by its static id, with an
    empty member id."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """The meaning of a `Store`: the group is new. If this record can't be committed, the group ends."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """The meaning of a `Store`: the group has lost its last member. No request waits for this record."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The meaning of a `Store`: the leader has sent a generation's assignments. The answers to SyncGroups wait until
    this record is committed."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The meaning of a `Store`: a static member has got a new id. The answer to its JoinGroup waits until this record
    is committed. If the write fails, the old values are restored."""

    join: Join
    old_id: str
    old_leader: str | None
    old_protocols: Protocols
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Store:
    """A group's metadata, which is to be written to the log. `meaning` is the event by which the metadata changed."""

    value: GroupMetadata
    meaning: Created | Emptied | Assigned | Replaced


@dataclass(slots=True)
class Effects:
    """The effects of a command. `transitions`, (from, to, generation, why), are the changes of state for log lines."""

    answers: list[tuple[Ticket, Answer]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    transitions: list[tuple[State, State, int, str]] = field(default_factory=list)

    def answer_join(self, ticket: Ticket, error: ErrorCode, member_id: str) -> None:
        """Answers an error to a JoinGroup request."""
        self.answers.append((ticket, {"error_code": error, "member_id": member_id}))

    def answer_sync(self, ticket: Ticket, error: ErrorCode) -> None:
        """Answers an error to a SyncGroup request."""
        self.answers.append((ticket, {"error_code": error}))
