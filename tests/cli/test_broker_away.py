"""A broker that has the only replica of a partition is away: each command says so without waiting for a time-out, and
says what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.broker.group.partitioning import partition_for
from tests.cli.conftest import OTTLA, TIMEOUT_S, Result, run_forked
from tests.cli.test_processes import Dev, alive

OFFSETS = "__consumer_offsets"
SETTINGS = ("--set", "offsets.topic.replication.factor=1", "--set", "offsets.topic.num.partitions=2")
AWAY = "broker 0 is away, and no other broker has a replica"
SOON_S = 40.0  # less than any time-out that the commands waited for before the fix; enough on a loaded machine


class Halved(NamedTuple):
    """Two brokers, of which the first was killed. The killed broker coordinated the group `lost`; the other broker
    coordinates the group `kept`."""

    environment: dict[str, str]
    lost: str
    kept: str

    def ottla(self, *arguments: str) -> Result:
        """Runs `ottla`, which has to end within SOON_S."""
        begun = time.monotonic()
        result = run_forked(arguments, b"", self.environment)
        assert time.monotonic() - begun < SOON_S
        return result


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Halved]:
    dev = Dev(tmp_path_factory.mktemp("halved") / "data", environment, "--brokers", "2", *SETTINGS)
    variables = environment | {"OTTLA_BOOTSTRAP": dev.bootstrap}
    for name, assignment in (("orders", "0,1"), ("healthy", "1")):
        created = run_forked(("topics", "create", name, "--assignment", assignment), b"", variables)
        assert created.code == 0, created.stderr
    read = ("consume", "healthy", "--group", "anybody", "--idle", "0.5")
    assert run_forked(read, b"", variables).code == 0  # the read creates the offsets topic
    described = run_forked(("topics", "describe", OFFSETS, "--json"), b"", variables).json
    leaders = {row["partition"]: row["leader"] for row in described[0]["partitions"]}
    names = {leaders[partition_for(f"group-{number}", 2)]: f"group-{number}" for number in range(50)}
    for name in names.values():
        read = ("consume", "healthy", "--group", name, "--idle", "0.5")
        assert run_forked(read, b"", variables).code == 0
    os.kill(dev.broker_pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_S
    while len(run_forked(("cluster", "status", "--json"), b"", variables).json["brokers"]) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield Halved(variables, lost=names[0], kept=names[1])
    dev.stop()


@pytest.mark.parametrize(
    "command",
    [
        "consume healthy --group {} --from-beginning",
        "groups describe {}",
        "groups delete {} --yes",
        "groups reset-offsets {} --all-topics --to-earliest",
    ],
)
def test_a_group_whose_coordinator_is_away_is_not_said_to_be_missing(halved: Halved, command: str) -> None:
    result = halved.ottla(*command.format(halved.lost).split())
    assert (result.code, result.stdout) == (1, "")
    assert f"group '{halved.lost}' has no coordinator: {OFFSETS}:" in result.stderr
    assert AWAY in result.stderr
    assert f"ottla topics alter {OFFSETS} --replication-factor 3" in result.stderr


def test_a_list_of_groups_says_that_it_is_not_all(halved: Halved) -> None:
    result = halved.ottla("groups", "list", "--json")
    assert halved.kept in [row["group"] for row in result.json]
    assert halved.lost not in [row["group"] for row in result.json]
    assert AWAY in json.loads(result.stderr)["warning"]["message"]
    names = (f"nobody-{number}" for number in range(50))
    nobody = next(name for name in names if partition_for(name, 2) == partition_for(halved.kept, 2))
    assert halved.ottla("groups", "describe", nobody).code == 4


@pytest.mark.parametrize("command", ["consume orders --from-beginning -e", "consume orders", "offsets orders"])
def test_a_partition_without_a_leader_is_named_with_the_broker(halved: Halved, command: str) -> None:
    result = halved.ottla(*command.split())
    assert (result.code, result.stdout) == (1, "")
    assert f"orders:0 has no leader: {AWAY}" in result.stderr
    assert halved.ottla("offsets", "orders:1").code == 0


def test_a_record_for_a_partition_without_a_leader_is_not_a_matter_of_time(halved: Halved) -> None:
    result = halved.ottla("produce", "orders", "--partition", "0", "--value", "x", "--timeout", "2")
    assert result.code == 1
    assert f"orders:0 has no leader: {AWAY}" in result.stderr
    assert "--timeout" not in result.stderr


def test_a_broker_that_is_away_is_listed(halved: Halved) -> None:
    rows = halved.ottla("brokers", "list", "--json").json
    assert [(row["id"], row["state"], row["host"] is None) for row in rows] == [
        (0, "away", True),
        (1, "running", False),
    ]
    assert rows[0]["replicas"] >= 1
    assert halved.ottla("cluster", "--json").json["away"] == [0]
    status = halved.ottla("cluster", "status")
    assert "no leader: broker 0 is away" in status.stdout
    assert "Broker 0 is away." in status.stderr


def test_a_run_that_waits_for_records_says_what_keeps_them_away(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "data", environment, "--brokers", "2", *SETTINGS)
    variables = environment | {"OTTLA_BOOTSTRAP": dev.bootstrap}
    assert run_forked(("topics", "create", "orders", "--assignment", "0"), b"", variables).code == 0
    with (tmp_path / "said").open("wb") as said:
        command = [*OTTLA, "consume", "orders", "--max-messages", "5", "--timeout", "15"]
        reader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=variables)
    time.sleep(4)
    os.kill(dev.broker_pid, signal.SIGKILL)
    try:
        assert reader.wait(TIMEOUT_S) == 1
    finally:
        if alive(reader.pid):
            reader.kill()
    words = (tmp_path / "said").read_text().splitlines()
    assert [line.split(":")[0] for line in words] == ["warning", "error"]
    assert all(f"orders:0 has no leader: {AWAY}" in line for line in words)
    dev.stop()


def test_a_broker_that_is_away_is_not_emptied_unless_somebody_says_so(halved: Halved) -> None:
    refused = halved.ottla("balance", "plan", "--window", "0.1")
    assert (refused.code, refused.stderr) == (
        1,
        "error: broker 0 is away, and all its replicas would be copied to other brokers. Start the broker. If it will "
        "not come back, say --without 0.\n",
    )
    planned = halved.ottla("balance", "plan", "--window", "0.1", "--without", "0", "--json").json
    assert {"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["any"]} in planned["partitions"]
