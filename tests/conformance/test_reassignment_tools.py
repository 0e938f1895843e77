"""Apache Kafka's tools that move replicas and leaders, against three brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.apache_kafka import tool
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaCluster]:
    """Three brokers, without automatic balancing of leaders."""
    with ottla_cluster(tmp_path_factory.mktemp("three"), auto_leader_rebalance_enable="false") as cluster:
        yield cluster


def replicas(cluster: OttlaCluster, topic: str, index: int) -> list[int]:
    return list(cluster.partition(topic, index).replica_nodes)


def create(cluster: OttlaCluster, topic: str, assignment: str) -> None:
    options = ("--create", "--topic", topic, "--replica-assignment", assignment)
    tool("topics", "--bootstrap-server", cluster.bootstrap, *options)


def reassign(cluster: OttlaCluster, file: Path, partitions: dict[int, list[int]], *options: str) -> str:
    moves = [{"topic": "moved", "partition": index, "replicas": to} for index, to in partitions.items()]
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    servers = ("--bootstrap-server", cluster.bootstrap)
    return tool("reassign-partitions", *servers, "--reassignment-json-file", str(file), *options)


def test_replicas_are_moved_with_a_throttle(three: OttlaCluster, tmp_path: Path) -> None:
    one, two, other = range(len(three.brokers))
    create(three, "moved", f"{one}:{two},{one}:{two}")
    tool("console-producer", "--bootstrap-server", three.bootstrap, "--topic", "moved", input="a\nb\nc\n" * 50)
    file = tmp_path / "moves.json"
    wanted = {0: [other, two], 1: [other, two, one]}
    begun = reassign(three, file, wanted, "--throttle", "10000000", "--execute")
    assert "Successfully started partition reassignments for moved-0,moved-1" in begun
    said: dict[str, Any] = {}

    def verified() -> bool:
        said["last"] = reassign(three, file, wanted, "--verify")
        return "is completed" in said["last"] and "still in progress" not in said["last"]

    three.wait("the moves", verified)
    assert "Clearing topic-level throttles on topic moved" in said["last"]
    assert [replicas(three, "moved", index) for index in (0, 1)] == list(wanted.values())
    listed = tool("reassign-partitions", "--bootstrap-server", three.bootstrap, "--list")
    assert "No partition reassignments found" in listed


def test_a_plan_of_ottlas_balance_is_executed(three: OttlaCluster, tmp_path: Path) -> None:
    create(three, "level", ",".join(["0"] * 6))
    file = tmp_path / "plan.json"
    asked = ("balance", "plan", "--goal", "leaders", "--window", "0.1", "--out", str(file))
    command = (sys.executable, "-m", "ottla.cli.main", *asked, "--bootstrap", three.bootstrap)
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    wanted = {one["partition"]: one["replicas"] for one in json.loads(file.read_text())["partitions"]}
    assert len(wanted) >= 2
    options = ("--bootstrap-server", three.bootstrap, "--reassignment-json-file", str(file))
    assert "Successfully started" in tool("reassign-partitions", *options, "--execute")
    three.wait("the moves", lambda: "still in progress" not in tool("reassign-partitions", *options, "--verify"))
    for one in json.loads(file.read_text())["partitions"]:
        assert replicas(three, one["topic"], one["partition"]) == one["replicas"]


def test_leaders_are_elected(three: OttlaCluster) -> None:
    one, two, _ = range(len(three.brokers))
    create(three, "elected", f"{one}:{two}")
    drained = ("--entity-type", "brokers", "--entity-default", "--add-config", f"ottla.brokers.drained={one}")
    tool("configs", "--bootstrap-server", three.bootstrap, "--alter", *drained)
    three.wait("another leader", lambda: three.partition("elected", 0).leader_id == two)
    undrained = ("--entity-type", "brokers", "--entity-default", "--delete-config", "ottla.brokers.drained")
    tool("configs", "--bootstrap-server", three.bootstrap, "--alter", *undrained)
    election = ("--election-type", "preferred", "--topic", "elected", "--partition", "0")
    held = tool("leader-election", "--bootstrap-server", three.bootstrap, *election)
    assert "Successfully completed leader election (PREFERRED) for partitions elected-0" in held
    assert three.partition("elected", 0).leader_id == one
    again = tool("leader-election", "--bootstrap-server", three.bootstrap, *election)
    assert "Valid replica already elected for partitions elected-0" in again
