"""Moves a classic group through its ring of states: rebalances, generations and time-outs. Pure.

`classic` has the requests' effects on the group, `states` the tables and the picture of the ring, `roster` the members.
Rules that it protects:

1. A generation only grows, and has one leader, one protocol and one set of members, fixed when it begins.
2. No request waits forever: whenever a request is parked, a deadline for it is set.

`wake_ms` is a lower bound of the next deadline, at which the shell calls `time_passed`. Heartbeats only postpone
deadlines, so they never change a timer; a wake-up that finds no deadline due only computes the next one.

Source: Kafka's GroupMetadataManager and ClassicGroup; KIP-62, 134 (the initial delay), 345.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.errors import ErrorCode

from .effects import NEVER_MS, Answer, Effects, Emptied, Limits, Now, Store
from .records import GroupMetadata, MemberMetadata
from .roster import Member, Roster
from .states import NEXT, State
from .subscription import CONSUMER, subscribed_topics

SILENT_GROUP_RETRY_MS = 1_000  # the least rebalance time-out when only silent static members are left


class Ring:
    """The states of a group, and their changes. The private methods are steps of the commands of
    `classic.ClassicGroup`."""

    def __init__(self, group_id: str, limits: Limits) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = State.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.roster = Roster()
        self.state_since_ms: int | None = None
        self.topics: frozenset[str] | None = None  # the subscribed topics of a `consumer` group; None where not known
        self.wake_ms = NEVER_MS
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._initial_wait: tuple[int, int] | None = None  # in ms: (this delay, the time that may remain after it)
        self._someone_new = False
        self._unsynced: set[str] = set()
        self._storing = -1  # the generation whose assignment is being written

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupMetadata:
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

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to `topic`; True for a consumer group whose subscriptions can't be decoded."""
        return self.roster.protocol_type == CONSUMER if self.topics is None else topic in self.topics

    def time_passed(self, now: Now) -> Effects:
        """Handles every deadline that is due, in order of time, and sets `wake_ms` to the next."""
        effects = Effects()
        for at_ms, kind, member_id in sorted(self._deadlines()):
            if at_ms > now.steady_ms:
                break
            if kind == "session":
                self._session_due(member_id, at_ms, now, effects)
            elif kind == "pending" and self.roster.pending.get(member_id) == at_ms:
                self.roster.remove(member_id)
                if self.state is State.PREPARING_REBALANCE and self.roster.all_joined:
                    self._complete_join("a handed-out member id was not used", now, effects)
            elif kind == "join" and self._join_deadline_ms == at_ms:
                self._join_due(now, effects)
            elif kind == "sync" and self._sync_deadline_ms == at_ms:
                self._sync_due(now, effects)
        self.wake_ms = min((at_ms for at_ms, _, _ in self._deadlines()), default=NEVER_MS)
        return effects

    # --- rebalances ---

    def _rebalance_or_complete(self, why: str, now: Now, effects: Effects) -> None:
        if State.PREPARING_REBALANCE in NEXT[self.state] and (self.roster.members or self.state is not State.EMPTY):
            self._prepare_rebalance(why, now, effects)
        else:
            self._complete_join_if_all_came(now, effects)

    def _prepare_rebalance(self, why: str, now: Now, effects: Effects) -> None:
        if self.state is State.COMPLETING_REBALANCE:
            self._fail_syncs(ErrorCode.rebalance_in_progress, effects, now)
        self._unsynced.clear()
        self._sync_deadline_ms = None
        first = self.state is State.EMPTY
        self._move(State.PREPARING_REBALANCE, why, now, effects)
        if first:  # give the other members of a starting application time to come
            delay_ms = self.limits.group_initial_rebalance_delay_ms
            self._initial_wait = (delay_ms, max(self.roster.rebalance_timeout_ms - delay_ms, 0))
            self._someone_new = False
            self._join_deadline_ms = self._arm(now.steady_ms + delay_ms)
        elif self.roster.all_joined:
            self._complete_join(why, now, effects)
        else:
            self._join_deadline_ms = self._arm(now.steady_ms + self.roster.rebalance_timeout_ms)

    def _complete_join_if_all_came(self, now: Now, effects: Effects) -> None:
        if self.state is State.PREPARING_REBALANCE and self._initial_wait is None and self.roster.all_joined:
            self._complete_join("all members joined", now, effects)

    def _complete_join(self, why: str, now: Now, effects: Effects) -> None:
        """Begins the next generation, of all members that joined and of all static members, whether they joined or
        not."""
        self._join_deadline_ms = None
        for member in [member for member in self.roster if member.join_ticket is None and member.instance_id is None]:
            self.roster.remove(member.member_id)
        if self.roster.members and not self.roster.elect_joined_leader():
            wait_ms = max(self.roster.rebalance_timeout_ms, SILENT_GROUP_RETRY_MS)
            self._join_deadline_ms = self._arm(now.steady_ms + wait_ms)  # the silent members' sessions end soon
            return
        self._initial_wait = None
        self.generation += 1
        self._unsynced.clear()
        if not self.roster.members:
            self.protocol = None
            self._learn_topics()
            self._move(State.EMPTY, why, now, effects)
            effects.stores.append(Store(self.snapshot(), Emptied()))
            return
        self.protocol = self.roster.select_protocol()
        self._learn_topics()
        self._move(State.COMPLETING_REBALANCE, why, now, effects)
        for member in self.roster:
            if member.join_ticket is not None:
                leads = member.member_id == self.roster.leader
                effects.answers.append((member.join_ticket, self._generation_answer(member, with_members=leads)))
                self.roster.unpark_join(member)
            member.is_new = False
            self._renew_session(member, now)
            self._unsynced.add(member.member_id)
        self._sync_deadline_ms = self._arm(now.steady_ms + self.roster.rebalance_timeout_ms)

    # --- deadlines ---

    def _deadlines(self) -> list[tuple[int, str, str]]:
        """Every deadline: (time in ms, kind, member id)."""
        found = [
            (member.session_deadline_ms, "session", member.member_id)
            for member in self.roster
            if member.session_deadline_ms is not None
        ]
        found += [(at_ms, "pending", member_id) for member_id, at_ms in self.roster.pending.items()]
        if self._join_deadline_ms is not None:
            found.append((self._join_deadline_ms, "join", ""))
        if self._sync_deadline_ms is not None:
            found.append((self._sync_deadline_ms, "sync", ""))
        return found

    def _session_due(self, member_id: str, at_ms: int, now: Now, effects: Effects) -> None:
        member = self.roster.members.get(member_id)
        if member is None or member.session_deadline_ms != at_ms:
            return
        if member.satisfied:
            member.session_deadline_ms = None  # armed again when it is answered
            return
        self._drop(member_id, effects)
        why = f"member {member_id} was not heard of in time"
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._prepare_rebalance(why, now, effects)
        elif self.state is State.PREPARING_REBALANCE and self.roster.all_joined:
            self._complete_join(why, now, effects)

    def _join_due(self, now: Now, effects: Effects) -> None:
        if self._initial_wait is not None and self._someone_new:
            delay_ms, remaining_ms = self._initial_wait
            if remaining_ms > 0:  # a member joined during the wait: others may follow
                self._someone_new = False
                next_ms = min(self.limits.group_initial_rebalance_delay_ms, remaining_ms)
                self._initial_wait = (next_ms, max(remaining_ms - delay_ms, 0))
                self._join_deadline_ms = self._arm(now.steady_ms + next_ms)
                return
        self._complete_join("the time to join is over", now, effects)

    def _sync_due(self, now: Now, effects: Effects) -> None:
        silent = sorted(self._unsynced)
        for member_id in silent:
            self._drop(member_id, effects)
        self._prepare_rebalance(f"no SyncGroup from {', '.join(silent)}", now, effects)

    def _arm(self, at_ms: int) -> int:
        self.wake_ms = min(self.wake_ms, at_ms)
        return at_ms

    def _renew_session(self, member: Member, now: Now) -> None:
        member.session_deadline_ms = self._arm(now.steady_ms + member.session_timeout_ms)

    # --- members and their requests ---

    def _drop(self, member_id: str, effects: Effects) -> None:
        member = self.roster.members.get(member_id)
        if member is not None:
            self._answer_parked(member, ErrorCode.unknown_member_id, "", effects)
        self.roster.remove(member_id)
        self._synced(member_id)

    def _answer_parked(self, member: Member, error: ErrorCode, member_id: str, effects: Effects) -> None:
        if member.join_ticket is not None:
            effects.answer_join(member.join_ticket, error, member_id)
        if member.sync_ticket is not None:
            effects.answer_sync(member.sync_ticket, error)
        self.roster.unpark_join(member)
        member.sync_ticket = None

    def _synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_deadline_ms = None

    def _fail_syncs(self, error: ErrorCode, effects: Effects, now: Now) -> None:
        for member in self.roster:
            member.assignment = b""
            if member.sync_ticket is not None:
                effects.answer_sync(member.sync_ticket, error)
                member.sync_ticket = None
                self._renew_session(member, now)

    def _generation_answer(self, member: Member, *, with_members: bool) -> dict[str, Any]:
        members = self.roster if with_members else ()
        return {
            "error_code": ErrorCode.none,
            "generation_id": self.generation,
            "protocol_type": self.roster.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.roster.leader,
            "skip_assignment": False,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": other.member_id,
                    "group_instance_id": other.instance_id,
                    "metadata": other.metadata(self.protocol),
                }
                for other in members
            ],
        }

    def _assignment_answer(self, member: Member) -> Answer:
        return {
            "error_code": ErrorCode.none,
            "protocol_type": self.roster.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    # --- states ---

    def _move(self, state: State, why: str, now: Now, effects: Effects) -> None:
        assert state in NEXT[self.state], f"group {self.group_id} can't go from {self.state} to {state}"
        effects.transitions.append((self.state, state, self.generation, why))
        self.state = state
        self.state_since_ms = now.wall_ms

    def _die(self, error: ErrorCode, effects: Effects) -> None:
        for member in self.roster:
            self._answer_parked(member, error, member.member_id, effects)
        effects.transitions.append((self.state, State.DEAD, self.generation, error.name))
        self.state = State.DEAD
        self.wake_ms = NEVER_MS

    def _learn_topics(self) -> None:
        if self.roster.protocol_type != CONSUMER:
            self.topics = None
        else:
            self.topics = subscribed_topics(member.metadata(self.protocol) for member in self.roster)
