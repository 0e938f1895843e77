"""The deadlines of a classic group: sessions, unused member ids, the waits for JoinGroups and for SyncGroups. Pure.

The shell calls the group's `time_passed` at `Deadlines.wake_ms`, which isn't later than the next deadline. A heartbeat
only postpones a deadline, so it doesn't change the timer. If no deadline is due at a wake-up, the next deadline is
computed, and nothing else happens.

All times are of the shell's steady clock, in ms. Source: Kafka's GroupMetadataManager; KIP-62, KIP-134.
"""

from __future__ import annotations

from dataclasses import dataclass

from .effects import NEVER_MS, Now
from .roster import Member, Roster

JOIN, MEMBER_ID, SESSION, SYNC = "join", "member id", "session", "sync"  # the order of equal deadlines


class Deadlines:
    """The deadlines of the members of `roster`, and of the group as a whole.

    At `join_ms` a rebalance stops waiting for JoinGroups, at `sync_ms` a generation stops waiting for SyncGroups; None
    while the group doesn't wait. The deadline of a session is in its `Member`, that of an unused member id in
    `Roster.pending`.
    """

    __slots__ = ("_roster", "join_ms", "sync_ms", "wake_ms")

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.wake_ms = NEVER_MS
        self.join_ms: int | None = None
        self.sync_ms: int | None = None

    def arm(self, at_ms: int) -> int:
        """Makes sure that the group is woken at `at_ms` or earlier. Returns `at_ms`."""
        self.wake_ms = min(self.wake_ms, at_ms)
        return at_ms

    def renew_session(self, member: Member, now: Now) -> None:
        """Begins the session of `member` anew: its deadline is one session time-out after `now`."""
        at_ms = now.steady_ms + member.session_timeout_ms
        member.session_deadline_ms = at_ms
        if at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def due(self, now: Now) -> list[tuple[int, str, str]]:
        """Every deadline that has passed, in the order of time: (time in ms, kind, member id). The kind is JOIN,
        MEMBER_ID, SESSION or SYNC; the member id is empty for JOIN and SYNC."""
        now_ms = now.steady_ms
        found = [
            (at_ms, SESSION, member.member_id)
            for member in self._roster
            if (at_ms := member.session_deadline_ms) is not None and at_ms <= now_ms
        ]
        found += [(at_ms, MEMBER_ID, member_id) for member_id, at_ms in self._roster.pending.items() if at_ms <= now_ms]
        for waits_until_ms, kind in ((self.join_ms, JOIN), (self.sync_ms, SYNC)):
            if waits_until_ms is not None and waits_until_ms <= now_ms:
                found.append((waits_until_ms, kind, ""))
        found.sort()
        return found

    def settle(self) -> None:
        """Sets `wake_ms` to the next deadline. Before, `wake_ms` may have been earlier than that, because deadlines
        were postponed."""
        ahead = [member.session_deadline_ms for member in self._roster]
        ahead += self._roster.pending.values()
        ahead += (self.join_ms, self.sync_ms)
        self.wake_ms = min((at_ms for at_ms in ahead if at_ms is not None), default=NEVER_MS)


@dataclass(slots=True)
class InitialDelay:
    """The delay of an empty group's first rebalance, for the other members of a starting application (KIP-134).

    `delay_ms` is the length of the present delay. The delays after it last `remaining_ms` at most, together.
    """

    delay_ms: int
    remaining_ms: int
    member_came: bool = False

    def next_ms(self, delay_max_ms: int) -> int | None:
        """Begins the next delay and returns its length in ms, if a member came during the present delay and time
        remains. Returns None if the rebalance needs no further delay."""
        if not self.member_came or self.remaining_ms <= 0:
            return None
        self.member_came = False
        next_ms = min(delay_max_ms, self.remaining_ms)
        self.remaining_ms = max(self.remaining_ms - self.delay_ms, 0)
        self.delay_ms = next_ms
        return next_ms
