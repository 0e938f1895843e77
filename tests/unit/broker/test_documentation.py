"""The generated pages of docs/ are up to date."""

from pathlib import Path

import pytest

from ottla.broker.documentation import PAGES

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run `make docs`"
