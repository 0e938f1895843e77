"""The last of the crash tests: checks that every kind of event has happened in the tests that ran before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import sightings

FOLDER = Path(__file__).parent
SCENES = {path.name for path in FOLDER.glob("test_cluster_*.py")} - {"test_cluster_unclean.py"}  # it has no clients


def test_every_kind_of_event_was_seen(request: pytest.FixtureRequest) -> None:
    """If a kind of event has happened in no test, the tests prove nothing about it, even if they pass."""
    names = {item.path.name for item in request.session.items if item.path.parent == FOLDER}
    if not names >= SCENES or not sightings.in_all:
        pytest.skip("this process hasn't run all of the scenes")
    missing = sightings.never_seen()
    print(f"\ncrash tests have seen {dict(sightings.in_all)}; missing: {', '.join(missing) or 'nothing'}")
    assert not missing
