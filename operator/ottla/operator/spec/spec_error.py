"""The error that reading a spec raises if the spec can't be carried out. Pure."""

from __future__ import annotations


class SpecError(ValueError):
    """A spec that can't be carried out. Its text is one sentence for the person who wrote the spec."""
