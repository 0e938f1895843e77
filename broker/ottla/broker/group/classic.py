"""One classic consumer group: turns joins, syncs, heartbeats, commits and leaves into effects. Pure.

`states` has the tables of answers by state, `ring` the rebalances, generations and time-outs, and `roster` the members.
The rule that it protects: a member gets an assignment only from the leader of its own generation, and only after the
assignment is committed.

Member metadata and assignments are opaque: the protocol type may be `consumer`, `connect`, `sr` or any other text.

Source: Kafka's GroupMetadataManager; KIP-345, 389 (group.max.size), 394, 800 (reasons), 814.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode

from .effects import Answer, Assigned, Created, Effects, Join, Leaver, Limits, Now, Replaced, Store, Sync
from .records import GroupMetadata
from .ring import Ring
from .roster import Member
from .states import APPEND_ERROR, COMMIT, COMMIT_RENEWS_SESSION, HEARTBEAT, REJOIN, Rejoin, State

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # a client that is gone must not stay a member for longer


class ClassicGroup(Ring):
    """A group with members, or a group that only keeps offsets (Empty and without protocol type)."""

    @classmethod
    def restored(cls, group_id: str, limits: Limits, value: GroupMetadata) -> ClassicGroup:
        """The group that `value` describes; `loaded` begins its members' sessions."""
        group = cls(group_id, limits)
        group.generation = value.generation
        group.protocol = value.protocol
        group.state_since_ms = None if value.state_timestamp_ms < 0 else value.state_timestamp_ms
        group.roster.protocol_type = value.protocol_type or None
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
            group.roster.add(seat, value.protocol_type)
        if value.members:
            group.state = State.STABLE
            if value.leader is not None and value.leader in group.roster:
                group.roster.leader = value.leader
        group._learn_topics()
        return group

    def loaded(self, now: Now) -> Effects:
        """Begins all sessions anew, because this broker is the group's new coordinator. A group above group.max.size
        rebalances."""
        effects = Effects()
        for member in self.roster:
            self._renew_session(member, now)
        if len(self.roster) > self.limits.group_max_size:
            self._prepare_rebalance("the loaded group is above group.max.size", now, effects)
        return effects

    def join(self, join: Join, now: Now) -> Effects:
        """A JoinGroup of a new member, or of a member for the next generation."""
        effects = Effects()
        if not self._accepts(join.member_id):
            self._drop(join.member_id, effects)
            effects.answer_join(join.ticket, ErrorCode.group_max_size_reached, "")
            self._complete_join_if_all_came(now, effects)
        elif self.state is State.DEAD:
            effects.answer_join(join.ticket, ErrorCode.coordinator_not_available, join.member_id)
        elif not self.roster.supports(join.protocol_type, join.protocols):
            effects.answer_join(join.ticket, ErrorCode.inconsistent_group_protocol, join.member_id)
        elif not join.member_id:
            self._join_unknown(join, now, effects)
        else:
            self._join_known(join, now, effects)
        return effects

    def sync(self, sync: Sync, now: Now) -> Effects:
        """A SyncGroup: a member of the generation asks for its assignment; the leader's request brings all members'
        assignments."""
        effects = Effects()
        error = self._sync_error(sync)
        if error is not ErrorCode.none:
            effects.answer_sync(sync.ticket, error)
        elif self.state is State.PREPARING_REBALANCE:
            effects.answer_sync(sync.ticket, ErrorCode.rebalance_in_progress)
        elif self.state is State.STABLE:
            self._synced(sync.member_id)
            effects.answers.append((sync.ticket, self._assignment_answer(self.roster.members[sync.member_id])))
        else:
            self._park_sync(sync, effects)
        return effects

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        """A Heartbeat, which renews the member's session. REBALANCE_IN_PROGRESS tells the member to join again."""
        if self.state is State.DEAD:
            return HEARTBEAT[self.state]
        error = self.roster.validate(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != self.generation:
            return ErrorCode.illegal_generation
        self._renew_session(self.roster.members[member_id], now)
        return HEARTBEAT[self.state]

    def commit(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        """NONE where offsets may be committed: by a member of this generation, or by any client (generation −1) while
        the group is empty. A member's commit renews its session, too."""
        if self.state is State.DEAD:
            return COMMIT[self.state]
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = self.roster.validate(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != self.generation:
            return ErrorCode.illegal_generation
        if self.state in COMMIT_RENEWS_SESSION:
            self._renew_session(self.roster.members[member_id], now)
        return COMMIT[self.state]

    def leave(self, leavers: Sequence[Leaver], now: Now) -> tuple[list[Answer], Effects]:
        """A LeaveGroup: members leave, or an administrator removes them. Returns one answer for each."""
        effects = Effects()
        answers: list[Answer] = []
        gone: list[str] = []
        for leaver in leavers:
            error = self._leave_one(leaver, effects)
            if error is ErrorCode.none:
                gone.append(f"{leaver.member_id or leaver.instance_id} ({leaver.reason or 'not provided'})")
            answers.append(
                {"member_id": leaver.member_id, "group_instance_id": leaver.instance_id, "error_code": error}
            )
        if gone:
            self._rebalance_or_complete(f"left: {', '.join(gone)}", now, effects)
        return answers, effects

    def stored(self, store: Store, error: ErrorCode, now: Now) -> Effects:
        """Goes on after a `store` was committed or, with an `error`, wasn't."""
        effects = Effects()
        code = APPEND_ERROR.get(error, error)
        match store.meaning:
            case Created() if code is not ErrorCode.none:
                self._die(code, effects)
            case Assigned(assignments):
                self._assignment_stored(store, dict(assignments), code, now, effects)
            case Replaced() as replaced:
                self._replacement_stored(replaced, code, now, effects)
            case _:
                pass
        return effects

    def unload(self, error: ErrorCode) -> Effects:
        """Answers `error` to all waiting requests: this broker is no longer the coordinator, or the group was
        deleted."""
        effects = Effects()
        self._die(error, effects)
        return effects

    # --- join ---

    def _accepts(self, member_id: str) -> bool:
        """Whether a JoinGroup fits within group.max.size: in a rebalance the first members to join are accepted;
        otherwise members have precedence over new clients."""
        size = self.limits.group_max_size
        if self.state in (State.EMPTY, State.DEAD):
            return True
        member = self.roster.members.get(member_id)
        if self.state is State.PREPARING_REBALANCE:
            return (member is not None and member.join_ticket is not None) or self.roster.joined_count < size
        return member is not None or len(self.roster) < size

    def _join_unknown(self, join: Join, now: Now, effects: Effects) -> None:
        old_id = self.roster.member_of(join.instance_id)
        if old_id is not None:
            self._replace_static(join, old_id, now, effects)
        elif join.instance_id is None and join.requires_known_id:
            self.roster.pending[join.new_member_id] = self._arm(now.steady_ms + join.session_timeout_ms)
            effects.answer_join(join.ticket, ErrorCode.member_id_required, join.new_member_id)
        else:
            self._add(join, join.new_member_id, now, effects)

    def _join_known(self, join: Join, now: Now, effects: Effects) -> None:
        if join.member_id in self.roster.pending:
            if join.instance_id is not None:  # pending ids belong to dynamic members only
                effects.answer_join(join.ticket, ErrorCode.unknown_server_error, join.member_id)
            else:
                self._add(join, join.member_id, now, effects)
            return
        error = self.roster.validate(join.member_id, join.instance_id)
        if error is not ErrorCode.none:
            effects.answer_join(join.ticket, error, join.member_id)
            return
        member = self.roster.members[join.member_id]
        leads = self.roster.leader == join.member_id
        match REJOIN[self.state][leads, member.protocols == join.protocols]:
            case Rejoin.UNKNOWN:
                effects.answer_join(join.ticket, ErrorCode.unknown_member_id, join.member_id)
            case Rejoin.CURRENT:
                # Only a leader that hasn't sent the assignment yet needs the other members.
                effects.answers.append((join.ticket, self._generation_answer(member, with_members=leads)))
            case Rejoin.REBALANCE:
                self.roster.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
                self._park_join(member, join, effects)
                who = "leader" if leads else "member"
                self._rebalance_or_complete(join.why(f"{who} {join.member_id} joins again"), now, effects)

    def _add(self, join: Join, member_id: str, now: Now, effects: Effects) -> None:
        if self._initial_wait is not None:
            self._someone_new = True
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
        self.roster.add(member, join.protocol_type)
        self._park_join(member, join, effects)
        # The client doesn't know its member id yet, so it can't send heartbeats, and its death would go unnoticed
        # without this.
        member.session_deadline_ms = self._arm(now.steady_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(join.why(f"new member {member_id}"), now, effects)

    def _park_join(self, member: Member, join: Join, effects: Effects) -> None:
        if member.join_ticket is not None:  # the client gave up on its earlier request and sent another
            effects.answer_join(member.join_ticket, ErrorCode.rebalance_in_progress, member.member_id)
        self.roster.park_join(member, join.ticket)

    def _replace_static(self, join: Join, old_id: str, now: Now, effects: Effects) -> None:
        """A static member came back without its member id, and gets a new one (KIP-345). A client with the old id is
        fenced."""
        old_leader = self.roster.leader
        old = self.roster.members[old_id]
        self._answer_parked(old, ErrorCode.fenced_instance_id, old_id, effects)
        undo = Replaced(join, old_id, old_leader, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        member = self.roster.replace(old_id, join.new_member_id)
        member.is_new = False
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(join.new_member_id)
        self._renew_session(member, now)
        self.roster.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        self.roster.park_join(member, join.ticket)
        why = join.why(f"static member {join.instance_id} came back as {join.new_member_id}")
        if self.state is State.STABLE and self.roster.select_protocol() == self.protocol:
            effects.stores.append(Store(self.snapshot(), undo))
        elif self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            # In CompletingRebalance the leader may be computing an assignment for the old id.
            self._prepare_rebalance(why, now, effects)
        else:
            self._complete_join_if_all_came(now, effects)

    def _replacement_stored(self, replaced: Replaced, error: ErrorCode, now: Now, effects: Effects) -> None:
        join = replaced.join
        member = self.roster.members.get(join.new_member_id)
        if member is None or member.join_ticket is not join.ticket or self.state is not State.STABLE:
            return  # the state has changed: the member was answered, or will be when the rebalance completes
        if error is not ErrorCode.none:
            self.roster.unpark_join(member)
            self.roster.update(
                member, replaced.old_protocols, replaced.old_rebalance_timeout_ms, replaced.old_session_timeout_ms
            )
            self._renew_session(self.roster.replace(join.new_member_id, replaced.old_id), now)
            effects.answer_join(join.ticket, error, "")
        else:
            self.roster.unpark_join(member)
            leads = self.roster.leader == member.member_id
            answer = self._generation_answer(member, with_members=leads and join.skips_assignment)
            answer["skip_assignment"] = leads and join.skips_assignment
            if not join.skips_assignment:
                # A member that is named as leader would compute a needless assignment.
                answer["leader"] = replaced.old_leader
            effects.answers.append((join.ticket, answer))

    # --- sync, leave ---

    def _sync_error(self, sync: Sync) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.validate(sync.member_id, sync.instance_id)
        if error is not ErrorCode.none:
            return error
        if sync.generation != self.generation:
            return ErrorCode.illegal_generation
        ours = (self.roster.protocol_type, self.protocol)
        if any(
            theirs is not None and mine is not None and theirs != mine
            for theirs, mine in zip((sync.protocol_type, sync.protocol), ours, strict=True)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _park_sync(self, sync: Sync, effects: Effects) -> None:
        member = self.roster.members[sync.member_id]
        if member.sync_ticket is not None:  # the client gave up on its earlier request and sent another
            effects.answer_sync(member.sync_ticket, ErrorCode.rebalance_in_progress)
        member.sync_ticket = sync.ticket
        self._synced(sync.member_id)
        if self.roster.leader == sync.member_id and self._storing != self.generation:
            self._storing = self.generation  # a repeated request can't bring another plan: one is being written
            plan = {member.member_id: sync.assignments.get(member.member_id, b"") for member in self.roster}
            effects.stores.append(Store(self.snapshot(plan), Assigned(plan)))

    def _assignment_stored(
        self, store: Store, assignments: dict[str, bytes], error: ErrorCode, now: Now, effects: Effects
    ) -> None:
        if self.state is not State.COMPLETING_REBALANCE or self.generation != store.value.generation:
            return  # the state has changed; the members were answered
        self._storing = -1
        if error is not ErrorCode.none:
            self._fail_syncs(error, effects, now)
            self._prepare_rebalance(f"the assignment could not be stored: {error.name}", now, effects)
            return
        self._move(State.STABLE, "assignment stored", now, effects)
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_ticket is not None:
                effects.answers.append((member.sync_ticket, self._assignment_answer(member)))
                member.sync_ticket = None
                self._renew_session(member, now)  # its session may have passed while it waited

    def _leave_one(self, leaver: Leaver, effects: Effects) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        member_id = leaver.member_id
        if not member_id:
            found = self.roster.member_of(leaver.instance_id)
            if found is None:
                return ErrorCode.unknown_member_id
            member_id = found
        elif member_id not in self.roster.pending:
            error = self.roster.validate(member_id, leaver.instance_id)
            if error is not ErrorCode.none:
                return error
        self._drop(member_id, effects)
        return ErrorCode.none
