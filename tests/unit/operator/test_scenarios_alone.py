"""Two runs of the end-to-end scenarios on one machine come one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.alone import alone

SECOND = """
import sys
from pathlib import Path
from tests.e2e.alone import alone
with alone(Path(sys.argv[1])):
    print("begins", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_waits_for_the_first_also_where_that_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", SECOND, str(lock)]
    root = Path(__file__).resolve().parents[3]
    runs = []
    try:
        with alone(lock):
            runs.append(subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert runs[0].stdout is not None
            assert "waits for its end" in runs[0].stdout.readline()
        assert runs[0].stdout.readline() == "begins\n"
        runs.append(subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert runs[1].stdout is not None
        assert "waits for its end" in runs[1].stdout.readline()
        runs[0].kill()
        assert runs[1].stdout.readline() == "begins\n"
    finally:
        for each in runs:
            each.kill()
            each.wait()
