"""Brokers of the previous commit beside those of this one, under load: a rolling update, half-way and back."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.crash.faults import scene
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.tools import ROOT

pytestmark = pytest.mark.timeout(150)

PARTS = ("ottla", "broker", "controller")


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """The sources as they were before the newest commit; skips where the clone has no older commit, or isn't one."""
    archive = ["git", "-C", str(ROOT), "archive", "--format=tar", "HEAD~1", *PARTS]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the previous commit (git fetch --deepen 1): {done.stderr.decode().strip()}")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as sources:
        sources.extractall(folder, filter="data")
    return folder


def started_from(broker: OttlaBroker, sources: Path) -> list[str]:
    """The broker's command with these sources instead of the installed ones.

    `python -m` looks into the working directory first, then into PYTHONPATH, then where Ottla is installed.
    """
    roots = os.pathsep.join(str(sources / root) for root in (".", "broker", "controller"))
    env = shutil.which("env")
    assert env is not None
    return [env, "-C", str(sources), f"PYTHONPATH={roots}", *broker.command]


def test_a_rolling_update_from_the_previous_commit_and_half_way_back(tmp_path: Path, previous: Path) -> None:
    with scene(tmp_path, ("elections", "ISR changes")) as here:
        newest = [broker.command for broker in here.cluster.brokers]
        older = [started_from(broker, previous) for broker in here.cluster.brokers]
        # Everybody older, then everybody new; on the way each version leads, follows and decides beside the other.
        for commands in (older, newest):
            for broker, command in zip(here.cluster.brokers, commands, strict=True):
                here.fault("restart as another version")
                broker.stop()
                broker.command = command
                broker.start_again()
                here.in_sync()
                here.goes_on()
        # A mixed cluster whose leader and whose controller die.
        here.cluster.brokers[0].stop()
        here.cluster.brokers[0].command = older[0]
        here.cluster.brokers[0].start_again()
        here.in_sync()
        for victim in dict.fromkeys((here.leader(), here.cluster.controller())):
            here.kill(victim)
            here.goes_on()
            here.cluster.brokers[victim].start_again()
            here.in_sync()
