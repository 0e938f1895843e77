"""The names of the planted bugs, and the tool to plant them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BUGS: dict[str, Callable[[], None]] = {}


def bug(planting: Callable[[], None]) -> Callable[[], None]:
    """Decorator: registers a function that plants a bug; the function's name is the bug's name."""
    BUGS[planting.__name__.replace("_", " ")] = planting
    return planting


def replace_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces an attribute by the result of `make`, which gets the original."""
    setattr(owner, name, make(getattr(owner, name)))
