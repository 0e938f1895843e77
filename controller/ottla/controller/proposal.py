"""What the controller's decisions are made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.metadata.store import Guard, Write


@dataclass(frozen=True, slots=True)
class Proposal:
    """Writes that are applied together, if all guards hold."""

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]
