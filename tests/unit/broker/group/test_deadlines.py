"""The deadlines of a classic group, and the delay of its first rebalance."""

from __future__ import annotations

from ottla.broker.group.deadlines import JOIN, MEMBER_ID, SESSION, SYNC, Deadlines, InitialDelay
from ottla.broker.group.effects import NEVER_MS, Now
from ottla.broker.group.roster import Member, Roster


def member_of(roster: Roster, member_id: str, session_timeout_ms: int = 10_000) -> Member:
    member = Member(member_id, None, "", "", 60_000, session_timeout_ms, (("range", b""),))
    roster.add(member, "consumer")
    return member


def test_a_renewed_session_postpones_its_deadline_and_leaves_the_wake_up_as_it_is() -> None:
    roster = Roster()
    deadlines, member = Deadlines(roster), member_of(roster, "a")
    deadlines.renew_session(member, Now(1_000, 0))
    deadlines.renew_session(member, Now(4_000, 0))
    assert member.session_deadline_ms == 14_000
    assert deadlines.wake_ms == 11_000
    deadlines.settle()
    assert deadlines.wake_ms == 14_000


def test_a_shorter_session_wakes_earlier() -> None:
    roster = Roster()
    deadlines = Deadlines(roster)
    deadlines.renew_session(member_of(roster, "a"), Now(0, 0))
    deadlines.renew_session(member_of(roster, "b", 6_000), Now(0, 0))
    assert deadlines.wake_ms == 6_000


def test_deadlines_of_one_time_are_due_in_a_fixed_order() -> None:
    roster = Roster()
    deadlines = Deadlines(roster)
    deadlines.sync_ms = deadlines.arm(5)
    for name in ("b", "a"):
        member_of(roster, name).session_deadline_ms = 5
    roster.pending["c"] = 5
    deadlines.join_ms = 5
    member_of(roster, "later").session_deadline_ms = 6
    assert deadlines.due(Now(5, 0)) == [
        (5, JOIN, ""),
        (5, MEMBER_ID, "c"),
        (5, SESSION, "a"),
        (5, SESSION, "b"),
        (5, SYNC, ""),
    ]


def test_without_a_deadline_nobody_is_woken() -> None:
    deadlines = Deadlines(Roster())
    deadlines.arm(5)
    deadlines.settle()
    assert deadlines.wake_ms == NEVER_MS


def test_the_initial_delay_goes_on_while_members_come_and_the_rebalance_time_out_allows() -> None:
    delay, lengths = InitialDelay(3_000, 7_000), []
    for _ in range(5):
        delay.member_came = True
        lengths.append(delay.next_ms(3_000))
    assert lengths == [3_000, 3_000, 1_000, None, None]


def test_the_initial_delay_is_over_when_nobody_came() -> None:
    assert InitialDelay(3_000, 7_000).next_ms(3_000) is None
