"""The classic group protocol as in Kafka: each test checks a rule of GroupMetadataManager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from ottla.broker.group.classic import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup
from ottla.broker.group.effects import Created, Effects, Join, Leaver, Limits, Now, Store, Sync
from ottla.broker.group.membership import Membership
from ottla.broker.group.records import GroupMetadata
from ottla.broker.group.shard import GroupShard
from ottla.broker.group.states import DELETE, HEARTBEAT, NEXT, State
from ottla.protocol.errors import ErrorCode

WALL = 1_700_000_000_000
RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("roundrobin", b"rr"))


class Scene:
    """The groups of one partition of `__consumer_offsets`, here a single group, with a clock and the answers so far.
    If `failing` is set, writes to the log fail with this error.
    """

    def __init__(self, **limits: int) -> None:
        self.shard = GroupShard(Limits(**{"group_initial_rebalance_delay_ms": 0, **limits}))
        self.now_ms = 1_000
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.stores: list[Store] = []
        self.failing = ErrorCode.none
        self.holding = False
        self.held: list[Store] = []
        self._tickets = count(1)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL + self.now_ms)

    @property
    def group(self) -> ClassicGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, ClassicGroup)
        return group

    @property
    def membership(self) -> Membership:
        return self.group.membership

    def run(self, effects: Effects, group: ClassicGroup | None = None) -> None:
        group = group or self.shard.groups.get("g")
        for ticket, answer in effects.answers:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = answer
        for store in effects.stores:
            self.stores.append(store)
            if self.holding:
                self.held.append(store)
            else:
                assert group is not None
                self.run(self.shard.stored(group, store, self.failing, self.now), group)

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        held, self.held, self.holding = self.held, [], False
        for store in held:
            self.run(self.shard.stored(self.group, store, error, self.now))

    def join(self, member_id: str = "", *, new_id: str = "", protocols: Any = RANGE, **more: Any) -> int:
        ticket = next(self._tickets)
        join = Join(
            **{
                "ticket": ticket,
                "member_id": member_id,
                "new_member_id": new_id or f"m{ticket}",
                "protocol_type": "consumer",
                "protocols": protocols,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 60_000,
                "requires_known_id": False,
                **more,
            }
        )
        self.run(self.shard.join("g", join, self.now))
        return ticket

    def sync(self, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None, **more: Any) -> int:
        ticket = next(self._tickets)
        self.run(self.shard.sync("g", Sync(ticket, member_id, generation, assignments or {}, **more), self.now))
        return ticket

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.shard.heartbeat("g", member_id, generation, instance_id, self.now)

    def leave(self, *leavers: Leaver) -> list[ErrorCode]:
        answers, effects = self.shard.leave("g", leavers, self.now)
        self.run(effects)
        return [answer["error_code"] for answer in answers]

    def pass_time(self, ms: int) -> None:
        end = self.now_ms + ms
        while "g" in self.shard.groups and self.group.wake_ms <= end:
            self.now_ms = max(self.group.wake_ms, self.now_ms)
            self.run(self.group.time_passed(self.now))
        self.now_ms = end

    def code(self, ticket: int) -> ErrorCode:
        return ErrorCode(self.answers[ticket]["error_code"])

    def stable(self, *names: str, **more: Any) -> int:
        """Makes dynamic members of these names join a stable group; returns the generation."""
        for name in names:
            self.join(new_id=name, **more)
        self.pass_time(0)
        for name in names:
            if (
                self.membership.roster.members[name].join_ticket is None
                and self.membership.state is State.PREPARING_REBALANCE
            ):
                self.join(name, **more)
        return self.assign()

    def assign(self) -> int:
        membership, roster = self.membership, self.membership.roster
        assert membership.state is State.COMPLETING_REBALANCE
        assert roster.leader is not None
        for member in list(roster):
            if member.member_id != roster.leader:
                self.sync(member.member_id, membership.generation)
        plan = {member.member_id: f"for {member.member_id}".encode() for member in roster}
        self.sync(roster.leader, membership.generation, plan)
        return membership.generation


def test_a_member_joins_and_gets_its_assignment() -> None:
    scene = Scene()
    joined = scene.join(new_id="a")
    assert joined not in scene.answers
    scene.pass_time(0)
    answer = scene.answers[joined]
    assert (answer["generation_id"], answer["leader"], answer["member_id"]) == (1, "a", "a")
    assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")
    assert answer["members"] == [{"member_id": "a", "group_instance_id": None, "metadata": b"r"}]
    synced = scene.sync("a", 1, {"a": b"plan"})
    assert scene.answers[synced]["assignment"] == b"plan"
    assert scene.membership.state is State.STABLE
    assert scene.heartbeat("a", 1) is ErrorCode.none


def test_records_follow_kafkas_order() -> None:
    scene = Scene()
    scene.stable("a")
    assert [type(store.meaning).__name__ for store in scene.stores] == ["Created", "Assigned"]
    assert scene.stores[0].value == GroupMetadata(state_timestamp_ms=WALL + 1_000)
    assert scene.stores[1].value.members[0].assignment == b"for a"
    assert scene.leave(Leaver("a")) == [ErrorCode.none]
    emptied = scene.stores[2].value
    assert (emptied.generation, emptied.protocol_type, emptied.protocol, emptied.members) == (2, "consumer", None, ())
    assert emptied.state_timestamp_ms == WALL + scene.now_ms


# --- member id required, KIP-394 ---


def test_an_unknown_member_must_come_again_with_its_id() -> None:
    scene = Scene()
    first = scene.join(new_id="a", requires_known_id=True)
    assert scene.answers[first] == {"error_code": ErrorCode.member_id_required, "member_id": "a"}
    assert scene.membership.state is State.EMPTY
    scene.join("a", requires_known_id=True)
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_an_id_that_is_not_used_lapses() -> None:
    scene = Scene()
    scene.join(new_id="a", requires_known_id=True)
    scene.pass_time(10_000)
    assert scene.code(scene.join("a")) is ErrorCode.unknown_member_id


def test_a_rebalance_waits_for_handed_out_ids() -> None:
    scene = Scene()
    scene.stable("a")
    scene.join(new_id="b", requires_known_id=True)
    rejoined = scene.join("a")  # a is the leader
    assert rejoined not in scene.answers
    scene.pass_time(10_000)  # b's handed-out id expires
    assert scene.code(rejoined) is ErrorCode.none


def test_static_members_need_no_second_request() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i", requires_known_id=True)
    assert scene.membership.roster.member_of("i") == "a"


def test_unknown_ids_and_groups() -> None:
    scene = Scene()
    assert scene.code(scene.join("ghost")) is ErrorCode.unknown_member_id
    assert "g" not in scene.shard.groups
    scene.stable("a")
    assert scene.code(scene.join("ghost")) is ErrorCode.unknown_member_id
    assert scene.code(scene.sync("ghost", 1)) is ErrorCode.unknown_member_id
    assert scene.heartbeat("ghost", 1) is ErrorCode.unknown_member_id


# --- the initial rebalance delay ---


def test_the_first_rebalance_waits_for_more_members() -> None:
    scene = Scene(group_initial_rebalance_delay_ms=3_000)
    first = scene.join(new_id="a")
    scene.pass_time(2_999)
    assert first not in scene.answers
    scene.pass_time(1)
    assert scene.code(first) is ErrorCode.none


def test_each_newcomer_extends_it_up_to_the_rebalance_time_out() -> None:
    scene = Scene(group_initial_rebalance_delay_ms=3_000)
    first = scene.join(new_id="a", rebalance_timeout_ms=7_000)
    for index in range(6):
        scene.pass_time(1_400)  # 1.4, 2.8, 4.2, 5.6, 7.0, 8.4 s
        if first in scene.answers:
            break
        scene.join(new_id=f"b{index}", rebalance_timeout_ms=7_000)
    assert scene.now_ms - 1_000 == 7_000  # 3 s, then 3 s more, then the 1 s that is left
    assert len(scene.answers[first]["members"]) == 5


# --- rebalances ---


def test_two_members_one_leader() -> None:
    scene = Scene()
    a, b = scene.join(new_id="a"), scene.join(new_id="b")
    scene.pass_time(0)
    assert [member["member_id"] for member in scene.answers[a]["members"]] == ["a", "b"]
    assert scene.answers[b]["members"] == []
    assert scene.answers[b]["leader"] == "a"
    follower = scene.sync("b", 1)
    assert follower not in scene.answers
    scene.sync("a", 1, {"a": b"1", "b": b"2"})
    assert scene.answers[follower]["assignment"] == b"2"


def test_whoever_the_leader_forgets_gets_nothing() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.join(new_id="b")
    scene.pass_time(0)
    follower = scene.sync("b", 1)
    scene.sync("a", 1, {"a": b"1", "stranger": b"x"})
    assert scene.answers[follower]["assignment"] == b""


def test_a_newcomer_makes_the_others_rejoin() -> None:
    scene = Scene()
    scene.stable("a")
    newcomer = scene.join(new_id="b")
    assert scene.heartbeat("a", 1) is ErrorCode.rebalance_in_progress
    assert scene.code(scene.sync("a", 1)) is ErrorCode.rebalance_in_progress
    assert newcomer not in scene.answers
    scene.join("a")
    assert scene.answers[newcomer]["generation_id"] == 2


def test_who_does_not_rejoin_in_time_is_out() -> None:
    scene = Scene()
    scene.stable("a", "b")
    rejoined = scene.join("a")
    for _ in range(6):
        scene.pass_time(9_000)
        scene.heartbeat("b", 1)  # b is alive, but doesn't join
    scene.pass_time(6_000)
    assert scene.code(rejoined) is ErrorCode.none
    assert "b" not in scene.membership.roster
    assert scene.heartbeat("b", 1) is ErrorCode.unknown_member_id


def test_a_leader_that_does_not_rejoin_is_replaced() -> None:
    scene = Scene()
    scene.stable("a", "b", instance_id=None)
    rejoined = scene.join("b", protocols=(("range", b"new"),))
    scene.pass_time(60_000)
    assert scene.answers[rejoined]["leader"] == "b"


def test_old_generations_are_fenced() -> None:
    scene = Scene()
    scene.stable("a")
    scene.join("a")
    assert scene.membership.generation == 2
    assert scene.heartbeat("a", 1) is ErrorCode.illegal_generation
    assert scene.code(scene.sync("a", 1)) is ErrorCode.illegal_generation
    assert scene.code(scene.sync("a", 3)) is ErrorCode.illegal_generation


def test_sync_must_name_the_groups_protocol() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.pass_time(0)
    for wrong in (
        {"protocol_type": "connect", "protocol": "range"},
        {"protocol_type": "consumer", "protocol": "other"},
    ):
        assert scene.code(scene.sync("a", 1, **wrong)) is ErrorCode.inconsistent_group_protocol
    assert scene.code(scene.sync("a", 1, {"a": b""}, protocol_type="consumer", protocol="range")) is ErrorCode.none


def test_no_sync_in_time_puts_members_out() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.join(new_id="b")
    scene.pass_time(0)
    waiting = scene.sync("b", 1)
    for _ in range(7):
        scene.heartbeat("a", 1)  # the leader is alive, but sends no assignment
        scene.pass_time(9_000)
    assert "a" not in scene.membership.roster
    assert scene.code(waiting) is ErrorCode.rebalance_in_progress
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_a_session_that_ends_starts_a_rebalance() -> None:
    scene = Scene()
    scene.stable("a", "b")
    for _ in range(3):
        scene.pass_time(5_000)
        scene.heartbeat("a", 1)
    assert "b" not in scene.membership.roster
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_waiting_members_need_no_heartbeats() -> None:
    scene = Scene()
    scene.stable("a", "b")
    waiting = scene.join("a", rebalance_timeout_ms=100_000)
    for _ in range(5):
        scene.pass_time(9_000)
        scene.heartbeat("b", 1)
    scene.join("b")
    assert scene.code(waiting) is ErrorCode.none


def test_new_members_are_watched_even_while_they_wait() -> None:
    scene = Scene()
    scene.stable("a", rebalance_timeout_ms=2_000_000)
    newcomer = scene.join(new_id="b")
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 9_000 + 1):
        scene.pass_time(9_000)
        scene.heartbeat("a", 1)
    assert scene.code(newcomer) is ErrorCode.unknown_member_id


def test_an_empty_group_after_everybody_died() -> None:
    scene = Scene()
    scene.stable("a", "b")
    scene.pass_time(10_000)
    assert scene.membership.state is State.EMPTY
    assert scene.membership.generation == 2


# --- joining again ---


def test_rejoining_a_stable_group() -> None:
    scene = Scene()
    scene.stable("a", "b")
    generation = scene.membership.generation
    same = scene.join("b")
    assert scene.answers[same]["generation_id"] == generation
    assert scene.answers[same]["members"] == []
    assert scene.membership.state is State.STABLE
    scene.join("b", protocols=(("range", b"other topics"),))
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_the_leader_rejoining_rebalances() -> None:
    scene = Scene()
    scene.stable("a", "b")
    scene.join("a")
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_rejoining_while_the_assignment_is_awaited() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.join(new_id="b")
    scene.pass_time(0)
    again = scene.join("a")
    assert len(scene.answers[again]["members"]) == 2
    synced = scene.sync("b", 1)
    scene.join("b", protocols=(("range", b"new"),))
    assert scene.code(synced) is ErrorCode.rebalance_in_progress


def test_a_second_request_supersedes_the_first() -> None:
    scene = Scene()
    scene.stable("a", "b")
    first = scene.join("a")
    second = scene.join("a")
    assert scene.code(first) is ErrorCode.rebalance_in_progress
    scene.join("b")
    assert scene.code(second) is ErrorCode.none
    one = scene.sync("b", scene.membership.generation)
    two = scene.sync("b", scene.membership.generation)
    assert scene.code(one) is ErrorCode.rebalance_in_progress
    assert two not in scene.answers


# --- protocols ---


def test_the_most_wanted_common_protocol_wins() -> None:
    scene = Scene()
    reversed_both = tuple(reversed(BOTH))
    scene.join(new_id="a", protocols=BOTH)
    scene.join(new_id="b", protocols=reversed_both)
    scene.join(new_id="c", protocols=reversed_both)
    scene.pass_time(0)
    assert scene.membership.protocol == "roundrobin"


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocols": (("sticky", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_members_that_cannot_agree(wrong: dict[str, Any]) -> None:
    scene = Scene()
    scene.stable("a")
    assert scene.code(scene.join(new_id="b", **wrong)) is ErrorCode.inconsistent_group_protocol
    assert scene.membership.state is State.STABLE


@pytest.mark.parametrize("wrong", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_group_needs_protocols(wrong: dict[str, Any]) -> None:
    scene = Scene()
    assert scene.code(scene.join(**wrong)) is ErrorCode.inconsistent_group_protocol
    assert not scene.shard.groups


def test_an_empty_group_may_change_its_type() -> None:
    scene = Scene()
    scene.stable("a")
    scene.leave(Leaver("a"))
    scene.join(new_id="w", protocol_type="connect", protocols=(("sessioned", b"opaque"),))
    scene.pass_time(0)
    assert scene.membership.roster.protocol_type == "connect"
    assert scene.membership.generation == 3


@pytest.mark.parametrize("timeout", [5_999, 1_800_001, -1])
def test_session_time_outs_have_bounds(timeout: int) -> None:
    scene = Scene()
    assert scene.code(scene.join(session_timeout_ms=timeout)) is ErrorCode.invalid_session_timeout


# --- static members, KIP-345 and KIP-814 ---


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i")
    scene.join(new_id="b", instance_id="j")
    scene.pass_time(0)
    scene.assign()
    back = scene.join(new_id="b2", instance_id="j")
    assert scene.membership.state is State.STABLE
    assert scene.answers[back]["generation_id"] == 1
    assert scene.answers[back]["member_id"] == "b2"
    assert scene.answers[back]["skip_assignment"] is False
    assert scene.answers[scene.sync("b2", 1)]["assignment"] == b"for b"
    assert scene.heartbeat("b", 1, "j") is ErrorCode.fenced_instance_id
    assert scene.code(scene.join("b", instance_id="j")) is ErrorCode.fenced_instance_id
    assert scene.code(scene.sync("b", 1, instance_id="j")) is ErrorCode.fenced_instance_id
    assert scene.heartbeat("b", 1) is ErrorCode.unknown_member_id
    assert [member.member_id for member in scene.stores[-1].value.members] == ["a", "b2"]


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_leader_comes_back(skips: bool) -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i")
    scene.join(new_id="b")
    scene.pass_time(0)
    scene.assign()
    back = scene.answers[scene.join(new_id="a2", instance_id="i", skips_assignment=skips)]
    assert back["skip_assignment"] is skips
    assert len(back["members"]) == (2 if skips else 0)
    assert back["leader"] == ("a2" if skips else "a")  # an old client must not take itself to be the leader
    assert scene.membership.roster.leader == "a2"


def test_coming_back_with_another_protocol_rebalances() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i", protocols=BOTH)
    scene.pass_time(0)
    scene.assign()
    back = scene.join(new_id="a2", instance_id="i", protocols=(("roundrobin", b"rr"),))
    assert scene.answers[back]["generation_id"] == 2
    assert scene.membership.protocol == "roundrobin"


def test_coming_back_while_the_assignment_is_awaited_rebalances() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.join(new_id="b", instance_id="j")
    scene.pass_time(0)
    waiting = scene.sync("b", 1)
    scene.join(new_id="b2", instance_id="j")
    assert scene.code(waiting) is ErrorCode.fenced_instance_id
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_coming_back_in_a_rebalance_fences_the_one_that_waits() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i")
    scene.join(new_id="b", instance_id="j")
    scene.pass_time(0)
    scene.assign()
    old = scene.join("a", instance_id="i")
    scene.join(new_id="a2", instance_id="i")
    assert scene.code(old) is ErrorCode.fenced_instance_id
    assert scene.answers[old]["member_id"] == "a"


def test_a_static_member_keeps_its_seat_through_a_rebalance() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i", session_timeout_ms=1_000_000)
    scene.join(new_id="b")
    scene.pass_time(0)
    scene.assign()
    rejoined = scene.join("b", protocols=(("range", b"new"),))
    scene.pass_time(60_000)
    answer = scene.answers[rejoined]
    assert answer["leader"] == "b"
    assert [member["group_instance_id"] for member in answer["members"]] == ["i", None]


def test_only_silent_static_members_are_waited_for_until_their_sessions_end() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i", session_timeout_ms=200_000)
    scene.join(new_id="b")
    scene.pass_time(0)
    scene.assign()
    scene.leave(Leaver("b"))
    scene.pass_time(120_000)
    assert scene.membership.state is State.PREPARING_REBALANCE
    scene.pass_time(100_000)
    assert scene.membership.state is State.EMPTY


def test_administrators_remove_static_members() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i")
    scene.pass_time(0)
    scene.assign()
    assert scene.leave(Leaver("", "i"), Leaver("", "nobody"), Leaver("")) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert scene.membership.state is State.EMPTY


def test_a_replacement_that_is_not_stored_is_undone() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i")
    scene.pass_time(0)
    scene.assign()
    scene.failing = ErrorCode.not_leader_or_follower
    back = scene.join(new_id="a2", instance_id="i")
    assert scene.code(back) is ErrorCode.not_coordinator
    assert scene.membership.roster.member_of("i") == scene.membership.roster.leader == "a"
    assert scene.heartbeat("a", 1, "i") is ErrorCode.none


# --- leaving ---


def test_several_leave_at_once() -> None:
    scene = Scene()
    scene.stable("a", "b", "c")
    assert scene.leave(Leaver("a"), Leaver("ghost"), Leaver("b", reason="scaled down")) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
    ]
    assert [member.member_id for member in scene.membership.roster] == ["c"]
    assert scene.membership.roster.leader == "c"
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_leaving_while_waiting() -> None:
    scene = Scene()
    scene.stable("a", "b")
    waiting = scene.join("a")
    scene.leave(Leaver("a"))
    assert scene.answers[waiting] == {"error_code": ErrorCode.unknown_member_id, "member_id": ""}


def test_a_pending_id_may_leave() -> None:
    scene = Scene()
    scene.stable("a")
    scene.join(new_id="b", requires_known_id=True)
    assert scene.leave(Leaver("b")) == [ErrorCode.none]
    assert not scene.membership.roster.pending


def test_leaving_a_group_that_is_not_there() -> None:
    assert Scene().leave(Leaver("a"), Leaver("", "i")) == [ErrorCode.unknown_member_id] * 2


def test_a_fenced_member_cannot_leave_for_its_successor() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i")
    scene.pass_time(0)
    scene.assign()
    scene.join(new_id="a2", instance_id="i")
    assert scene.leave(Leaver("a", "i")) == [ErrorCode.fenced_instance_id]


# --- group.max.size ---


def test_a_full_group() -> None:
    scene = Scene(group_max_size=2)
    scene.stable("a", "b")
    refused = scene.join(new_id="c")
    assert scene.answers[refused] == {"error_code": ErrorCode.group_max_size_reached, "member_id": ""}
    assert scene.code(scene.join("b")) is ErrorCode.none


def test_a_group_that_became_too_large_keeps_the_first_to_rejoin() -> None:
    scene = Scene()
    scene.stable("a", "b", "c")
    smaller = Limits(group_initial_rebalance_delay_ms=0, group_max_size=2)
    group = ClassicGroup.restored("g", smaller, scene.membership.snapshot())
    scene.shard.groups["g"] = group
    scene.run(group.loaded(scene.now))
    assert group.membership.state is State.PREPARING_REBALANCE
    c, a, b = scene.join("c"), scene.join("a"), scene.join("b")
    assert scene.code(b) is ErrorCode.group_max_size_reached
    assert scene.code(c) is scene.code(a) is ErrorCode.none
    assert sorted(member.member_id for member in group.membership.roster) == ["a", "c"]


# --- storing ---


def test_nobody_is_assigned_before_the_assignment_is_stored() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.pass_time(0)
    scene.holding = True
    synced = scene.sync("a", 1, {"a": b"plan"})
    assert synced not in scene.answers
    assert scene.membership.state is State.COMPLETING_REBALANCE
    scene.release()
    assert scene.answers[synced]["assignment"] == b"plan"


def test_an_assignment_that_is_not_stored() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.pass_time(0)
    scene.failing = ErrorCode.not_enough_replicas
    assert scene.code(scene.sync("a", 1, {"a": b"plan"})) is ErrorCode.coordinator_not_available
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_an_assignment_of_a_generation_that_ended() -> None:
    scene = Scene()
    scene.join(new_id="a")
    scene.pass_time(0)
    scene.holding = True
    synced = scene.sync("a", 1, {"a": b"plan"})
    scene.join(new_id="b")
    assert scene.code(synced) is ErrorCode.rebalance_in_progress
    scene.release()
    assert scene.membership.state is State.PREPARING_REBALANCE


def test_a_group_whose_creation_is_not_stored_never_was() -> None:
    scene = Scene()
    scene.failing = ErrorCode.not_leader_or_follower
    joined = scene.join(new_id="a")
    assert scene.code(joined) is ErrorCode.not_coordinator
    assert not scene.shard.groups
    assert isinstance(scene.stores[0].meaning, Created)


# --- commits ---


@pytest.mark.parametrize(
    ("member", "generation", "expected"),
    [
        ("a", 1, ErrorCode.none),
        ("a", 0, ErrorCode.illegal_generation),
        ("a", -1, ErrorCode.illegal_generation),
        ("ghost", 1, ErrorCode.unknown_member_id),
        ("", -1, ErrorCode.unknown_member_id),  # an administrator may commit only while the group is empty
    ],
)
def test_who_may_commit_in_a_stable_group(member: str, generation: int, expected: ErrorCode) -> None:
    scene = Scene()
    scene.stable("a")
    assert scene.group.commit(member, generation, None, scene.now) is expected


def test_commits_through_a_rebalance() -> None:
    scene = Scene()
    scene.stable("a", "b")
    generation = scene.membership.generation
    scene.join("a")
    assert scene.group.commit("b", generation, None, scene.now) is ErrorCode.none
    scene.join("b")
    assert scene.group.commit("b", generation + 1, None, scene.now) is ErrorCode.rebalance_in_progress
    scene.assign()
    scene.leave(Leaver("a"), Leaver("b"))
    assert scene.group.commit("b", generation + 1, None, scene.now) is ErrorCode.unknown_member_id
    assert scene.group.commit("", -1, None, scene.now) is ErrorCode.none


def test_a_commit_keeps_a_session_alive() -> None:
    scene = Scene()
    scene.stable("a")
    for _ in range(5):
        scene.pass_time(9_000)
        scene.group.commit("a", 1, None, scene.now)
    assert scene.membership.state is State.STABLE


# --- replay ---


def test_a_restored_group_goes_on_where_it_was() -> None:
    scene = Scene()
    scene.join(new_id="a", instance_id="i", session_timeout_ms=20_000)
    scene.join(new_id="b")
    scene.pass_time(0)
    scene.assign()
    before = scene.membership.snapshot()
    group = ClassicGroup.restored("g", scene.shard.limits, scene.stores[-1].value)
    scene.shard.groups["g"] = group
    scene.run(group.loaded(scene.now))
    assert replace(group.membership.snapshot(), state_timestamp_ms=before.state_timestamp_ms) == before
    assert scene.heartbeat("b", 1) is ErrorCode.none
    assert scene.answers[scene.sync("b", 1)]["assignment"] == b"for b"
    scene.pass_time(15_000)
    assert [member.member_id for member in group.membership.roster] == ["a"]


def test_unloading_answers_everyone() -> None:
    scene = Scene()
    scene.stable("a", "b")
    waiting = scene.join("a")
    scene.run(scene.shard.unload(ErrorCode.not_coordinator))
    assert scene.answers[waiting] == {"error_code": ErrorCode.not_coordinator, "member_id": "a"}


# --- the tables of transitions ---


def test_the_ring_is_closed() -> None:
    assert set(NEXT) == set(HEARTBEAT) == set(DELETE) == set(State)
    for state in State:
        assert State.DEAD in NEXT[state]
    assert NEXT[State.DEAD] == {State.DEAD}
    reachable, seen = [State.EMPTY], {State.EMPTY}
    while reachable:
        for state in NEXT[reachable.pop()] - seen:
            seen.add(state)
            reachable.append(state)
    assert seen == set(State)
