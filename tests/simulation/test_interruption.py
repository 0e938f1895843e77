"""A swarm that ends before its last seed prints how many runs it has counted, and which of them failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.simulation import catches
from tests.simulation_operator import catches as operator_catches

# Swarms, each with a planted bug, further arguments, and the table of the seeds that catch its bugs.
SWARMS = {
    "tests.simulation.swarm": ("acknowledged before the isr has it", ["--jobs", "1"], catches.TABLE),
    "tests.simulation_operator.swarm": ("a recovery deletes topics", [], operator_catches.TABLE),
}


def first_caught(swarm: str) -> int:
    bug, _, table = SWARMS[swarm]
    return table.recorded()[bug].seed


def command(swarm: str, *arguments: str) -> list[str]:
    bug, others, _ = SWARMS[swarm]
    seeds = f"{first_caught(swarm)}-99999"
    return [sys.executable, "-m", swarm, "--seeds", seeds, "--planted", bug, *others, *arguments]


def check_summary(swarm: str, printed: str) -> None:
    failed = re.findall(r"^seed (\d+) fails", printed, re.MULTILINE)
    assert f"failing: [{', '.join(failed)}]" in printed, printed
    assert failed[0] == str(first_caught(swarm))
    (runs,) = re.findall(r"^(\d+) runs", printed, re.MULTILINE)
    assert int(runs) >= len(failed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("swarm", SWARMS)
def test_a_swarm_that_is_interrupted_says_what_it_has_counted(swarm: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        command(swarm), stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": "0"}
    ) as program:
        assert program.stdout is not None
        first = program.stdout.readline()
        program.send_signal(number)
        printed, _ = program.communicate(timeout=200)
    check_summary(swarm, first + printed)
    assert f"interrupted by {number.name}" in printed
    assert program.returncode == 128 + number


@pytest.mark.parametrize("swarm", SWARMS)
def test_a_swarm_whose_time_is_over_says_what_it_has_counted(swarm: str) -> None:
    # On a busy machine the whole time may be over before the first run.
    done = subprocess.run(
        command(swarm, "--seconds", "12"),
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    check_summary(swarm, done.stdout)
    assert done.returncode == 1
