"""Several objects are each brought to what they are to be, whatever becomes of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.operator.queue import Retry


class Awaited(Retry):
    """It isn't refused, but has to wait for something that happens by itself."""


class NameTaken(Retry):
    """An object that the cluster needs is there and belongs to somebody else."""


class Refusals:
    """Gathers what was refused, to be told once everything was tried."""

    def __init__(self) -> None:
        self._errors: list[Retry] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Around one object."""
        try:
            yield
        except Retry as error:
            self._errors.append(error)

    def told(self) -> None:
        """Raises the first refusal, and says how many other ones there were."""
        self._errors.sort(key=lambda error: isinstance(error, Awaited))
        others = {str(error) for error in self._errors} - {str(error) for error in self._errors[:1]}
        if others:
            kind = Awaited if isinstance(self._errors[0], Awaited) else Retry
            raise kind(f"{self._errors[0]} (and {len(others)} more)") from self._errors[0]
        if self._errors:
            raise self._errors[0]
