"""How often a property is tried: with a fifth of its examples in `make unit`, and with all of them in `make test`."""

from __future__ import annotations

from hypothesis import settings


def examples(full: int) -> int:
    """As many of `full` as Hypothesis' profile takes of the 100 that are its own default."""
    return full * settings.default.max_examples // 100
