"""Tests of the swarm: a short run finds no bug, the same seed gives the same run, and planted bugs are caught.

`make swarm SEEDS=0-9999` runs the long form; `catches.py` has the table of planted bugs and the seeds that catch them.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.simulation.catches import TABLE
from tests.simulation.fixed_hashes import run
from tests.simulation.planted import BUGS

SEEDS = "0-99"  # few seeds: a failure is a regression; new bugs are for `make swarm`


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(f"tests.simulation.{name}", *arguments, timeout_s=280)


def test_a_short_swarm() -> None:
    done = program("swarm", "--seeds", SEEDS)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.parametrize("seed", ["3", "8"])
def test_the_same_seed_is_the_same_run(seed: str) -> None:
    digests = {
        tuple(re.findall(r"digest (\w+), ([\d.]+) s, (\d+) steps", program("scenario", seed).stdout)) for _ in range(2)
    }
    assert len(digests) == 1
    assert digests != {()}


def test_each_planted_bug_was_caught() -> None:
    assert BUGS.keys() == TABLE.recorded().keys()


def test_planted_bugs_are_caught() -> None:
    done = program("catches", "--replay", "--seconds", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
