"""Users in Kafka whose User resource is gone: which are removed, and when. Pure; the time is an input.

No finalizer keeps a User until Kafka has forgotten it. The operator sees only that no User has the name of a recorded
user (`recorded_users.py`) any more. A person may have deleted the User, or it may have been lost with the definition of
its kind. Therefore:

1. A user is removed only after its name was without a User for `SETTLE_S`, so that a User which is deleted and made
   again doesn't lose its rights in between.
2. While the definition isn't there, or is being deleted, no user is removed. A user whose User is older than the
   definition is kept until a User has its name again: that User vanished with an earlier definition.
3. If the operator may not read the definition, users are kept if all of them lost their User at once.

Unlike a topic, a user loses no data when it is removed, and who deletes a User wants to take its access away. So users
that lose their Users without their definition never wait for a person, however many they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.operator.plan.orphans import Definition, Unreadable
from ottla.operator.plan.recorded_users import Given

SETTLE_S = 10.0


class Verdict(NamedTuple):
    """Which users to remove now, and in how many seconds to look again (None: no user has to settle)."""

    due: tuple[str, ...] = ()
    look_again_s: float | None = None


class Departures:
    """The users of one cluster that lost their User lately. They are kept in memory: for a new process of the operator,
    all have just lost it."""

    def __init__(self) -> None:
        self._noticed: dict[str, float] = {}

    def judge(
        self,
        now: float,
        recorded: Mapping[str, Given],
        claimed: Collection[str],
        definition: Definition | Unreadable | None,
    ) -> Verdict:
        """Decides about all recorded users. `now`: seconds of any monotonic clock; `claimed`: the names that Users
        have; `definition` is None if the kind isn't defined."""
        former = recorded.keys() - claimed
        self._noticed = {name: self._noticed.get(name, now) for name in former}
        if not former or definition is None or (isinstance(definition, Definition) and definition.deleting):
            return Verdict()
        if isinstance(definition, Unreadable) and former == recorded.keys():
            return Verdict()
        since = definition.created if isinstance(definition, Definition) else ""
        leaving = {name for name in former if recorded[name].created >= since}
        due = tuple(sorted(name for name in leaving if now - self._noticed[name] >= SETTLE_S))
        pauses = [SETTLE_S - now + self._noticed[name] for name in leaving.difference(due)]
        return Verdict(due, min(pauses, default=None))
