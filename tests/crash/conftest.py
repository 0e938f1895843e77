"""What the scenes have seen, in all: printed at the end, and a zero fails a run of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash import sightings

FOLDER = Path(__file__).parent
SCENES = {path.name for path in FOLDER.glob("test_cluster_*.py")} - {"test_cluster_unclean.py"}  # which has no clients

_left_out: list[pytest.Item] = []


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _left_out.extend(item for item in items if item.path.name in SCENES)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What nobody has seen all along was never tried, however green the tests are."""
    everything = {item.path.name for item in session.items if item.path.parent == FOLDER} >= SCENES and not _left_out
    if everything and not session.config.option.collectonly and sightings.never_seen():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if sightings.in_all:
        missing = ", ".join(sightings.never_seen()) or "nothing"
        terminalreporter.write_line(f"crash tests have seen {dict(sightings.in_all)}; missing: {missing}")
