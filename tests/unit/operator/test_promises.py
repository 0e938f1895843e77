"""The tests that docs/kubernetes.md names as proofs exist, and its two lists of promises are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_every_promise_names_tests_that_are_there(pytestconfig: pytest.Config) -> None:
    root = Path(pytestconfig.rootpath)
    promises = (root / "docs/kubernetes.md").read_text().partition("## What is promised")[2]
    lines = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", promises, re.MULTILINE)
    assert [int(number) for number, _, _ in lines] == [*range(1, 27), *range(1, 13)]
    everywhere = _defined(root / "tests")
    on_kubernetes = _defined(root / "tests/e2e")
    for number, promise, shown_by in lines:
        named = re.findall(r"`(test_\w+)`( \(e2e\))?", shown_by)
        assert named or "not yet" in shown_by, f"{number}, {promise}: neither a test nor the words 'not yet' are named"
        for test, mark in named:
            assert test in everywhere, f"{number}, {promise}: there is no test {test}"
            assert (test in on_kubernetes) == bool(mark), (
                f"{number}, {promise}: (e2e) stands behind {test} although it doesn't run there, or is missing"
            )


def _defined(folder: Path) -> set[str]:
    found = re.compile(r"def (test_\w+)")
    return {name for path in folder.rglob("test_*.py") for name in found.findall(path.read_text())}
