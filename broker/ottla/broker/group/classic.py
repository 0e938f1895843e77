"""One classic consumer group: turns joins, syncs, heartbeats, commits and leaves into effects. Pure.

`membership` has the members and the steps from one generation to the next, `states` the tables of answers by state. The
rule that this module protects: a member gets an assignment only from the leader of its own generation, and only after
the assignment is committed.

Member metadata and assignments are opaque: the protocol type may be `consumer`, `connect`, `sr` or any other text.

Source: Kafka's GroupMetadataManager; KIP-345, 389 (group.max.size), 394, 800 (reasons), 814.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ottla.protocol.errors import ErrorCode

from . import answers
from .effects import Answer, Assigned, Created, Effects, Join, Leaver, Limits, Now, Replaced, Store, Sync
from .group import FROM_COMMIT, GroupType
from .membership import Membership
from .records import GroupKey, GroupMetadata
from .roster import Member
from .states import APPEND_ERROR, COMMIT, COMMIT_RENEWS_SESSION, DELETE, HEARTBEAT, REJOIN, Rejoin, State
from .subscription import CONSUMER

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # a client that is gone must not stay a member for longer
NOT_STORING = -1


class ClassicGroup:
    """A group with members, or a group that only keeps offsets (Empty and without a protocol type).

    `empty_since_ms` is the time at which a new group is made, in ms since 1970; None for a group that only keeps
    offsets.
    """

    __slots__ = ("_limits", "_storing", "group_id", "membership")

    type = GroupType.CLASSIC

    def __init__(self, group_id: str, limits: Limits, empty_since_ms: int | None = None) -> None:
        self.group_id = group_id
        self.membership = Membership(group_id, limits, empty_since_ms)
        self._limits = limits
        self._storing = NOT_STORING  # the generation whose assignment is being written

    @classmethod
    def restored(cls, group_id: str, limits: Limits, value: GroupMetadata) -> ClassicGroup:
        """The group that `value` describes; `loaded` begins its members' sessions."""
        group = cls(group_id, limits)
        group.membership.restore(value)
        return group

    # --- requests ---

    def join(self, join: Join, now: Now) -> Effects:
        """Handles a JoinGroup request, of a new member or of a member that joins the next generation."""
        effects = Effects()
        membership = self.membership
        if not self._accepts(join.member_id):
            membership.drop(join.member_id, effects)
            effects.answer_join(join.ticket, ErrorCode.group_max_size_reached, "")
            membership.complete_if_all_joined(now, effects)
        elif membership.state is State.DEAD:
            effects.answer_join(join.ticket, ErrorCode.coordinator_not_available, join.member_id)
        elif not membership.roster.supports(join.protocol_type, join.protocols):
            effects.answer_join(join.ticket, ErrorCode.inconsistent_group_protocol, join.member_id)
        elif not join.member_id:
            self._join_unknown(join, now, effects)
        else:
            self._join_known(join, now, effects)
        return effects

    def sync(self, sync: Sync, now: Now) -> Effects:
        """Handles a SyncGroup request, by which a member of the generation asks for its assignment. The leader's
        request also has the assignments of all members."""
        effects = Effects()
        membership = self.membership
        error = self._sync_error(sync)
        if error is not ErrorCode.none:
            effects.answer_sync(sync.ticket, error)
        elif membership.state is State.PREPARING_REBALANCE:
            effects.answer_sync(sync.ticket, ErrorCode.rebalance_in_progress)
        elif membership.state is State.STABLE:
            membership.synced(sync.member_id)
            member = membership.roster.members[sync.member_id]
            effects.answers.append((sync.ticket, answers.synced(membership.roster, membership.protocol, member)))
        else:
            membership.park_sync(membership.roster.members[sync.member_id], sync.ticket, effects)
            if membership.roster.leader == sync.member_id:
                self._store_assignments(sync.assignments, effects)
        return effects

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        """Handles a Heartbeat request, which renews the member's session. Returns the error code of the answer:
        REBALANCE_IN_PROGRESS tells the member to join again."""
        membership = self.membership
        state, roster = membership.state, membership.roster
        if state is State.DEAD:
            return HEARTBEAT[state]
        error = roster.validate(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != membership.generation:
            return ErrorCode.illegal_generation
        membership.deadlines.renew_session(roster.members[member_id], now)
        return HEARTBEAT[state]

    def commit(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        """Returns NONE if the client may commit offsets: a member of this generation may, and any client (generation
        −1) while the group is empty. A member's commit renews its session, too."""
        membership = self.membership
        state, roster = membership.state, membership.roster
        if state is State.DEAD:
            return COMMIT[state]
        if generation < 0 and state is State.EMPTY:
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = roster.validate(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != membership.generation:
            return ErrorCode.illegal_generation
        if state in COMMIT_RENEWS_SESSION:
            membership.deadlines.renew_session(roster.members[member_id], now)
        return COMMIT[state]

    def commit_in_transaction(self, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Returns NONE if the client may commit offsets in a transaction: a member of this generation may, whatever the
        group's state is. A client that states no member id, instance id and generation may, too, because requests had
        none of these before KIP-447. No session is renewed."""
        membership = self.membership
        if membership.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and (membership.state is State.EMPTY or (not member_id and instance_id is None)):
            return ErrorCode.none
        error = membership.roster.validate(member_id, instance_id)
        if error is ErrorCode.none and generation != membership.generation:
            return ErrorCode.illegal_generation
        return error

    def leave(self, leavers: Sequence[Leaver], now: Now) -> tuple[list[Answer], Effects]:
        """Handles a LeaveGroup request: members leave, or an administrator removes members. Returns one answer for each
        of them."""
        effects = Effects()
        results: list[Answer] = []
        gone: list[str] = []
        for leaver in leavers:
            error = self._leave_one(leaver, effects)
            if error is ErrorCode.none:
                gone.append(f"{leaver.member_id or leaver.instance_id} ({leaver.reason or 'not provided'})")
            results.append(
                {"member_id": leaver.member_id, "group_instance_id": leaver.instance_id, "error_code": error}
            )
        if gone:
            self.membership.rebalance_or_complete(f"left: {', '.join(gone)}", now, effects)
        return results, effects

    # --- the interface of groups of all types (`group.Group`) ---

    @property
    def protocol_type(self) -> str:
        """The members' protocol type; empty for a group that only keeps offsets."""
        return self.membership.roster.protocol_type or ""

    @property
    def state_name(self) -> str:
        """The state, as DescribeGroups and ListGroups show it."""
        return self.membership.state.value

    @property
    def is_dead(self) -> bool:
        """Whether the group was deleted, or this broker no longer coordinates it."""
        return self.membership.state is State.DEAD

    @property
    def wake_ms(self) -> int:
        """The time at which `time_passed` is to be called, in ms of the steady clock. It isn't later than the next
        deadline."""
        return self.membership.deadlines.wake_ms

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to `topic`; True for a consumer group whose subscriptions can't be decoded."""
        membership = self.membership
        if membership.topics is None:
            return membership.roster.protocol_type == CONSUMER
        return topic in membership.topics

    @property
    def offset_deletion_error(self) -> ErrorCode:
        """NON_EMPTY_GROUP if the group has members that aren't consumers, so that their topics aren't known; else
        NONE."""
        membership = self.membership
        if membership.state is State.EMPTY or membership.roster.protocol_type == CONSUMER:
            return ErrorCode.none
        return ErrorCode.non_empty_group

    @property
    def retention_begins_ms(self) -> int | None:
        """When the retention time of offsets begins, in ms since 1970; FROM_COMMIT for "with the commit", None for
        "never".

        | group | begins |
        |---|---|
        | simple (no protocol type) | with the commit |
        | Empty | when the group became empty; if that time isn't known, with the commit |
        | Stable consumer group, topics known | with the commit, for topics to which no member subscribes |
        | any other | never |
        """
        membership = self.membership
        state, protocol_type = membership.state, membership.roster.protocol_type
        if state is State.EMPTY and protocol_type is not None and membership.state_since_ms is not None:
            return membership.state_since_ms
        reading = state is State.STABLE and protocol_type == CONSUMER and membership.topics is not None
        return FROM_COMMIT if reading or state is State.EMPTY or protocol_type is None else None

    @property
    def deletion_error(self) -> ErrorCode:
        """NONE for an empty group, else NON_EMPTY_GROUP, or GROUP_ID_NOT_FOUND after the group's end."""
        return DELETE[self.membership.state]

    def record_keys(self) -> tuple[GroupKey]:
        """The key of the group's metadata, its only record."""
        return (GroupKey(self.group_id),)

    def loaded(self, now: Now) -> Effects:
        """Begins all sessions anew, because this broker is the group's new coordinator. A group above group.max.size
        rebalances."""
        effects = Effects()
        membership = self.membership
        for member in membership.roster:
            membership.deadlines.renew_session(member, now)
        if len(membership.roster) > self._limits.group_max_size:
            membership.rebalance("the loaded group is above group.max.size", now, effects)
        return effects

    def time_passed(self, now: Now) -> Effects:
        """Handles every deadline that is due, in the order of time, and sets `wake_ms` to the next one."""
        return self.membership.time_passed(now)

    def stored(self, store: Store, error: ErrorCode, now: Now) -> Effects:
        """Called when the metadata in `store` was committed or, with an `error`, wasn't."""
        effects = Effects()
        code = APPEND_ERROR.get(error, error)
        match store.meaning:
            case Created() if code is not ErrorCode.none:
                self.membership.die(code, effects)
            case Assigned(assignments):
                self._assignments_stored(store.value.generation, assignments, code, now, effects)
            case Replaced() as replaced:
                self._replacement_stored(replaced, code, now, effects)
            case _:
                pass
        return effects

    def unload(self, error: ErrorCode) -> Effects:
        """Answers `error` to all waiting requests: this broker is no longer the coordinator, or the group was
        deleted."""
        effects = Effects()
        self.membership.die(error, effects)
        return effects

    # --- join ---

    def _accepts(self, member_id: str) -> bool:
        """Whether group.max.size admits this JoinGroup. In a rebalance, the first clients to join are accepted, whether
        they are members or not. Otherwise every member is accepted, and a new client only if there is room."""
        size = self._limits.group_max_size
        state, roster = self.membership.state, self.membership.roster
        if state in (State.EMPTY, State.DEAD):
            return True
        member = roster.members.get(member_id)
        if state is State.PREPARING_REBALANCE:
            return (member is not None and member.join_ticket is not None) or roster.joined_count < size
        return member is not None or len(roster) < size

    def _join_unknown(self, join: Join, now: Now, effects: Effects) -> None:
        old_id = self.membership.roster.member_of(join.instance_id)
        if old_id is not None:
            self._replace_static(join, old_id, now, effects)
        elif join.instance_id is None and join.requires_known_id:
            self.membership.hand_out(join.new_member_id, now.steady_ms + join.session_timeout_ms)
            effects.answer_join(join.ticket, ErrorCode.member_id_required, join.new_member_id)
        else:
            self._add(join, join.new_member_id, now, effects)

    def _join_known(self, join: Join, now: Now, effects: Effects) -> None:
        membership, roster = self.membership, self.membership.roster
        if join.member_id in roster.pending:
            if join.instance_id is not None:  # only a dynamic member has a handed-out id that waits for its JoinGroup
                effects.answer_join(join.ticket, ErrorCode.unknown_server_error, join.member_id)
            else:
                self._add(join, join.member_id, now, effects)
            return
        error = roster.validate(join.member_id, join.instance_id)
        if error is not ErrorCode.none:
            effects.answer_join(join.ticket, error, join.member_id)
            return
        member = roster.members[join.member_id]
        leads = roster.leader == join.member_id
        match REJOIN[membership.state][leads, member.protocols == join.protocols]:
            case Rejoin.UNKNOWN:
                effects.answer_join(join.ticket, ErrorCode.unknown_member_id, join.member_id)
            case Rejoin.CURRENT:
                # Only a leader that hasn't sent the assignment yet needs the other members.
                effects.answers.append((join.ticket, self._joined(member, with_members=leads)))
            case Rejoin.REBALANCE:
                roster.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
                membership.park_join(member, join.ticket, effects)
                who = "leader" if leads else "member"
                membership.rebalance_or_complete(join.why(f"{who} {join.member_id} joins again"), now, effects)

    def _add(self, join: Join, member_id: str, now: Now, effects: Effects) -> None:
        member = Member(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.rebalance_timeout_ms,
            join.session_timeout_ms,
            join.protocols,
            is_new=True,
        )
        # The client doesn't know its member id yet, so it can't send heartbeats, and its death would go unnoticed
        # without this deadline.
        self.membership.add(member, join.protocol_type, now.steady_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.membership.park_join(member, join.ticket, effects)
        self.membership.rebalance_or_complete(join.why(f"new member {member_id}"), now, effects)

    def _replace_static(self, join: Join, old_id: str, now: Now, effects: Effects) -> None:
        """Gives a new member id to a static member that came back without its member id (KIP-345). A client with the
        old member id is fenced."""
        membership, roster = self.membership, self.membership.roster
        old_leader = roster.leader
        member = membership.replace(old_id, join.new_member_id, now, effects)
        undo = Replaced(
            join, old_id, old_leader, member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
        )
        roster.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        membership.park_join(member, join.ticket, effects)
        if membership.state is State.STABLE and roster.select_protocol() == membership.protocol:
            effects.stores.append(Store(membership.snapshot(), undo))
        elif membership.state in (State.STABLE, State.COMPLETING_REBALANCE):
            # In CompletingRebalance the leader may be computing an assignment for the old id.
            why = join.why(f"static member {join.instance_id} came back as {join.new_member_id}")
            membership.rebalance(why, now, effects)
        else:
            membership.complete_if_all_joined(now, effects)

    def _replacement_stored(self, replaced: Replaced, error: ErrorCode, now: Now, effects: Effects) -> None:
        join = replaced.join
        membership, roster = self.membership, self.membership.roster
        member = roster.members.get(join.new_member_id)
        if member is None or member.join_ticket is not join.ticket or membership.state is not State.STABLE:
            return  # the state has changed: the member has its answer, or gets it when the rebalance completes
        roster.unpark_join(member)
        if error is not ErrorCode.none:
            roster.update(
                member, replaced.old_protocols, replaced.old_rebalance_timeout_ms, replaced.old_session_timeout_ms
            )
            membership.deadlines.renew_session(roster.replace(join.new_member_id, replaced.old_id), now)
            effects.answer_join(join.ticket, error, "")
        else:
            leads = roster.leader == member.member_id
            answer = self._joined(member, with_members=leads and join.skips_assignment)
            answer["skip_assignment"] = leads and join.skips_assignment
            if not join.skips_assignment:
                # A member that is named as leader would compute a needless assignment.
                answer["leader"] = replaced.old_leader
            effects.answers.append((join.ticket, answer))

    # --- sync, leave ---

    def _sync_error(self, sync: Sync) -> ErrorCode:
        membership = self.membership
        if membership.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        error = membership.roster.validate(sync.member_id, sync.instance_id)
        if error is not ErrorCode.none:
            return error
        if sync.generation != membership.generation:
            return ErrorCode.illegal_generation
        ours = (membership.roster.protocol_type, membership.protocol)
        if any(
            theirs is not None and mine is not None and theirs != mine
            for theirs, mine in zip((sync.protocol_type, sync.protocol), ours, strict=True)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _store_assignments(self, brought: Mapping[str, bytes], effects: Effects) -> None:
        membership = self.membership
        if self._storing != membership.generation:
            self._storing = membership.generation  # a repeated SyncGroup can't replace these assignments
            plan = {member.member_id: brought.get(member.member_id, b"") for member in membership.roster}
            effects.stores.append(Store(membership.snapshot(plan), Assigned(plan)))

    def _assignments_stored(
        self, generation: int, assignments: Mapping[str, bytes], error: ErrorCode, now: Now, effects: Effects
    ) -> None:
        membership = self.membership
        if membership.state is not State.COMPLETING_REBALANCE or membership.generation != generation:
            return  # the state has changed, and the members have their answers
        self._storing = NOT_STORING
        if error is not ErrorCode.none:
            membership.fail_syncs(error, now, effects)
            membership.rebalance(f"the assignment could not be stored: {error.name}", now, effects)
        else:
            membership.assign(assignments, now, effects)

    def _leave_one(self, leaver: Leaver, effects: Effects) -> ErrorCode:
        roster = self.membership.roster
        if self.membership.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        member_id = leaver.member_id
        if not member_id:
            found = roster.member_of(leaver.instance_id)
            if found is None:
                return ErrorCode.unknown_member_id
            member_id = found
        elif member_id not in roster.pending:
            error = roster.validate(member_id, leaver.instance_id)
            if error is not ErrorCode.none:
                return error
        self.membership.drop(member_id, effects)
        return ErrorCode.none

    def _joined(self, member: Member, *, with_members: bool) -> dict[str, Any]:
        membership = self.membership
        return answers.joined(
            membership.roster, membership.generation, membership.protocol, member, with_members=with_members
        )
