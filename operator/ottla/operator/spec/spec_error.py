"""What reading a spec ends with where the spec can't be carried out. Pure."""

from __future__ import annotations


class SpecError(ValueError):
    """A spec that can't be carried out: one sentence for the person who wrote it."""
