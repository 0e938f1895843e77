"""The examples of a property: a fifth in `make unit`, and all in `make test`."""

from __future__ import annotations

from hypothesis import settings


def examples(full: int) -> int:
    """The number of examples of a property: `full` in `make test`, and a fifth of `full` in `make unit`. Their
    Hypothesis profiles (`tests/conftest.py`) have 100 and 20 examples, and the result is in proportion to these
    numbers."""
    return full * settings.default.max_examples // 100


def among(full: range) -> range:
    """The seeds of `full` to be tried: every fifth in `make unit`, and all in `make test`."""
    return full[:: 100 // examples(100)]
