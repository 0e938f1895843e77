"""A proposal, the unit of the controller's decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.metadata.store import Guard, Write


@dataclass(frozen=True, slots=True)
class Proposal:
    """Writes to the metadata store that are applied together if all guards hold (keys still have the revisions that the
    decision was based on), and not at all otherwise."""

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]
