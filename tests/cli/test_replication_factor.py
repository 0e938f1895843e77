"""More and fewer replicas: by `ottla topics alter`, and by an `ottla dev` that has more brokers than before."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.cli.conftest import TIMEOUT_S, run_forked
from tests.cli.test_processes import Dev

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def ottla(dev: Dev, environment: dict[str, str], *arguments: str) -> Any:
    """Runs `ottla`, which has to succeed, and returns its output, decoded from JSON."""
    result = run_forked((*arguments, "--json"), b"", environment | {"OTTLA_BOOTSTRAP": dev.bootstrap})
    assert result.code == 0, result.stderr
    return result.json


def factors(dev: Dev, environment: dict[str, str]) -> dict[str, int]:
    return {row["name"]: row["replication_factor"] for row in ottla(dev, environment, "topics", "list", "--internal")}


def test_a_dev_that_has_grown_raises_what_was_there_and_nothing_that_was_wished_otherwise(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    data = tmp_path / "data"
    small = ("--set", "offsets.topic.num.partitions=3", "--set", "transaction.state.log.num.partitions=3")
    variables = environment | {"OTTLA_TOPICS": "alone:1:1,orders:2"}
    dev = Dev(data, variables, *small)
    read = ("consume", "orders", "--group", "billing", "--from-beginning", "--idle", "1")
    assert run_forked(read, b"", environment | {"OTTLA_BOOTSTRAP": dev.bootstrap}).code == 0
    write = ("produce", "orders", "--transactional-id", "billing", "--value", "paid")
    assert ottla(dev, environment, *write)
    assert factors(dev, environment) == {"alone": 1, "orders": 1, OFFSETS: 1, TRANSACTIONS: 1}
    assert dev.stop() == 0

    dev = Dev(data, variables, *small, "--brokers", "3")
    wanted = {"alone": 1, "orders": 3, OFFSETS: 3, TRANSACTIONS: 3}
    deadline = time.monotonic() + TIMEOUT_S
    while factors(dev, environment) != wanted or ottla(dev, environment, "reassign", "status"):
        assert time.monotonic() < deadline, factors(dev, environment)
        time.sleep(0.2)
    assert ottla(dev, environment, "topics", "create", "later", "-r", "1")
    described = ottla(dev, environment, "topics", "describe", TRANSACTIONS)[0]
    assert described["configs"]["min.insync.replicas"] == "2", "a decision is in two logs before a client is answered"
    assert [len(partition["isr"]) for partition in described["partitions"]] == [3] * 3
    assert ottla(dev, environment, *write), "the id's producer goes on under the coordinator of three replicas"
    assert dev.stop() == 0

    dev = Dev(data, environment, *small)  # as many brokers as before, so no topic is to get more replicas
    time.sleep(2)
    assert factors(dev, environment) == wanted | {"later": 1}
    assert dev.stop() == 0


def test_a_topic_gets_more_and_fewer_replicas_by_one_command(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "data", environment, "--brokers", "3", "--set", "offsets.topic.num.partitions=2")
    assert ottla(dev, environment, "topics", "create", "orders", "-p", "4", "-r", "1")
    raised = ottla(dev, environment, "topics", "alter", "orders", "-r", "3")
    assert (raised["replication_factor"], raised["moves"]) == (3, 4)
    rows = ottla(dev, environment, "topics", "describe", "orders")[0]["partitions"]
    assert [sorted(row["isr"]) for row in rows] == [[0, 1, 2]] * 4
    leaders = [row["leader"] for row in rows]

    variables = environment | {"OTTLA_BOOTSTRAP": dev.bootstrap}
    again = run_forked(("topics", "alter", "orders", "-r", "3"), b"", variables)
    assert again.stdout == "Topic orders changed: all its partitions have 3 replicas.\n"
    dry = run_forked(("topics", "alter", "orders", "-r", "2", "--validate-only"), b"", variables)
    assert dry.stdout == "Topic orders could be changed: 4 partitions to 2 replicas.\n"
    lowered = run_forked(("topics", "alter", "orders", "-p", "6", "-r", "2"), b"", variables)
    assert lowered.stdout == "Topic orders changed: 6 partitions to 2 replicas, all in sync.\n", lowered.stderr
    rows = ottla(dev, environment, "topics", "describe", "orders")[0]["partitions"]
    assert [len(row["replicas"]) for row in rows] == [2] * 6
    assert [row["leader"] for row in rows][:4] == leaders, "the leaders stay"
    refused = run_forked(("topics", "alter", "orders", "-r", "4", "-c", "retention.ms=1", "--json"), b"", variables)
    assert refused.code == 1
    assert json.loads(refused.stderr)["error"]["message"] == "4 replicas need as many brokers, and 3 run"
    assert "retention.ms" not in str(ottla(dev, environment, "topics", "describe", "orders")), "nothing changes"
    assert dev.stop() == 0
