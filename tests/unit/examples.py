"""The examples of a property: a fifth in `make unit`, and all in `make test`."""

from __future__ import annotations

from hypothesis import settings


def examples(full: int) -> int:
    """Scales `full` to the profile: with 100 examples, Hypothesis' default, the result is `full`."""
    return full * settings.default.max_examples // 100


def among(full: range) -> range:
    """Each fifth of `full` in `make unit`, and all in `make test`."""
    return full[:: 100 // examples(100)]
