"""The members of a classic group, and the group's steps from one generation to the next. Pure.

This module owns the group's state, its generation, its members with their parked requests, and its deadlines. `classic`
decides by them how each request is answered; `states` has a diagram of the states. Rules that this module protects:

1. A generation only grows, and has one leader, one protocol and one set of members, fixed when it begins.
2. No request waits forever: whenever a request is parked, a deadline for it is set.

Source: Kafka's GroupMetadataManager and ClassicGroup; KIP-62, 134 (the initial delay), 345.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.protocol.errors import ErrorCode

from . import answers
from .deadlines import JOIN, MEMBER_ID, SESSION, Deadlines, InitialDelay
from .effects import NEVER_MS, Effects, Emptied, Limits, Now, Store
from .records import GroupMetadata, MemberMetadata
from .roster import Member, Roster, Ticket
from .states import NEXT, State
from .subscription import CONSUMER, subscribed_topics

SILENT_GROUP_RETRY_MS = 1_000  # the least wait for JoinGroups when only static members are left and none has joined


class Membership:
    """The members, their generation and their state. Callers read the attributes, and change them by the methods alone.

    `state_since_ms` is the time at which the state began, in ms since 1970; None where it isn't known. `topics` are the
    topics to which the members of a `consumer` group subscribe; None where they can't be decoded, and in other groups.
    """

    __slots__ = (
        "_group_id",
        "_initial_delay",
        "_limits",
        "_unsynced",
        "deadlines",
        "generation",
        "protocol",
        "roster",
        "state",
        "state_since_ms",
        "topics",
    )

    def __init__(self, group_id: str, limits: Limits, state_since_ms: int | None) -> None:
        self._group_id = group_id
        self._limits = limits
        self.state = State.EMPTY
        self.state_since_ms = state_since_ms
        self.generation = 0
        self.protocol: str | None = None
        self.topics: frozenset[str] | None = None
        self.roster = Roster()
        self.deadlines = Deadlines(self.roster)
        self._initial_delay: InitialDelay | None = None  # only in the rebalance that an Empty group begins
        self._unsynced: set[str] = set()  # the members of the generation that haven't sent a SyncGroup

    # --- records ---

    def restore(self, value: GroupMetadata) -> None:
        """Takes over the state that a record states; the members' sessions don't begin yet."""
        self.generation = value.generation
        self.protocol = value.protocol
        self.state_since_ms = None if value.state_timestamp_ms < 0 else value.state_timestamp_ms
        roster = self.roster
        roster.protocol_type = value.protocol_type or None
        for member in value.members:
            timeout = member.session_timeout_ms if member.rebalance_timeout_ms < 0 else member.rebalance_timeout_ms
            seat = Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                timeout,
                member.session_timeout_ms,
                ((value.protocol or "", member.subscription),),
                member.assignment,
            )
            roster.add(seat, value.protocol_type)
        if value.members:
            self.state = State.STABLE
            if value.leader is not None and value.leader in roster:
                roster.leader = value.leader
        self._learn_topics()

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadata:
        """The group's metadata for a record, with `assignments` in place of the current ones if given."""
        return GroupMetadata(
            protocol_type=self.roster.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.roster.leader,
            state_timestamp_ms=-1 if self.state_since_ms is None else self.state_since_ms,
            members=tuple(
                MemberMetadata(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.roster
            ),
        )

    # --- members and their parked requests ---

    def hand_out(self, member_id: str, until_ms: int) -> None:
        """Notes that a client was given a member id, with which it has to join before `until_ms`."""
        self.roster.pending[member_id] = self.deadlines.arm(until_ms)

    def add(self, member: Member, protocol_type: str, join_until_ms: int) -> None:
        """Adds a new member, which is dropped at `join_until_ms` if its first JoinGroup is still parked then."""
        if self._initial_delay is not None:
            self._initial_delay.member_came = True
        self.roster.add(member, protocol_type)
        member.session_deadline_ms = self.deadlines.arm(join_until_ms)

    def replace(self, old_id: str, new_id: str, now: Now, effects: Effects) -> Member:
        """Gives a new id to a static member that came back. Parked requests under the old id are answered
        FENCED_INSTANCE_ID."""
        self._answer_parked(self.roster.members[old_id], ErrorCode.fenced_instance_id, old_id, effects)
        member = self.roster.replace(old_id, new_id)
        member.is_new = False
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        self.deadlines.renew_session(member, now)
        return member

    def drop(self, member_id: str, effects: Effects) -> None:
        """Removes a member or a handed-out member id. The member's parked requests are answered UNKNOWN_MEMBER_ID."""
        member = self.roster.members.get(member_id)
        if member is not None:
            self._answer_parked(member, ErrorCode.unknown_member_id, "", effects)
        self.roster.remove(member_id)
        self.synced(member_id)

    def park_join(self, member: Member, ticket: Ticket, effects: Effects) -> None:
        """Parks a member's JoinGroup until the next generation begins."""
        if member.join_ticket is not None:  # the client gave up on its earlier request and sent another
            effects.answer_join(member.join_ticket, ErrorCode.rebalance_in_progress, member.member_id)
        self.roster.park_join(member, ticket)

    def park_sync(self, member: Member, ticket: Ticket, effects: Effects) -> None:
        """Parks a member's SyncGroup until the assignments are committed."""
        if member.sync_ticket is not None:  # the client gave up on its earlier request and sent another
            effects.answer_sync(member.sync_ticket, ErrorCode.rebalance_in_progress)
        member.sync_ticket = ticket
        self.synced(member.member_id)

    def synced(self, member_id: str) -> None:
        """Notes that the generation doesn't wait for a SyncGroup of this member any more."""
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self.deadlines.sync_ms = None

    def fail_syncs(self, error: ErrorCode, now: Now, effects: Effects) -> None:
        """Answers `error` to all parked SyncGroups: the generation gets no assignment."""
        for member in self.roster:
            member.assignment = b""
            if member.sync_ticket is not None:
                effects.answer_sync(member.sync_ticket, error)
                member.sync_ticket = None
                self.deadlines.renew_session(member, now)

    # --- from generation to generation ---

    def rebalance_or_complete(self, why: str, now: Now, effects: Effects) -> None:
        """Begins a rebalance, because the membership has changed. If a rebalance is under way, begins the next
        generation if all members have joined."""
        if State.PREPARING_REBALANCE in NEXT[self.state] and (self.roster.members or self.state is not State.EMPTY):
            self.rebalance(why, now, effects)
        else:
            self.complete_if_all_joined(now, effects)

    def rebalance(self, why: str, now: Now, effects: Effects) -> None:
        """Begins a rebalance: all members have to join again."""
        if self.state is State.COMPLETING_REBALANCE:
            self.fail_syncs(ErrorCode.rebalance_in_progress, now, effects)
        self._unsynced.clear()
        self.deadlines.sync_ms = None
        first = self.state is State.EMPTY
        self._move(State.PREPARING_REBALANCE, why, now, effects)
        if first:
            delay_ms = self._limits.group_initial_rebalance_delay_ms
            self._initial_delay = InitialDelay(delay_ms, max(self.roster.rebalance_timeout_ms - delay_ms, 0))
            self._wait_for_joins(delay_ms, now)
        elif self.roster.all_joined:
            self._begin_generation(why, now, effects)
        else:
            self._wait_for_joins(self.roster.rebalance_timeout_ms, now)

    def complete_if_all_joined(self, now: Now, effects: Effects) -> None:
        """Begins the next generation if the rebalance waits for no further member, and its initial delay is over."""
        if self.state is State.PREPARING_REBALANCE and self._initial_delay is None and self.roster.all_joined:
            self._begin_generation("all members joined", now, effects)

    def assign(self, assignments: Mapping[str, bytes], now: Now, effects: Effects) -> None:
        """Makes the group Stable: each member gets its part of the committed `assignments`, member id → opaque
        bytes."""
        self._move(State.STABLE, "assignment stored", now, effects)
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_ticket is not None:
                effects.answers.append((member.sync_ticket, answers.synced(self.roster, self.protocol, member)))
                member.sync_ticket = None
                self.deadlines.renew_session(member, now)  # the session may have ended while the member waited

    def die(self, error: ErrorCode, effects: Effects) -> None:
        """Ends the group on this broker: `error` is the answer to all parked requests."""
        for member in self.roster:
            self._answer_parked(member, error, member.member_id, effects)
        effects.transitions.append((self.state, State.DEAD, self.generation, error.name))
        self.state = State.DEAD
        self.deadlines.wake_ms = NEVER_MS

    def time_passed(self, now: Now) -> Effects:
        """Handles every deadline that is due, in the order of time, and finds the next one."""
        effects = Effects()
        deadlines = self.deadlines
        for at_ms, kind, member_id in deadlines.due(now):
            if kind == SESSION:
                self._session_due(member_id, at_ms, now, effects)
            elif kind == MEMBER_ID:
                self._member_id_due(member_id, at_ms, now, effects)
            elif kind == JOIN:
                if deadlines.join_ms == at_ms:
                    self._join_due(now, effects)
            elif deadlines.sync_ms == at_ms:
                self._sync_due(now, effects)
        deadlines.settle()
        return effects

    # --- steps ---

    def _begin_generation(self, why: str, now: Now, effects: Effects) -> None:
        """Begins the next generation. Its members are those that have joined, and all static members. If none has
        joined, waits for the static members' JoinGroups once more."""
        roster = self.roster
        self.deadlines.join_ms = None
        for member in [member for member in roster if member.join_ticket is None and member.instance_id is None]:
            roster.remove(member.member_id)
        # The sessions of the members that haven't joined end soon.
        if roster.members and not roster.elect_joined_leader():
            self._wait_for_joins(max(roster.rebalance_timeout_ms, SILENT_GROUP_RETRY_MS), now)
            return
        self._initial_delay = None
        self.generation += 1
        self._unsynced.clear()
        if not roster.members:
            self.protocol = None
            self._learn_topics()
            self._move(State.EMPTY, why, now, effects)
            effects.stores.append(Store(self.snapshot(), Emptied()))
            return
        self.protocol = roster.select_protocol()
        self._learn_topics()
        self._move(State.COMPLETING_REBALANCE, why, now, effects)
        for member in roster:
            if member.join_ticket is not None:
                leads = member.member_id == roster.leader
                answer = answers.joined(roster, self.generation, self.protocol, member, with_members=leads)
                effects.answers.append((member.join_ticket, answer))
                roster.unpark_join(member)
            member.is_new = False
            self.deadlines.renew_session(member, now)
            self._unsynced.add(member.member_id)
        self.deadlines.sync_ms = self.deadlines.arm(now.steady_ms + roster.rebalance_timeout_ms)

    def _session_due(self, member_id: str, at_ms: int, now: Now, effects: Effects) -> None:
        member = self.roster.members.get(member_id)
        if member is None or member.session_deadline_ms != at_ms:
            return
        if member.satisfied:
            member.session_deadline_ms = None  # set again when the member's request is answered
            return
        self.drop(member_id, effects)
        why = f"member {member_id} sent no request in time"
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.rebalance(why, now, effects)
        elif self.state is State.PREPARING_REBALANCE and self.roster.all_joined:
            self._begin_generation(why, now, effects)

    def _member_id_due(self, member_id: str, at_ms: int, now: Now, effects: Effects) -> None:
        if self.roster.pending.get(member_id) != at_ms:
            return
        self.roster.remove(member_id)
        if self.state is State.PREPARING_REBALANCE and self.roster.all_joined:
            self._begin_generation("a handed-out member id was not used", now, effects)

    def _join_due(self, now: Now, effects: Effects) -> None:
        delay = self._initial_delay
        next_ms = None if delay is None else delay.next_ms(self._limits.group_initial_rebalance_delay_ms)
        if next_ms is not None:
            self._wait_for_joins(next_ms, now)
        else:
            self._begin_generation("the time to join is over", now, effects)

    def _sync_due(self, now: Now, effects: Effects) -> None:
        silent = sorted(self._unsynced)
        for member_id in silent:
            self.drop(member_id, effects)
        self.rebalance(f"no SyncGroup from {', '.join(silent)}", now, effects)

    def _wait_for_joins(self, timeout_ms: int, now: Now) -> None:
        self.deadlines.join_ms = self.deadlines.arm(now.steady_ms + timeout_ms)

    def _answer_parked(self, member: Member, error: ErrorCode, member_id: str, effects: Effects) -> None:
        if member.join_ticket is not None:
            effects.answer_join(member.join_ticket, error, member_id)
        if member.sync_ticket is not None:
            effects.answer_sync(member.sync_ticket, error)
        self.roster.unpark_join(member)
        member.sync_ticket = None

    def _move(self, state: State, why: str, now: Now, effects: Effects) -> None:
        assert state in NEXT[self.state], f"group {self._group_id} can't go from {self.state} to {state}"
        effects.transitions.append((self.state, state, self.generation, why))
        self.state = state
        self.state_since_ms = now.wall_ms

    def _learn_topics(self) -> None:
        if self.roster.protocol_type != CONSUMER:
            self.topics = None
        else:
            self.topics = subscribed_topics(member.metadata(self.protocol) for member in self.roster)
