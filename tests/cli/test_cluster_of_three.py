"""Moves of replicas, drained brokers and elections by the command line, on three brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TIMEOUT_S, Ottla, Result, run_forked

SETTINGS = ("offsets.topic.num.partitions=1", "auto.leader.rebalance.enable=false")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Ottla]:
    """Runs `ottla` against three brokers that share one embedded store."""
    folder = tmp_path_factory.mktemp("three")
    processes: list[subprocess.Popen[str]] = []
    addresses = []
    try:
        for node in (1, 2, 3):
            settings = (
                f"node.id={node}",
                f"log.dirs={folder / str(node)}",
                "listeners=PLAINTEXT://127.0.0.1:0",
                f"ottla.metadata.store=embedded:{folder / 'metadata.db'}",
                f"broker.rack={'ab'[node % 2]}",
                *SETTINGS,
            )
            command = [sys.executable, "-m", "ottla.cli.server", *(word for one in settings for word in ("--set", one))]
            log = folder / f"{node}.log"
            with open(log, "wb") as errors:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            processes.append(process)
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "bootstrap=" in line, log.read_text()
            addresses.append(line.partition("bootstrap=")[2].split()[0])

        def run(*arguments: str, input: bytes = b"", **variables: str) -> Result:
            return run_forked(arguments, input, environment | {"OTTLA_BOOTSTRAP": ",".join(addresses)} | variables)

        yield run
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()


def done(result: Result) -> Any:
    assert result.code == 0, result.stderr
    return result.json


def replicas(three: Ottla, topic: str) -> list[list[int]]:
    described = done(three("topics", "describe", topic, "--json"))
    return [row["replicas"] for row in described[0]["partitions"]]


def test_a_plan_is_made_executed_and_looked_after(three: Ottla, tmp_path: Path) -> None:
    assert three("topics", "create", "skewed", "--assignment", "1,1,1,1,1,1").code == 0
    for number in range(5):
        assert three("produce", "skewed", "--value", f"record {number}").code == 0
    heading, *rows = three("reassign", "plan", "--topic", "skewed").stdout.splitlines()
    assert heading.split() == ["TOPIC", "PARTITION", "FROM", "TO"]
    assert [row.split()[0] for row in rows] == ["skewed"] * 4
    file = tmp_path / "plan.json"
    planned = done(three("reassign", "plan", "--topic", "skewed", "--out", str(file), "--json"))
    assert planned == json.loads(file.read_text())
    assert planned["version"] == 1
    assert {one["log_dirs"][0] for one in planned["partitions"]} == {"any"}
    assert len(planned["partitions"]) == 4
    executed = three("reassign", "execute", str(file), "--throttle", "100000000", "--wait", "30", "--json")
    assert done(executed) == {"begun": 4, "done": True}
    assert sorted(map(tuple, replicas(three, "skewed"))) == [(1,), (1,), (2,), (2,), (3,), (3,)]
    assert {row["state"] for row in done(three("reassign", "status", str(file), "--json"))} == {"done"}
    settings = done(three("configs", "describe", "topic", "skewed", "--json"))
    assert not [row for row in settings if "throttled" in row["name"]]
    again = three("reassign", "plan", "--topic", "skewed")
    assert "spread evenly over the brokers" in again.stderr + again.stdout
    counted = sum(row["count"] for row in done(three("offsets", "skewed", "--json")))
    assert counted == 5


def test_a_move_that_cannot_end_is_undone(three: Ottla, tmp_path: Path) -> None:
    assert three("topics", "create", "stuck", "--assignment", "1:2").code == 0
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "stuck", "partition": 0, "replicas": [9]}]}))
    refused = three("reassign", "execute", str(file))
    assert refused.code == 1
    assert "error: " in refused.stderr
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "nope", "partition": 0, "replicas": [1]}]}))
    assert three("reassign", "execute", str(file)).code == 4
    assert done(three("reassign", "cancel", "--all", "--json")) == {"undone": []}
    assert three("reassign", "cancel").code == 2
    file.write_text("{")
    assert three("reassign", "status", str(file)).code == 2
    narrow = three("reassign", "plan", "--broker", "1", "--topic", "stuck")
    assert narrow.code == 1
    assert "1 broker can't hold the 2 replicas that partitions of topic 'stuck' have" in narrow.stderr
    assert three("reassign", "plan", "--broker", "7").code == 2


def test_a_broker_is_drained_and_back(three: Ottla) -> None:
    assert three("topics", "create", "pairs", "--partitions", "6", "--replication-factor", "2").code == 0
    drained = done(three("brokers", "drain", "2", "--replicas", "--json"))
    assert drained["still_led"] == 0
    rows = {row["id"]: row for row in done(three("brokers", "list", "--json"))}
    assert (rows[2]["leads"], rows[2]["replicas"], rows[2]["drained"]) == (0, 0, True)
    assert all(2 not in two for two in replicas(three, "pairs"))
    status = done(three("cluster", "status", "--json"))
    assert (status["drained"], status["moves"]) == ([2], 0)
    assert done(three("brokers", "undrain", "2", "--json")) == {"undrained": [2]}
    assert not done(three("cluster", "status", "--json"))["drained"]
    assert three("brokers", "drain", "8").code == 4


def test_leaders_are_elected(three: Ottla) -> None:
    assert three("topics", "create", "elect", "--assignment", "1:3,1:3").code == 0
    assert done(three("brokers", "drain", "1", "--json"))["drained"] == [1]
    assert three("brokers", "undrain", "1").code == 0
    trouble = done(three("cluster", "status", "--json"))["partitions"]
    assert {"not led by the preferred replica"} == {row["trouble"] for row in trouble if row["topic"] == "elect"}
    elected = done(three("topics", "elect", "elect:0", "--json"))
    assert elected == [{"topic": "elect", "partition": 0}]
    assert len(done(three("topics", "elect", "elect", "--json"))) == 1
    assert done(three("topics", "elect", "--unclean", "--yes", "--json")) == []
    assert done(three("cluster", "--json"))["without_leader"] == 0


def test_brokers_are_levelled_by_what_they_bear(three: Ottla, tmp_path: Path) -> None:
    """A topic is on one broker of three. A plan is made and carried out; the same plan then has nothing left to
    move."""
    done(three("topics", "create", "heavy", "-p", "6", "-r", "1", "--json"))
    skewed = {"version": 1, "partitions": [{"topic": "heavy", "partition": n, "replicas": [1]} for n in range(6)]}
    (tmp_path / "skewed.json").write_text(json.dumps(skewed))
    done(three("reassign", "execute", str(tmp_path / "skewed.json"), "--wait", "60", "--json"))
    records = (b"x" * 1000 + b"\n") * 2000
    done(three("produce", "heavy", "--json", input=records))

    status = done(three("balance", "status", "--window", "1", "--json"))
    rows = {row["broker"]: row for row in status["brokers"]}
    assert rows[1]["disk_bytes"] > rows[2]["disk_bytes"]
    assert "leaders" in rows[1]["out_of_balance"]
    assert all(row["cores"] is not None for row in rows.values())

    file = tmp_path / "level.json"
    planned = done(three("balance", "plan", "--window", "0.1", "--out", str(file), "--json"))
    assert json.loads(file.read_text())["partitions"] == planned["partitions"] != []
    assert {effect["goal"] for effect in planned["effects"]} == {"replicas", "disk", "cpu", "leaders"}
    moved = done(three("balance", "run", str(file), "--throttle", "50000000", "--at-once", "1", "--json"))
    assert moved == {"moved": len(planned["partitions"])}
    assert done(three("balance", "run", str(file), "--json")) == {"moved": 0}
    levelled = done(three("balance", "status", "--goal", "replicas", "--goal", "leaders", "--window", "0.1", "--json"))
    assert [row["out_of_balance"] for row in levelled["brokers"]] == [[], [], []]
    settings = done(three("configs", "describe", "topic", "heavy", "--json"))
    assert not [row for row in settings if "throttled.replicas" in row["name"] and row["value"]]


def test_a_goal_that_there_isnt(three: Ottla) -> None:
    refused = three("balance", "plan", "--goal", "speed")
    assert (refused.code, refused.stderr) == (
        2,
        "error: 'speed' is no goal. Goals are racks, replicas, disk, cpu, leaders.\n",
    )
