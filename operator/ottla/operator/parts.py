"""The parts of a reconcile: they are done in a fixed order, and each declares the parts that it needs.

A part that fails stops only the parts that need it; all others are done. Each part ends in one of these ways:

- It is done.
- It waits for something outside of the operator. It says so by its own findings (`NotYet`), or by a `Trouble` that
  doesn't count as a failure (`Awaited`).
- It fails, which is a `Trouble`. Each part that needs it becomes a `Trouble`, too, because it wasn't done.

Each part may take only a share of a reconcile's time. So if a part gets no answer, the parts after it are reached all
the same.
"""

from __future__ import annotations

from asyncio import timeout
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from ottla.operator.objects import Object
from ottla.operator.queue import Retry, why
from ottla.operator.refusals import Awaited
from ottla.operator.status import INVALID, Trouble

PART_S_MAX = 45.0
ALL_S_MAX = 100.0  # less than the queue's limit, so that there is time to write the status

_V = TypeVar("_V")


class NotYet(Exception):
    """A part can't be done yet; its text says what it waits for."""


def _nothing(_: object) -> tuple[Object, ...]:
    return ()


@dataclass(frozen=True)
class Part(Generic[_V]):
    """A part of a reconcile: one row of the table. `needs`: the names of the parts that it needs."""

    name: str
    does: Callable[[_V], Awaitable[None]]
    needs: tuple[str, ...] = ()
    plans: Callable[[_V], Iterable[Object]] = _nothing  # the objects that it applies, which aren't pruned
    reads: bool = False  # it carries out no change of the spec, so it is done while the Cluster is paused, too


def checked(parts: Sequence[Part[_V]]) -> tuple[Part[_V], ...]:
    """Returns the table `parts`. Raises AssertionError if a part needs one that doesn't stand above it, or a name
    occurs twice."""
    known: set[str] = set()
    for part in parts:
        assert part.name not in known, f"{part.name} stands in the table twice"
        assert known.issuperset(part.needs), f"{part.name} needs a part that doesn't stand above it: {part.needs}"
        known.add(part.name)
    return tuple(parts)


async def carry_out(
    parts: Sequence[Part[_V]], visit: _V, *, paused: bool = False, clock: Callable[[], float] = monotonic
) -> list[Trouble]:
    """Does each part whose needs are met. Returns the `Trouble`s of the other parts, in the table's order. A part that
    raises NotYet, or that the pause leaves out, has none."""
    troubles: dict[str, Trouble] = {}
    later: set[str] = set()
    end = clock() + ALL_S_MAX
    for part in parts:
        if paused and not part.reads:
            later.add(part.name)
        elif blocking := next((need for need in part.needs if need in troubles), ""):
            troubles[part.name] = Trouble(part.name, "Waiting", f"waits for {blocking}, which isn't done")
        elif not later.isdisjoint(part.needs):
            later.add(part.name)
        else:
            left_s = min(PART_S_MAX, end - clock())
            try:
                if left_s <= 0:
                    raise Retry("the part wasn't reached, because the parts before it took too long")
                async with timeout(left_s):
                    await part.does(visit)
            except NotYet:
                later.add(part.name)
            except Awaited as error:
                troubles[part.name] = Trouble(part.name, "Waiting", str(error))
            except Retry as error:
                reason = INVALID if error.invalid else "Refused"
                troubles[part.name] = Trouble(part.name, reason, str(error), error)
            except TimeoutError as error:
                troubles[part.name] = Trouble(part.name, "Refused", f"{part.name} took too long", error)
            except Exception as error:  # any error stops only this part
                message = f"{part.name} failed unexpectedly ({type(error).__name__}): {why(error)}"
                troubles[part.name] = Trouble(part.name, "Unexpected", message, error)
    return list(troubles.values())
