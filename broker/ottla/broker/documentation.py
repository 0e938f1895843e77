"""Writes the generated pages of docs/: `python -m ottla.broker.documentation` in the repository's root.

A unit test fails when a page in the repository differs from the page that its source gives.
"""

from collections.abc import Callable
from pathlib import Path

from ottla.broker.api.compatibility import compatibility_page
from ottla.broker.api.registry import ROUTES
from ottla.broker.metrics.catalogue import metrics_page
from ottla.settings.page import settings_page

PAGES: dict[str, Callable[[], str]] = {
    "compatibility.md": lambda: compatibility_page(route.api for route in ROUTES.values() if not route.api.own_name),
    "metrics.md": metrics_page,
    "settings.md": settings_page,
}
"""A file's name in docs/ → the function that returns its text."""


def main() -> None:
    """Writes every page into docs/ of the current directory."""
    for name, make in PAGES.items():
        Path("docs", name).write_text(make())


if __name__ == "__main__":
    main()
