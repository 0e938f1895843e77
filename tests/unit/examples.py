"""The number of examples of a property: a fifth in `make unit`, and all in `make test`."""

from __future__ import annotations

from hypothesis import settings


def examples(full: int) -> int:
    """`full`, scaled by the share of 100, Hypothesis' default, that the profile asks for."""
    return full * settings.default.max_examples // 100
