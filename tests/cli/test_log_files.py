"""`ottla log dump|verify` and `ottla adopt` on the files of a broker that has stopped."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from ottla.protocol.batches import assign
from ottla.protocol.codecs import Codec
from tests.cli.test_processes import Dev, run
from tests.fuzz.made_batches import record, seal
from tests.unit.broker.log.workbench import Workbench, transact

Environment = dict[str, str]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """The log directory of a broker that wrote three records to `orders` and committed an offset; it has stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    dev = Dev(folder / "data", environment | {"OTTLA_TOPICS": "orders:2:1"})
    at = ("-b", dev.bootstrap)
    for value in ("a", "b", "c"):
        assert run(environment, "produce", "orders", "-p", "1", "-k", "k", "-v", value, *at).returncode == 0
    moved = run(
        environment, "groups", "reset-offsets", "g", "--topic", "orders:1", "--to-offset", "2", "--execute", *at
    )
    assert moved.returncode == 0, moved.stderr
    assert dev.stop() == 0
    return folder / "data" / "broker-0"


def test_dump(stopped: Path, environment: Environment) -> None:
    log = next((stopped / "orders-1").glob("*.log"))
    lines = run(environment, "log", "dump", str(log), "--records", "--json").stdout.splitlines()
    batches = [json.loads(line) for line in lines]
    assert [batch["base_offset"] for batch in batches] == [0, 1, 2]
    assert all(batch["is_valid"] for batch in batches)
    assert [record["value"] for batch in batches for record in batch["records"]] == ["a", "b", "c"]
    text = run(environment, "log", "dump", str(log), "-r", "-n", "1").stdout.splitlines()
    assert len(text) == 2
    assert "key=k  value=a" in text[1]
    epochs = run(environment, "log", "dump", str(stopped / "orders-1" / "leader-epoch-checkpoint"), "--json")
    assert json.loads(epochs.stdout)["start_offset"] == 0


def test_verify(stopped: Path, environment: Environment, tmp_path: Path) -> None:
    assert run(environment, "log", "verify", str(stopped / "orders-1")).returncode == 0
    broken = tmp_path / "orders-1"
    shutil.copytree(stopped / "orders-1", broken)
    log = next(broken.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[65] ^= 1
    log.write_bytes(content[:-1])
    found = run(environment, "log", "verify", str(log), "--json")
    assert found.returncode == 1
    messages = [fault["message"] for fault in json.loads(found.stdout)]
    assert "the CRC doesn't match" in messages
    assert any(message.endswith("bytes at the end are no whole batch") for message in messages)


def test_verify_says_what_makes_a_transaction_index_anew(environment: Environment, tmp_path: Path) -> None:
    log = Workbench(tmp_path / "orders-0").log()
    transact(log, 7, 0, committed=False)
    log.close()
    [index] = (tmp_path / "orders-0").glob("*.txnindex")
    assert run(environment, "log", "verify", str(tmp_path)).returncode == 0
    index.unlink()
    found = run(environment, "log", "verify", str(tmp_path))
    assert found.returncode == 1
    assert "the file is missing, and 1 aborted transaction ends in the segment" in " ".join(found.stdout.split())
    assert f"Stop the broker, delete {index.with_suffix('.index')}, and start the broker" in found.stdout
    [fault] = json.loads(run(environment, "log", "verify", str(tmp_path), "--json").stdout)
    assert (fault["topic"], fault["path"], fault["next_offset"]) == ("orders", str(index), -1)
    assert fault["repair"].startswith("Stop the broker, delete ")


def test_what_verify_says_gets_a_group_past_a_bad_batch(
    stopped: Path, environment: Environment, tmp_path: Path
) -> None:
    """A log has a bad batch that was appended before brokers checked batches. No consumer gets past the batch until the
    printed command has been run."""
    data = tmp_path / "dev" / "broker-0"
    shutil.copytree(stopped.parent, data.parent)
    (data / ".kafka_cleanshutdown").unlink()
    [log] = (data / "orders-1").glob("*.log")
    now_ms = time.time_ns() // 1_000_000
    with log.open("ab") as file:
        for offset, batch in ((3, seal(b"nonsense", 2, now_ms, codec=Codec.zstd)), (5, seal(record(0), 1, now_ms))):
            placed = bytearray(batch)
            assign(placed, 0, offset, 0)
            file.write(placed)
    found = run(environment, "log", "verify", str(data), "--json")
    assert found.returncode == 1
    [fault] = [fault for fault in json.loads(found.stdout) if fault["path"].endswith(".log")]
    assert {name: fault[name] for name in ("topic", "partition", "offset", "last_offset", "next_offset")} == {
        "topic": "orders",
        "partition": 1,
        "offset": 3,
        "last_offset": 4,
        "next_offset": 5,
    }
    told = run(environment, "log", "verify", str(data / "orders-1"))
    assert (told.returncode, "offsets 3 to 4: continue at 5" in told.stdout) == (1, True)
    assert "1 fault in" in told.stderr
    [reset] = re.findall(r"ottla (groups reset-offsets .* --execute)", told.stdout)
    [delete] = re.findall(r"ottla (delete-records .*) {3}", told.stdout)

    dev = Dev(data.parent, environment)
    at = ("-b", dev.bootstrap)
    stuck = run(environment, "consume", "orders", "-g", "g", "-n", "2", "--timeout", "5", *at)
    assert stuck.returncode != 0
    assert "value" not in stuck.stdout
    assert run(environment, *reset.replace("GROUP", "g").split(), *at).returncode == 0
    assert run(environment, "consume", "orders", "-g", "g", "-n", "1", *at).stdout.split() == ["value"]
    assert run(environment, *delete.split(), "--yes", *at).returncode == 0
    assert run(environment, "consume", "orders", "--from-beginning", "-e", *at).stdout.split() == ["value"]
    assert dev.stop() == 0


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("nothing", 4, "there is no"), ("orders-1", 2, "Name a segment's file"), ("meta.properties", 2, "neither")],
)
def test_what_is_no_log(stopped: Path, environment: Environment, name: str, code: int, words: str) -> None:
    refused = run(environment, "log", "dump", str(stopped / name))
    assert (refused.returncode, refused.stderr.count("\n")) == (code, 1)
    assert words in refused.stderr


def as_of_kafka(stopped: Path, target: Path) -> Path:
    """A copy of the directory, without the only file in it that Apache Kafka wouldn't have left."""
    shutil.copytree(stopped, target)
    (target / "ottla-lineage-checkpoint").unlink()
    return target


def test_adopted_topics_keep_ids_records_and_offsets(stopped: Path, environment: Environment, tmp_path: Path) -> None:
    data = as_of_kafka(stopped, tmp_path / "broker-0")
    shown = run(environment, "adopt", str(data), "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    assert {row["name"]: row["partitions"] for row in json.loads(shown.stdout)} == {
        "__consumer_offsets": 50,
        "orders": 2,
    }
    store = tmp_path / "metadata.sqlite"
    assert not store.exists()
    for _ in range(2):  # adopting a second time changes nothing
        adopted = run(environment, "adopt", str(data), "--store", str(store), "--json")
        assert adopted.returncode == 0, adopted.stderr
    topic_id = next(row["topic_id"] for row in json.loads(adopted.stdout) if row["name"] == "orders")

    dev = Dev(tmp_path, environment)
    at = ("-b", dev.bootstrap)
    topic = json.loads(run(environment, "topics", "describe", "orders", "--json", *at).stdout)[0]
    assert topic["topic_id"] == topic_id
    assert topic["configs"] == {"retention.bytes": "-1", "retention.ms": "-1"}
    assert run(environment, "produce", "orders", "-p", "1", "-v", "d", *at).returncode == 0
    assert run(environment, "consume", "orders", "--from-beginning", "-e", *at).stdout.split() == ["a", "b", "c", "d"]
    group = json.loads(run(environment, "groups", "describe", "g", "--json", *at).stdout)[0]
    assert group["lag"] == 2
    busy = run(environment, "adopt", str(data), "--store", str(store))
    assert (busy.returncode, "a broker uses" in busy.stderr) == (1, True)
    assert dev.stop() == 0
    # The leader epoch and the producer ids continued, and didn't start anew.
    last = json.loads(
        run(environment, "log", "dump", str(next((data / "orders-1").glob("*.log"))), "--json").stdout.splitlines()[-1]
    )
    assert last["leader_epoch"] >= 1
    assert last["producer_id"] >= 1 << 40


def test_a_directory_that_lacks_partitions(stopped: Path, environment: Environment, tmp_path: Path) -> None:
    data = as_of_kafka(stopped, tmp_path / "data")
    shutil.rmtree(data / "orders-0")
    refused = run(environment, "adopt", str(data))
    assert (refused.returncode, "lacks partitions 0" in refused.stderr) == (1, True)
    assert run(environment, "adopt", str(data), "--allow-missing").returncode == 0
