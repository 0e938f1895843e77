"""What goes wrong with which request to Kubernetes, by a seed; nothing of it is done here.

Requests of one process overtake each other, so a fault isn't drawn in the order in which they come: it follows from the
seed, from what is asked, and from how often that was asked before. The same seed gives the same request the same fault,
whatever else is under way. The namespace's name isn't part of what is asked, because each run has its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from random import Random

REFUSALS = (500, 503, 429, 409)
NO_REFUSALS_OF_READS = (409,)
LATE_S = (0.2, 4.0)
TOO_LATE_S = 35.0  # longer than the operator waits for an answer
WATCHED_S = (1.0, 40.0)
WATCHED_EVENTS_MAX = 12
_NAMESPACE = re.compile(r"/namespaces/[^/]+/")


@dataclass(frozen=True)
class Fault:
    """What happens to one request; nothing, where all is as it was made."""

    refused: int = 0  # is answered with this status, and the API server never sees it
    lost: bool = False  # is done, and 500 is the answer
    cut: str = ""  # the connection ends "before" it is done, or "after", without an answer
    twice: str = ""  # is done twice, and the "first" or the "second" answer is given
    late_s: float = 0.0  # is answered so much later than it was done
    death: str = ""  # the operator dies "before" it is done, or "after", without the answer
    watched_s: float = 0.0  # so long a watch lasts, or
    watched_events: int = 0  # this number of events
    ends: str = ""  # how a watch ends: in "order", "torn" in the middle of an event, with 410 "gone"

    @property
    def name(self) -> str:
        """In a word or two, with what a table of faults counts; empty where nothing goes wrong."""
        if self.refused:
            return f"refused: {self.refused}"
        if self.death:
            return f"death {self.death} a write"
        if self.ends:
            return f"watch ended: {self.ends}"
        if self.cut:
            return f"cut {self.cut} it is done"
        if self.twice:
            return f"done twice, {self.twice} answer"
        if self.lost:
            return "done, and 500"
        if self.late_s:
            return "answered too late" if self.late_s >= TOO_LATE_S else "answered late"
        return ""


NOTHING = Fault()
KINDS = ("refused", "cut", "done, and 500", "done twice", "answered late", "watch ended", "death")  # how names begin


def missing(counts: Iterable[str]) -> list[str]:
    """Kinds of faults that none of these names is of."""
    return [kind for kind in KINDS if not any(name.startswith(kind) for name in counts)]


@dataclass(frozen=True)
class Chances:
    """How likely each trouble is, of each request that it can happen to."""

    refused: float = 0.03
    lost: float = 0.015
    cut: float = 0.015
    late: float = 0.03
    too_late: float = 0.1  # of late answers
    twice: float = 0.03  # of writes, as are deaths
    death: float = 0.02
    ends: float = 0.8  # of watches


class Faults:
    """The faults of one seed."""

    def __init__(self, seed: int, chances: Chances) -> None:
        wrong = [each.name for each in fields(chances) if not 0 <= getattr(chances, each.name) <= 1]
        if wrong:
            raise ValueError(f"not between 0 and 1: the chances of {', '.join(wrong)}")
        self.counts: Counter[str] = Counter()  # by name
        self.calm = False  # nothing goes wrong any more
        self._seed = seed
        self._chances = chances
        self._asked: Counter[str] = Counter()

    def of(self, method: str, path: str, *, watch: bool = False) -> Fault:
        """What happens to this request; one that is asked for again is another one."""
        asked = f"{method} {_NAMESPACE.sub('/', path)}{' watched' if watch else ''}"
        self._asked[asked] += 1
        if self.calm:
            return NOTHING
        random = Random(f"{self._seed} {asked} {self._asked[asked]}")
        fault = self._of_watch(random) if watch else self._of_request(random, reads=method == "GET")
        if fault.name:
            self.counts[fault.name] += 1
        return fault

    def _of_watch(self, random: Random) -> Fault:
        if refused := self._refusal(random, reads=True):
            return Fault(refused=refused)
        if random.random() >= self._chances.ends:
            return NOTHING
        ends = random.choice(("order", "torn", "gone"))
        return Fault(
            watched_s=random.uniform(*WATCHED_S), watched_events=random.randint(1, WATCHED_EVENTS_MAX), ends=ends
        )

    def _of_request(self, random: Random, *, reads: bool) -> Fault:
        chances = self._chances
        if not reads and random.random() < chances.death:
            return Fault(death=random.choice(("before", "after")))
        if refused := self._refusal(random, reads=reads):
            return Fault(refused=refused)
        if random.random() < chances.lost:
            return Fault(lost=True)
        if random.random() < chances.cut:
            return Fault(cut=random.choice(("before", "after")))
        if not reads and random.random() < chances.twice:
            return Fault(twice=random.choice(("first", "second")))
        if random.random() < chances.late:
            return Fault(late_s=TOO_LATE_S if random.random() < chances.too_late else random.uniform(*LATE_S))
        return NOTHING

    def _refusal(self, random: Random, *, reads: bool) -> int:
        if random.random() >= self._chances.refused:
            return 0
        return random.choice([status for status in REFUSALS if not reads or status not in NO_REFUSALS_OF_READS])
