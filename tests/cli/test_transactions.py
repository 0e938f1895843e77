"""`ottla transactions`, `produce --transactional-id` and `consume --isolation` against a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition

from tests.cli.conftest import OTTLA, TIMEOUT_S, Ottla

VERIFICATION = "transaction.partition.verification.enable"


@contextmanager
def begun(bootstrap: str, transactional_id: str) -> Iterator[KafkaProducer]:
    """A producer that has begun a transaction."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def write(producer: KafkaProducer, topic: str, *values: str, timestamp_ms: int | None = None) -> None:
    for value in values:
        producer.send(topic, value.encode(), partition=0, timestamp_ms=timestamp_ms).get(TIMEOUT_S)


def read(ottla: Ottla, topic: str, *options: str, isolation: str = "read_committed") -> list[str]:
    read = ottla("consume", topic, "-e", "--isolation", isolation, *(options or ("--from-beginning",)))
    assert read.code == 0, read.stderr
    return read.stdout.split()


@pytest.fixture
def unverified(ottla: Ottla) -> Iterator[None]:
    """Sets `transaction.partition.verification.enable` to false on all brokers during a test. Then a partition's leader
    accepts transactional records even if the producer hasn't added the partition to its transaction."""
    brokers = [str(row["id"]) for row in ottla("brokers", "list", "--json").json]
    for broker in brokers:
        changed = ottla("configs", "alter", "broker", broker, "--set", f"{VERIFICATION}=false")
        assert changed.code == 0, changed.stderr
    yield
    for broker in brokers:
        assert ottla("configs", "alter", "broker", broker, "--reset", VERIFICATION).code == 0


def hang(bootstrap: str, topic: str, transactional_id: str, *, timestamp_ms: int | None = None) -> None:
    """Leaves a hanging transaction in partition 0: writes a record in a transaction, but doesn't tell the transaction's
    coordinator of the partition. So the coordinator never ends the transaction there."""
    with begun(bootstrap, transactional_id) as producer:
        producer._transaction_manager._partitions_in_transaction.add(TopicPartition(topic, 0))
        write(producer, topic, "hangs", timestamp_ms=timestamp_ms)


def test_an_open_transaction_is_shown_and_aborted_as_a_whole(ottla: Ottla, topic: str, bootstrap: str) -> None:
    name = f"id-{topic}"
    with begun(bootstrap, name) as producer:
        write(producer, topic, "a", "b")
        [listed] = ottla("transactions", "list", "--state", "ongoing", "--pattern", f"id-{topic[:-1]}.", "--json").json
        assert (listed["transactional_id"], listed["state"]) == (name, "Ongoing")
        number = str(listed["producer_id"])
        assert ottla("transactions", "list", "--producer-id", number, "--json").json == [listed]
        assert ottla("transactions", "list", "--pattern", topic, "--json").json == []
        assert listed in ottla("transactions", "list", "--longer-than", "0s", "--json").json
        assert ottla("transactions", "list", "--longer-than", "1d", "--json").json == []

        [described] = ottla("transactions", "describe", name, "--json").json
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert (described["producer_id"], described["timeout_ms"]) == (listed["producer_id"], 60_000)
        assert abs(described["start_ms"] / 1000 - time.time()) < TIMEOUT_S
        shown = ottla("transactions", "describe", name).stdout
        assert f"{name}   Ongoing   producer {number}, epoch " in shown
        [remembered] = ottla("transactions", "producers", topic, "--open", "--json").json
        assert (remembered["partition"], remembered["start_offset"], remembered["last_sequence"]) == (0, 0, 1)

        assert ottla("transactions", "find-hanging", topic, "--older-than", "0s", "--json").json == []
        refused = ottla("transactions", "abort", f"{topic}:0", "--start-offset", "0", "--yes")
        assert refused.code == 1
        assert f"belongs to transactional id '{name}', which is in state Ongoing" in refused.stderr
        assert f"`ottla transactions terminate {name}`" in refused.stderr

        ended = ottla("transactions", "terminate", name, "--yes", "--json")
        assert ended.json == [{"transactional_id": name, "old_state": "Ongoing"}], ended.stderr
        [described] = ottla("transactions", "describe", name, "--json").json
        assert (described["state"], described["partitions"], described["start_ms"]) == ("Empty", [], None)
        assert ottla("transactions", "producers", topic, "--open", "--json").json == []
    assert read(ottla, topic) == []
    assert read(ottla, topic, isolation="read_uncommitted") == ["a", "b"]


def test_a_hanging_transaction_is_found_and_aborted(ottla: Ottla, topic: str, bootstrap: str, unverified: None) -> None:
    hang(bootstrap, topic, f"old-{topic}", timestamp_ms=int(time.time() * 1000) - 1_000_000)
    ottla("produce", topic, "-p", "0", "-v", "behind")
    assert read(ottla, topic) == []
    found = ottla("transactions", "find-hanging", "--json")
    [row] = [row for row in found.json if row["topic"] == topic]
    assert (row["partition"], row["start_offset"], row["transactional_id"]) == (0, 0, f"old-{topic}")
    assert "abort TOPIC:PARTITION --start-offset" in ottla("transactions", "find-hanging", topic).stderr
    assert ottla("transactions", "find-hanging", f"{topic}:1", "--json").json == []
    assert ottla("transactions", "find-hanging", topic, "--older-than", "1h").stderr == "No transaction hangs.\n"

    at = ("transactions", "abort", f"{topic}:0")
    missing = ottla(*at, "--start-offset", "5", "--yes")
    assert (missing.code, f"Open ones begin at: 0 (producer {row['producer_id']})" in missing.stderr) == (4, True)
    unsure = ottla(*at, "--start-offset", "0")
    assert (unsure.code, "Say --yes" in unsure.stderr) == (2, True)
    aborted = ottla(*at, "--producer-id", str(row["producer_id"]), "--yes", "--json")
    assert aborted.json["start_offset"] == 0, aborted.stderr
    assert ottla(*at, "--start-offset", "0", "--yes").code == 4
    assert read(ottla, topic) == ["behind"]


def test_committed_records_end_at_the_first_open_transaction(ottla: Ottla, topic: str, bootstrap: str) -> None:
    with begun(bootstrap, f"id-{topic}") as producer:
        write(producer, topic, "a", "b")
        producer.abort_transaction()
        producer.begin_transaction()
        write(producer, topic, "c", "d")
        producer.commit_transaction()  # a, b, marker, c, d, marker: the next offset is 6
        producer.begin_transaction()
        write(producer, topic, "e")
        ottla("produce", topic, "-p", "0", "-v", "f")

        assert read(ottla, topic) == ["c", "d"]
        assert read(ottla, topic, isolation="read_uncommitted") == ["a", "b", "c", "d", "e", "f"]
        assert read(ottla, topic, "--offset", "-2") == ["d"]
        assert read(ottla, topic, "--timestamp", "1h") == ["c", "d"]
        assert read(ottla, f"{topic}:0", "--offset", "7") == []
        cut = ottla("consume", f"{topic}:0", "--offset", "4:8", "--isolation", "read_committed")
        assert (cut.stdout, cut.stderr) == (
            "d\n",
            f"warning: no committed record has offset 7 yet in {topic}:0. The read ends at the present end instead.\n",
        )
        group = (
            "--group",
            f"g-{topic}",
            "--from-beginning",
            "-n",
            "2",
            "--idle",
            "20",
            "--isolation",
            "read_committed",
        )
        assert ottla("consume", topic, *group).stdout.split() == ["c", "d"]

        producer.commit_transaction()
        assert read(ottla, topic) == ["c", "d", "e", "f"]
        assert ottla("consume", topic, *group).stdout.split() == ["e", "f"]


def test_all_records_of_a_run_are_one_transaction(ottla: Ottla, topic: str) -> None:
    produce = ("produce", topic, "-p", "0", "--transactional-id", f"id-{topic}")
    written = ottla(*produce, input=b"a\nb\n")
    assert (written.code, written.stdout) == (0, f"2 records written to {topic} in one transaction.\n"), written.stderr
    failed = ottla(*produce, "--format", "json", input=b'{"value": "c"}\nno\n')
    assert failed.code == 1
    assert "line 2: not JSON" in failed.stderr
    assert "(1 record written); the transaction is aborted." in failed.stderr
    written = ottla(*produce, "-v", "d", "--json")
    assert (written.json["transactional_id"], written.json["records"]) == (f"id-{topic}", 1)
    assert ottla(*produce).stdout == f"0 records written to {topic} in one transaction.\n"
    assert read(ottla, topic) == ["a", "b", "d"]
    assert read(ottla, topic, isolation="read_uncommitted") == ["a", "b", "c", "d"]


def started(bootstrap: str, environment: dict[str, str], topic: str) -> Any:
    """A run of `ottla produce` that has written a record in a transaction, and waits for more input."""
    command = ["produce", topic, "-p", "0", "--transactional-id", f"id-{topic}", "-b", bootstrap]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process: Any = subprocess.Popen([*OTTLA, *command], env=environment, **pipes)
    process.stdin.write(b"a\n")
    process.stdin.flush()
    return process


def wait_until_written(ottla: Ottla, topic: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not read(ottla, topic, isolation="read_uncommitted"):
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_aborts(
    ottla: Ottla, topic: str, bootstrap: str, environment: dict[str, str], number: int, code: int
) -> None:
    process = started(bootstrap, environment, topic)
    wait_until_written(ottla, topic)
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stderr) == (code, b"1 record written; the transaction is aborted.\n")
    assert ottla("transactions", "producers", topic, "--open", "--json").json == []
    assert read(ottla, topic) == []


def test_a_run_whose_id_is_taken_over_fails(
    ottla: Ottla, topic: str, bootstrap: str, environment: dict[str, str]
) -> None:
    process = started(bootstrap, environment, topic)
    wait_until_written(ottla, topic)
    assert ottla("produce", topic, "-p", "0", "--transactional-id", f"id-{topic}", "-v", "b").code == 0
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (1, b"")
    assert b"another producer has taken it over" in stderr
    assert read(ottla, topic) == ["b"]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("transactions describe nothing", 4, "`ottla transactions list` shows all of them"),
        ("transactions terminate nothing --yes", 4, "transactional id 'nothing' doesn't exist"),
        ("transactions list --state emty", 2, "Did you mean 'Empty'?"),
        ("transactions list --longer-than 15", 2, "Write a time as 90s, 15m"),
        ("transactions list --pattern (", 2, "not a regular expression"),
        ("transactions find-hanging --older-than -5m", 2, "Write a time as 90s, 15m"),
        ("transactions find-hanging nowhere", 4, "topic 'nowhere' doesn't exist"),
        ("transactions abort TOPIC:0", 2, "Give either --start-offset OFFSET or --producer-id N"),
        ("transactions abort TOPIC --start-offset 0 --yes", 2, "Write TOPIC:PARTITION"),
        ("transactions abort TOPIC:0,1 --start-offset 0 --yes", 2, "is not one partition"),
        ("transactions abort TOPIC:0 --start-offset 0 --yes", 4, "No transaction is open in it"),
        ("produce TOPIC -v x --transactional-id id --acks 1", 2, "--acks 1 don't go together"),
        ("produce TOPIC -v x --transactional-id=", 2, "the transactional id is empty"),
        ("produce TOPIC -v x --transactional-id id --transaction-timeout 100000", 1, "transaction.max.timeout.ms"),
        ("consume TOPIC --isolation committed", 2, "Say one of: read_uncommitted, read_committed"),
    ],
)
def test_mistakes(ottla: Ottla, topic: str, command: str, code: int, words: str) -> None:
    refused = ottla(*command.replace("TOPIC", topic).split())
    assert (refused.code, refused.stderr.count("\n")) == (code, 1), refused.stderr
    assert words in refused.stderr


def test_ids_are_suggested(ottla: Ottla, topic: str) -> None:
    name = f"flights-{uuid.uuid4().hex}"
    assert ottla("produce", topic, "-v", "x", "--transactional-id", name).code == 0
    assert f"Did you mean '{name}'?" in ottla("transactions", "describe", name[:-1]).stderr
