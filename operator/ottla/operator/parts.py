"""The parts of a reconcile: what is done, in which order, and what each part needs.

A part that fails stops only those that declare that they need it: whatever is refused, the rest goes on. What becomes
of a part is told in one of these ways. It is done; or it waits for something outside, which its own findings tell
(`NotYet`) or a `Trouble` that is nobody's failure (`Awaited`); or it fails, which is a `Trouble`, and each part that
needed it is one, too, because it wasn't done.

The time of a visit is divided, so that a part that gets no answer can't keep the last ones from being reached.
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
from ottla.operator.status import Trouble

PART_S_MAX = 45.0
ALL_S_MAX = 100.0  # within the queue's limit, so that there is time for the status

_V = TypeVar("_V")


class NotYet(Exception):
    """A part can't be done before something has come about; the sentence says what."""


def _nothing(_: object) -> tuple[Object, ...]:
    return ()


@dataclass(frozen=True)
class Part(Generic[_V]):
    """One row of the table."""

    name: str
    does: Callable[[_V], Awaitable[None]]
    needs: tuple[str, ...] = ()
    plans: Callable[[_V], Iterable[Object]] = _nothing  # the objects that it keeps: they aren't pruned
    reads: bool = False  # it changes nothing that the spec asks for, and is done while the resource is paused


def checked(parts: Sequence[Part[_V]]) -> tuple[Part[_V], ...]:
    """The table, if each part needs only parts that stand above it and every name is there once."""
    known: set[str] = set()
    for part in parts:
        assert part.name not in known, f"{part.name} stands in the table twice"
        assert known.issuperset(part.needs), f"{part.name} needs a part that doesn't stand above it: {part.needs}"
        known.add(part.name)
    return tuple(parts)


async def carry_out(
    parts: Sequence[Part[_V]], visit: _V, *, paused: bool = False, clock: Callable[[], float] = monotonic
) -> list[Trouble]:
    """Does each part whose needs are met; what kept the others from being done, in the order of the table."""
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
                    raise Retry("it wasn't reached: the parts before it took too long")
                async with timeout(left_s):
                    await part.does(visit)
            except NotYet:
                later.add(part.name)
            except Awaited as error:
                troubles[part.name] = Trouble(part.name, "Waiting", str(error))
            except Retry as error:
                troubles[part.name] = Trouble(part.name, "Refused", str(error), error)
            except TimeoutError as error:
                troubles[part.name] = Trouble(part.name, "Refused", f"{part.name} took too long", error)
            except Exception as error:  # whatever it is, it stops only this part
                message = f"{part.name} failed unexpectedly ({type(error).__name__}): {why(error)}"
                troubles[part.name] = Trouble(part.name, "Unexpected", message, error)
    return list(troubles.values())
