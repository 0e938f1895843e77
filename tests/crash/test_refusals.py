"""A broker with metadata that isn't its own refuses to start, or stops; it deletes no record."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.raw import exchange, produce_request
from tests.peers.etcd import Etcd
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port

RECORDS = 20


def contents(broker: OttlaBroker) -> dict[str, bytes]:
    """The files in the broker's partition directories, with their contents."""
    files = [file for file in broker.data.glob("*-*/*") if file.is_file()]
    return {str(file.relative_to(broker.data)): file.read_bytes() for file in files}


def fill(broker: OttlaBroker) -> None:
    with Wire(broker.bootstrap) as wire:
        new = {"name": "kept", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        assert wire.call(19, 5, {"topics": [new], "timeout": 10_000}).topics[0].error_code == 0
    exchange(broker.bootstrap, produce_request("kept", b"x" * 100), 1, RECORDS)


def foreign(broker: OttlaBroker, metadata: Path) -> None:
    """Replaces the metadata store by that of another cluster."""
    other = OttlaBroker(
        metadata.parent / "other", ottla_metadata_store=f"embedded:{metadata.parent / 'other-metadata'}"
    )
    other.stop()
    (metadata.parent / "other-metadata").replace(metadata)


def empty(broker: OttlaBroker, metadata: Path) -> None:
    metadata.unlink()


def other_id(broker: OttlaBroker, metadata: Path) -> None:
    file = broker.data.parent / "server.properties"
    file.write_text(file.read_text().replace("node.id=0", "node.id=1"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (foreign, "the data directories belong to cluster"),
        (empty, "the metadata store is empty; restore the store from a backup"),
        (other_id, "node.id=0, this broker node.id=1"),
    ],
)
def test_it_refuses_to_start(tmp_path: Path, change: Callable[[OttlaBroker, Path], None], words: str) -> None:
    metadata = tmp_path / "metadata"
    broker = OttlaBroker(tmp_path / "broker", ottla_metadata_store=f"embedded:{metadata}")
    fill(broker)
    broker.stop()
    before = contents(broker)
    assert any(name.endswith(".log") and data for name, data in before.items())
    change(broker, metadata)
    started = subprocess.run(broker.command, capture_output=True, text=True, timeout=60, check=False)
    assert started.returncode == 1
    assert words in started.stderr
    assert contents(broker) == before


def test_a_store_that_is_emptied_under_it_costs_no_record(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd")
    try:
        settings = {"ottla_metadata_store": f"etcd:{etcd.endpoint}", "broker_session_timeout_ms": "2000"}
        broker = OttlaBroker(tmp_path / "broker", **settings)
        try:
            fill(broker)
            before = contents(broker)
            etcd.control("del", "--prefix", "/")
            assert broker.process.wait(60) == 1, "the broker must stop on a store that isn't its own"
        finally:
            broker.process.kill()
            broker.process.wait()
        started = subprocess.run(broker.command, capture_output=True, text=True, timeout=60, check=False)
        assert started.returncode == 1
        assert "the metadata store is empty" in started.stderr
        logs = {name: data for name, data in contents(broker).items() if name.endswith(".log")}
        assert logs == {name: data for name, data in before.items() if name.endswith(".log")}
    finally:
        etcd.kill()


@pytest.fixture(params=["embedded", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The value of `ottla.metadata.store`."""
    if request.param == "embedded":
        yield f"embedded:{tmp_path / 'metadata'}"
        return
    etcd = Etcd(tmp_path / "etcd")
    yield f"etcd:{etcd.endpoint}"
    etcd.kill()


def test_a_node_id_that_lives_is_refused_after_a_session_and_its_holder_named(tmp_path: Path, store: str) -> None:
    session_s = 3
    settings = {"ottla_metadata_store": store, "broker_session_timeout_ms": str(session_s * 1000)}
    holder = OttlaBroker(tmp_path / "holder", **settings)
    try:
        fill(holder)
        before = contents(holder)
        began = time.monotonic()
        other = [*holder.command, "--set", f"log.dirs={tmp_path / 'other'}"]
        other += ["--set", (at := f"listeners=PLAINTEXT://127.0.0.1:{free_port()}"), "--set", f"advertised.{at}"]
        refused = subprocess.run(other, capture_output=True, text=True, timeout=60, check=False)
        assert time.monotonic() - began > session_s
        assert refused.returncode == 1
        (said,) = [line for line in refused.stderr.splitlines() if line.startswith("ottla broker: ")]
        assert f"node id 0 is registered by a live broker on {platform.node()} (PLAINTEXT://{holder.bootstrap})" in said
        assert "Traceback" not in refused.stderr
        assert "draining" not in refused.stderr, "a broker that never registered announces no draining"
        exchange(holder.bootstrap, produce_request("kept", b"x" * 100), 1, RECORDS)
        assert contents(holder).keys() == before.keys()
        assert "registration epoch" not in holder.log_path.read_text()
        holder.kill()
        holder.start_again()  # the session of its killed predecessor ends in time
    finally:
        holder.kill()


def test_a_holder_that_stood_still_until_another_took_its_node_id_names_that_one_and_ends(
    tmp_path: Path, store: str
) -> None:
    """The paused broker ends with one error message for its administrator. Before the fix, it ended with a stack trace,
    as if by a bug."""
    settings = {"ottla_metadata_store": store, "broker_session_timeout_ms": "3000"}
    holder = OttlaBroker(tmp_path / "holder", **settings)
    successor = None
    try:
        fill(holder)
        before = contents(holder)
        holder.pause()
        successor = OttlaBroker(tmp_path / "successor", **settings)
        deadline = time.monotonic() + 60
        while " ready bootstrap=" not in successor.log_path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        holder.go_on()
        assert holder.process.wait(60) == 1
        log = holder.log_path.read_text()
        (said,) = [line for line in log.splitlines() if line.startswith("ottla broker: ")]
        assert f"by a live broker on {platform.node()} (PLAINTEXT://{successor.bootstrap})" in said
        assert "Traceback" not in log
        assert "draining" not in log
        assert successor.running
        assert "registration epoch" not in successor.log_path.read_text()
        after = contents(holder)
        changed = {name for name, data in before.items() if after.get(name) != data}
        assert changed <= {"kept-0/00000000000000000000.timeindex"}, (
            "a stop adds a last entry to a time index, and changes no other file"
        )
    finally:
        holder.kill()
        if successor is not None:
            successor.kill()
