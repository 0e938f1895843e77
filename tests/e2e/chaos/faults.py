"""Chooses the fault of each request to Kubernetes, by a seed. The proxy carries the faults out.

Requests of one process overtake each other, so faults aren't drawn in the order of the requests. A fault follows from
the seed, the request, and the number of equal requests before. So with the same seed the same request gets the same
fault, whichever other requests there are. The namespace's name doesn't count as part of a request, because each run has
its own.
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
    """The fault of one request; with all defaults there is none."""

    refused: int = 0  # the request is answered with this status, and isn't forwarded to the API server
    lost: bool = False  # the request is done, and answered with 500
    cut: str = ""  # the connection ends without an answer, "before" or "after" the request is done
    twice: str = ""  # the request is done twice, and the "first" or the "second" answer is returned
    late_s: float = 0.0  # the answer is delayed by this time
    death: str = ""  # the operator dies without the answer, "before" or "after" the request is done
    watched_s: float = 0.0  # a watch ends after this time, or after
    watched_events: int = 0  # this number of events
    ends: str = ""  # how a watch ends: in "order", "torn" in the middle of an event, with 410 "gone"

    @property
    def name(self) -> str:
        """The name under which the fault is counted; empty if there is none."""
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
    """The kinds of faults to which none of these names belongs."""
    return [kind for kind in KINDS if not any(name.startswith(kind) for name in counts)]


@dataclass(frozen=True)
class Chances:
    """The probability of each fault, for each request that can have the fault."""

    refused: float = 0.03
    lost: float = 0.015
    cut: float = 0.015
    late: float = 0.03
    too_late: float = 0.1  # for late answers only
    twice: float = 0.03  # for writes only, like `death`
    death: float = 0.02
    ends: float = 0.8  # for watches only


class Faults:
    """The faults of one seed."""

    def __init__(self, seed: int, chances: Chances) -> None:
        wrong = [each.name for each in fields(chances) if not 0 <= getattr(chances, each.name) <= 1]
        if wrong:
            raise ValueError(f"the chances of {', '.join(wrong)} have to be between 0 and 1")
        self.counts: Counter[str] = Counter()  # by name
        self.calm = False  # whether there are no more faults
        self._seed = seed
        self._chances = chances
        self._asked: Counter[str] = Counter()

    def of(self, method: str, path: str, *, watch: bool = False) -> Fault:
        """The fault of this request. A repeated request gets a fault of its own."""
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
