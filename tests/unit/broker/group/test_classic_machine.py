"""Random histories of one group, against a simple model of the answers that its clients got.

The model only notes each answer. These rules are checked after every step:

1. Each generation has one leader, one protocol and one set of members in all answers; generations never go back.
2. A member's assignment is the one that the leader of the same generation sent for this member.
3. No request waits forever: every parked request has a deadline, and all are answered long after the last step.
4. A replay of the last stored record gives the group that was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ottla.broker.group import answers
from ottla.broker.group.classic import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup
from ottla.broker.group.effects import NEVER_MS, Assigned, Effects, Join, Leaver, Limits, Now, Store, Sync
from ottla.broker.group.membership import Membership
from ottla.broker.group.records import GroupMetadata
from ottla.broker.group.roster import Member, Roster
from ottla.broker.group.shard import GroupShard
from ottla.broker.group.states import State
from ottla.protocol.errors import ErrorCode
from tests.unit.examples import examples

PROTOCOLS = [
    (("range", b"r"),),
    (("range", b"r"), ("sticky", b"s")),
    (("sticky", b"s"), ("range", b"r")),
    (("range", b"r2"),),
    (("sticky", b"s"),),
]
SESSION_MS, REBALANCE_MS = 10_000, 30_000


class Client:
    """A client. Its ids, its generation and the members are those of the last answer that it got."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: list[str] = []
        self.lives = 0


class Waiting(NamedTuple):
    """A request without an answer, and its client's identity when it was sent."""

    kind: str
    client: Client
    member_id: str
    generation: int
    life: int


class GroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(size=st.sampled_from([2, 3, 100]), delay=st.sampled_from([0, 3_000]))
    def begin(self, size: int, delay: int) -> None:
        self.limits = Limits(group_max_size=size, group_initial_rebalance_delay_ms=delay)
        self.shard = GroupShard(self.limits)
        self.now_ms = 0
        self.known: list[Client] = []
        self.tickets: dict[int, Waiting] = {}
        self.answered: set[int] = set()
        self.count = 0
        self.held: list[tuple[ClassicGroup, Store]] = []
        self.stored: Store | None = None
        self.stored_generations: set[int] = set()
        self.generation = 0
        # the model: the leader and the protocol of each generation, by the first answer
        self.leaders: dict[int, str | None] = {}
        self.protocols: dict[int, str | None] = {}
        self.renamed: dict[str, str] = {}  # a static member's old id → its next
        self.plans: dict[int, list[Mapping[str, bytes]]] = {}

    # --- plumbing ---

    @property
    def now(self) -> Now:
        return Now(self.now_ms, 1_000_000 + self.now_ms)

    def ticket(self, kind: str, client: Client) -> int:
        self.count += 1
        self.tickets[self.count] = Waiting(kind, client, client.member_id, client.generation, client.lives)
        return self.count

    def perform(self, effects: Effects, group: ClassicGroup | None) -> None:
        for ticket, answer in effects.answers:
            assert ticket not in self.answered, "answered twice"
            self.answered.add(ticket)
            waiting = self.tickets.pop(ticket)
            (self.heard_join if waiting.kind == "join" else self.heard_sync)(waiting, answer)
        for store in effects.stores:
            assert group is not None
            self.held.append((group, store))

    def heard_join(self, waiting: Waiting, answer: Mapping[str, Any]) -> None:
        code, client = answer["error_code"], waiting.client
        if code is ErrorCode.none:
            self.told_generation(answer["generation_id"], answer)
        if waiting.life != client.lives:
            return
        if code is ErrorCode.member_id_required:
            client.member_id = answer["member_id"]
        elif code is not ErrorCode.none:
            if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
                client.member_id = ""
            client.generation = -1
        else:
            client.member_id, client.generation = answer["member_id"], answer["generation_id"]
            client.leads = bool(answer["members"]) and not answer["skip_assignment"]
            client.members = [member["member_id"] for member in answer["members"]]
            if client.members:
                assert answer["leader"] == client.member_id
                assert client.member_id in client.members

    def told_generation(self, generation: int, answer: Mapping[str, Any]) -> None:
        assert generation >= 1
        leader = self.leaders.setdefault(generation, answer["leader"])
        # the same leader, or the same static member under a newer id
        while leader != answer["leader"]:
            assert leader in self.renamed, "two leaders in one generation"
            leader = self.renamed[leader]
        assert self.protocols.setdefault(generation, answer["protocol_name"]) == answer["protocol_name"]

    def heard_sync(self, waiting: Waiting, answer: Mapping[str, Any]) -> None:
        if answer["error_code"] is not ErrorCode.none:
            return
        generation, member_id = waiting.generation, waiting.member_id
        plans = self.plans.get(generation, [])
        names = {member_id} | {old for old in self.renamed if self.latest(old) == self.latest(member_id)}
        assert generation in self.stored_generations, "the assignment was not stored"
        given = [plan[name] for plan in plans for name in names if name in plan]
        assert answer["assignment"] in [*given, b""], "this generation's leader didn't send the assignment"
        if given and all(names & plan.keys() for plan in plans):
            assert answer["assignment"] in given

    def latest(self, member_id: str) -> str:
        while member_id in self.renamed:
            member_id = self.renamed[member_id]
        return member_id

    # --- rules ---

    @rule(target=clients, instance_id=st.sampled_from([None, None, "i", "j"]))
    def new_client(self, instance_id: str | None) -> Client:
        client = Client(instance_id)
        self.known.append(client)
        return client

    @rule(rounds=st.integers(1, 3))
    def everybody_does_what_they_should(self, rounds: int) -> None:
        """All clients act as the protocol asks: random steps alone seldom bring a whole group into one generation."""
        for _ in range(rounds):
            for client in self.known:
                state = self.shard.heartbeat("g", client.member_id, client.generation, client.instance_id, self.now)
                if state is not ErrorCode.none and not self.waits(client):
                    self.join(client, PROTOCOLS[1], False, True)
            self.time_passes(3_000)
            for client in self.known:
                if client.generation >= 0 and not self.waits(client):
                    self.sync(client)

    def waits(self, client: Client) -> bool:
        return any(waiting.client is client for waiting in self.tickets.values())

    @rule(client=clients, protocols=st.sampled_from(PROTOCOLS), known=st.booleans(), skips=st.booleans())
    def join(self, client: Client, protocols: Any, known: bool, skips: bool) -> None:
        group = self.shard.groups.get("g")
        new_id = f"m{self.count}"
        if not client.member_id and group is not None:
            old = group.membership.roster.member_of(client.instance_id)
            accepted = group._accepts("") and group.membership.roster.supports("consumer", protocols)
            if old is not None and accepted:
                self.renamed[old] = new_id
        join = Join(
            ticket=self.ticket("join", client),
            member_id=client.member_id,
            new_member_id=new_id,
            protocol_type="consumer",
            protocols=protocols,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            instance_id=client.instance_id,
            requires_known_id=known,
            skips_assignment=skips,
        )
        effects = self.shard.join("g", join, self.now)
        self.perform(effects, self.shard.groups.get("g"))

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        plan: dict[str, bytes] = {}
        if client.leads:
            plan = {name: f"{client.generation}:{name}:{self.count}".encode() for name in client.members}
            self.plans.setdefault(client.generation, []).append(plan)
        sync = Sync(
            self.ticket("sync", client), client.member_id, client.generation, plan, instance_id=client.instance_id
        )
        self.perform(self.shard.sync("g", sync, self.now), self.shard.groups.get("g"))

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        self.shard.heartbeat("g", client.member_id, client.generation, client.instance_id, self.now)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if client in self.known:
            self.known.remove(client)
        leaver = Leaver(client.member_id, client.instance_id)
        _, effects = self.shard.leave("g", [leaver], self.now)
        self.perform(effects, self.shard.groups.get("g"))

    @rule(client=clients)
    def restart(self, client: Client) -> None:
        """The client's process restarts: it forgets its member id, but a static member keeps its static id."""
        client.member_id, client.generation, client.leads = "", -1, False
        client.lives += 1

    @rule(target=clients, client=clients)
    def twin(self, client: Client) -> Any:
        """A second process with the same static id, if the client has one."""
        return Client(client.instance_id) if client.instance_id else multiple()

    @rule(ok=st.sampled_from([True, True, True, False]))
    def store(self, ok: bool) -> None:
        if self.held:
            group, store = self.held.pop(0)
            error = ErrorCode.none if ok else ErrorCode.not_enough_replicas
            if ok:
                self.stored = store
                if isinstance(store.meaning, Assigned):
                    self.stored_generations.add(store.value.generation)
            effects = self.shard.stored(group, store, error, self.now)
            self.perform(effects, group)

    @rule(ms=st.sampled_from([0, 1, 500, 3_000, 9_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        end = self.now_ms + ms
        for _ in range(10_000):
            group = self.shard.groups.get("g")
            if group is None or group.wake_ms > end:
                break
            self.now_ms = max(self.now_ms, group.wake_ms)
            self.perform(group.time_passed(self.now), group)
        else:
            raise AssertionError("the group wakes again and again")
        self.now_ms = end

    # --- invariants ---

    @invariant()
    def the_group_is_sound(self) -> None:
        if not hasattr(self, "shard"):
            return
        group = self.shard.groups.get("g")
        if group is None:
            self.generation = 0  # this group was never stored, so no client relies on it
            self.leaders.clear()
            self.protocols.clear()
            self.plans.clear()
            self.stored_generations.clear()
            return
        membership, roster = group.membership, group.membership.roster
        assert membership.generation >= self.generation
        self.generation = membership.generation
        assert (membership.state is State.EMPTY) == (not roster.members) or (
            membership.state is State.PREPARING_REBALANCE
        )
        if roster.members:
            assert roster.leader in roster
        statics = [member.instance_id for member in roster if member.instance_id is not None]
        assert len(statics) == len(set(statics))
        assert roster.joined_count == sum(member.join_ticket is not None for member in roster)
        if membership.state is State.STABLE:
            for member in roster:
                assert member.sync_ticket is None

    @invariant()
    def whoever_waits_has_a_deadline(self) -> None:
        if not hasattr(self, "shard"):
            return
        group = self.shard.groups.get("g")
        parked = (
            {}
            if group is None
            else {
                ticket
                for member in group.membership.roster
                for ticket in (member.join_ticket, member.sync_ticket)
                if ticket
            }
        )
        assert set(self.tickets) == set(parked), "the group has forgotten a waiting request"
        stores = any(holder is group for holder, _ in self.held)
        assert not parked or stores or (group is not None and group.wake_ms != NEVER_MS)

    def teardown(self) -> None:
        if not hasattr(self, "shard"):
            return
        for _ in range(100):
            while self.held:
                self.store(True)
            if not self.tickets:
                break
            self.time_passes(NEW_MEMBER_JOIN_TIMEOUT_MS)
        assert not self.tickets, "a request waits forever"
        group = self.shard.groups.get("g")
        if self.stored is not None and isinstance(self.stored.meaning, Assigned):
            restored = ClassicGroup.restored("g", self.limits, self.stored.value).membership
            assert restored.snapshot() == self.stored.value
            membership = None if group is None else group.membership
            if (
                membership is not None
                and membership.state is State.STABLE
                and membership.generation == self.stored.value.generation
            ):
                time_ms = membership.snapshot().state_timestamp_ms
                assert replace(restored.snapshot(), state_timestamp_ms=time_ms) == membership.snapshot()
                for member in membership.roster:
                    assert restored.roster.members[member.member_id].assignment == member.assignment


# --- proofs that the checks above notice faults ---


def _forgets_who_it_drops(self: Membership, member_id: str, effects: Effects) -> None:
    self.roster.remove(member_id)


def _everyone_leads(
    roster: Roster, generation: int, protocol: str | None, member: Member, *, with_members: bool
) -> dict[str, Any]:
    answer = _joined(roster, generation, protocol, member, with_members=with_members)
    return {**answer, "leader": member.member_id}


def _waits_without_deadline(self: Membership, why: str, now: Now, effects: Effects) -> None:
    _rebalance(self, why, now, effects)
    self.deadlines.join_ms = None


def _assigns_what_was_not_stored(self: ClassicGroup, store: Store, error: ErrorCode, now: Now) -> Effects:
    return _stored(self, store, ErrorCode.none, now)


def _takes_late_assignments(self: ClassicGroup, store: Store, error: ErrorCode, now: Now) -> Effects:
    current = replace(store, value=replace(store.value, generation=self.membership.generation))
    return _stored(self, current, error, now)


def _repeats_generations(self: Membership, why: str, now: Now, effects: Effects) -> None:
    _begin_generation(self, why, now, effects)
    self.generation = min(self.generation, 2)


def _snapshots_without_assignments(self: Membership, assignments: Mapping[str, bytes] | None = None) -> GroupMetadata:
    return _snapshot(self, {})


def _lets_anyone_back_in(self: Roster, member_id: str, instance_id: str | None) -> ErrorCode:
    return ErrorCode.none if self.members else ErrorCode.unknown_member_id


_joined = answers.joined
_rebalance = Membership.rebalance
_begin_generation = Membership._begin_generation
_stored = ClassicGroup.stored
_snapshot = Membership.snapshot


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Membership, "drop", _forgets_who_it_drops),
        (answers, "joined", _everyone_leads),
        (Membership, "rebalance", _waits_without_deadline),
        (ClassicGroup, "stored", _assigns_what_was_not_stored),
        (ClassicGroup, "stored", _takes_late_assignments),
        (Membership, "_begin_generation", _repeats_generations),
        (Membership, "snapshot", _snapshots_without_assignments),
        (Roster, "validate", _lets_anyone_back_in),
    ],
)
def test_planted_bugs_are_found(owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, broken)
    hunt = settings(
        max_examples=2_000,
        stateful_step_count=60,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, KeyError, StopIteration, ExceptionGroup)):
        run_state_machine_as_test(GroupMachine, settings=hunt)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
