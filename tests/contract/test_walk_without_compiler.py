"""Repeats test_produce_in_turn and test_inspectors in a process with the walk of records in Python, as on machines
without a compiler.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.protocol import record_walk

WITHOUT_NATIVE = """
import sys
import pytest
sys.modules["ottla.protocol._record_walk"] = None
from ottla.protocol import record_walk
assert not record_walk.NATIVE
sys.exit(pytest.main(["-q", "-x", "--tb=short", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
FILES = ("tests/unit/broker/api/test_produce_in_turn.py", "tests/unit/broker/test_inspectors.py")


@pytest.mark.skipif(not record_walk.NATIVE, reason="this process has the walk in Python already")
def test_turns_are_taken_with_the_walk_in_python_as_with_the_native_one() -> None:
    command = [sys.executable, "-c", WITHOUT_NATIVE, *FILES]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
