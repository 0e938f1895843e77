"""Gathers refusals while several objects are changed, so that a refusal of one object doesn't stop the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.operator.queue import Retry


class Awaited(Retry):
    """A change isn't refused, but has to wait for something that happens by itself."""


class NameTaken(Retry):
    """An object with a name that the cluster needs exists, and belongs to another owner."""


class Refusals:
    """Gathers the refusals of several changes; the first one is raised when all changes were tried."""

    def __init__(self) -> None:
        self._errors: list[Retry] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A context for the change of one object: a Retry that is raised inside is gathered."""
        try:
            yield
        except Retry as error:
            self._errors.append(error)

    def told(self) -> None:
        """Raises the first refusal, if any, with a count of the others. Refusals of invalid objects come first. Raises
        an Awaited only if all refusals are Awaited."""
        self._errors.sort(key=lambda error: (isinstance(error, Awaited), not error.invalid))
        others = {str(error) for error in self._errors} - {str(error) for error in self._errors[:1]}
        if others:
            kind = Awaited if isinstance(self._errors[0], Awaited) else Retry
            first = kind(f"{self._errors[0]} (and {len(others)} more)")
            first.invalid = self._errors[0].invalid
            raise first from self._errors[0]
        if self._errors:
            raise self._errors[0]
