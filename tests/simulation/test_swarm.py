"""The swarm in its short form, that a seed is a run, and that planted bugs are caught.

`make swarm SEEDS=0-9999` runs the long form; `python -m tests.simulation.swarm --planted all --seeds 0-499` prints the
table of planted bugs and the seeds that catch them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

SEEDS = "0-99"  # so few that what they find is a regression, and not a new bug; those are for `make swarm`

# Some bugs, and seeds that catch them: the whole table takes an hour.
CAUGHT_BY = {
    "a coordinator answers before the commit is committed": "0-49",
    "consumers read what isnt committed": "0-49",
    "followers truncate to their high watermark": "0-49",
    "followers dont truncate": "0-49",
}


def swarm(*arguments: str, module: str = "swarm") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"tests.simulation.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )


def test_a_short_swarm() -> None:
    done = swarm("--seeds", SEEDS)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.parametrize("seed", ["3", "8"])
def test_the_same_seed_is_the_same_run(seed: str) -> None:
    digests = {
        tuple(re.findall(r"digest (\w+), ([\d.]+) s, (\d+) steps", swarm(seed, module="scenario").stdout))
        for _ in range(2)
    }
    assert len(digests) == 1
    assert digests != {()}


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_planted_bugs_are_caught(bug: str) -> None:
    done = swarm("--planted", bug, "--seeds", CAUGHT_BY[bug], "--stop")
    assert "fails" in done.stdout, done.stdout + done.stderr
