"""Brokers of an older commit beside brokers of this one, under load: a rolling update, half-way and back.

The older commit is the one before HEAD, or OTTLA_PREVIOUS: any commit that git knows, such as the last release.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ottla.metadata.features import OFF, TRANSACTIONS
from ottla.metadata.intents.features import UpgradeType
from tests.crash.faults import scene
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.previous import previous_sources
from tests.peers.wire import Wire

UPDATE_FEATURES = 57

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """The sources of the older commit."""
    return previous_sources(tmp_path / "previous", "ottla", "broker", "controller")


def started_from(broker: OttlaBroker, sources: Path) -> list[str]:
    """The broker's command with these sources instead of the installed ones.

    `python -m` searches the working directory first, then PYTHONPATH, then the installed packages.
    """
    roots = os.pathsep.join(str(sources / root) for root in (".", "broker", "controller"))
    env = shutil.which("env")
    assert env is not None
    return [env, "-C", str(sources), f"PYTHONPATH={roots}", *broker.command]


def test_a_rolling_update_from_the_previous_commit_and_half_way_back(tmp_path: Path, previous: Path) -> None:
    with scene(tmp_path, ("elections", "ISR changes")) as here:
        newest = [broker.command for broker in here.cluster.brokers]
        older = [started_from(broker, previous) for broker in here.cluster.brokers]
        # The older commit may not know all features of a new cluster, and then its brokers wouldn't start.
        with Wire(here.cluster.brokers[0].bootstrap) as wire:
            off = {"feature": TRANSACTIONS, "max_version_level": OFF, "upgrade_type": UpgradeType.SAFE_DOWNGRADE}
            assert wire.call(UPDATE_FEATURES, 1, {"timeout": 10_000, "feature_updates": [off]}).error_code == 0
        # All brokers change to the older commit, and then back to this one. In between, brokers of each version lead,
        # follow and are the controller beside brokers of the other version.
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
