"""The members of a classic group, and the protocol on which they agree. Pure.

Owns the members, their static ids (KIP-345), the leader, the member ids that were handed out but not used yet
(KIP-394), and the vote on a protocol. Keeps two rules: a static id names at most one member, and the leader, if there
is one, is a member. This module knows neither generations nor states.

Source: Kafka's ClassicGroup and ClassicGroupMember.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ottla.protocol.errors import ErrorCode

Ticket = Any  # the shell's handle for an answer, which this module only keeps
Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata) of each protocol, the preferred one first


@dataclass(slots=True)
class Member:
    """One member. `join_ticket` and `sync_ticket` are the tickets of its parked JoinGroup and SyncGroup, None where no
    request is parked. Only the roster changes `join_ticket`, because the roster counts the parked JoinGroups.

    If the member sends no request before `session_deadline_ms` (of the steady clock), it counts as dead; None where it
    has no such deadline.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    session_deadline_ms: int | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for `protocol`; empty where the member doesn't support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def satisfied(self) -> bool:
        """Whether the member needn't send heartbeats now, because it waits for an answer. The deadline of a new member
        counts even while it waits."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)


@dataclass(slots=True)
class Roster:
    """The members in the order in which they joined the group."""

    protocol_type: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)  # handed-out member id → its deadline
    joined_count: int = 0  # members with a JoinGroup parked
    _static: dict[str, str] = field(default_factory=dict)  # static id → member id
    _support: Counter[str] = field(default_factory=Counter)  # protocol → how many members know it

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.members

    def member_of(self, instance_id: str | None) -> str | None:
        """The member id of the member with this static id; None where there is none."""
        return None if instance_id is None else self._static.get(instance_id)

    def validate(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if both ids belong to the same member. FENCED_INSTANCE_ID if the static id belongs to another member id
        now; otherwise UNKNOWN_MEMBER_ID."""
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether all members support one of these protocols of a client. In a group without members: whether the
        client states a protocol type and a protocol."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any(
            self._support[name] == len(self.members) for name, _ in protocols
        )

    def add(self, member: Member, protocol_type: str) -> None:
        """Adds a member. The first member determines the protocol type, and is the leader."""
        if member.instance_id is not None:
            assert member.instance_id not in self._static, "a static id would name two members"
            self._static[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type, "the group would have two protocol types"
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._support.update(name for name, _ in member.protocols)
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Removes a member or a pending id. If the member was the leader, the first of the other members becomes the
        leader."""
        self.pending.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.unpark_join(member)
        self._withdraw(member)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_id: str, new_id: str) -> Member:
        """Gives a new member id to a static member that came back. The member keeps its assignment, and the leadership
        if it is the leader."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None
        member.member_id = new_id
        self.members[new_id] = member
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Takes over a member's new protocols and time-outs."""
        if protocols != member.protocols:
            self._withdraw(member)
            member.protocols = protocols
            self._support.update(name for name, _ in protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def elect_joined_leader(self) -> bool:
        """If the leader's JoinGroup isn't parked, the first member whose JoinGroup is parked becomes the leader.
        Returns False if no JoinGroup is parked."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_ticket is not None:
            return True
        joined = next((member.member_id for member in self if member.join_ticket is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def park_join(self, member: Member, ticket: Ticket) -> None:
        """Notes that a member's JoinGroup waits for the next generation."""
        self.joined_count += member.join_ticket is None
        member.join_ticket = ticket

    def unpark_join(self, member: Member) -> None:
        """Notes that the member's JoinGroup doesn't wait any more."""
        self.joined_count -= member.join_ticket is not None
        member.join_ticket = None

    @property
    def all_joined(self) -> bool:
        """Whether every member's JoinGroup is parked, and every handed-out member id has been used."""
        return not self.pending and self.joined_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance time-out of any member."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def select_protocol(self) -> str:
        """The next generation's protocol. Each member votes for the first of its protocols that all members support.
        The most votes win; a tie goes to the protocol that was voted for first.

        Kafka breaks ties by the order of a hash map.
        """
        everybody = len(self.members)
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name, _ in member.protocols if self._support[name] == everybody)] += 1
        return votes.most_common(1)[0][0]

    def _withdraw(self, member: Member) -> None:
        for name, _ in member.protocols:
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]
