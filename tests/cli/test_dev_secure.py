"""`ottla dev --secure`: what it makes is enough for a client of any kind, and is kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tests.cli.conftest import Ottla
from tests.cli.test_processes import Dev


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path / "data", dict(os.environ), "--secure", "--brokers", "2")
    yield dev
    assert dev.stop() == 0


def test_clients_log_in_with_the_files_and_others_dont(ottla: Ottla, secured: Dev, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "security"
    client = secured.announced["command_config"]
    assert client == str(folder / "client.properties")
    there = ("-b", secured.bootstrap, "--command-config", client)
    assert ottla("topics", "create", "hello", "--replication-factor", "2", *there).code == 0
    assert ottla("produce", "hello", *there, input=b"hi\n").code == 0
    assert ottla("consume", "hello", "--from-beginning", "--until-end", *there).stdout == "hi\n"
    assert ottla("tokens", "create", "--json", *there).code == 0

    librdkafka = dict(line.split("=", 1) for line in (folder / "librdkafka.conf").read_text().splitlines())
    found = AdminClient(librdkafka | {"bootstrap.servers": secured.bootstrap}).list_topics(timeout=15)
    assert "hello" in found.topics

    (tmp_path / "alice.txt").write_text("alice-pw")
    assert ottla("users", "create", "alice", "--password-file", str(tmp_path / "alice.txt"), *there).code == 0
    text = Path(client).read_text()
    login = text.index("sasl.jaas.config=")
    alice = tmp_path / "alice.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    alice.write_text(f'{text[:login]}sasl.jaas.config={module} required username="alice" password="alice-pw";\n')
    by_alice = ("-b", secured.bootstrap, "--command-config", str(alice))
    assert ottla("topics", "list", "--json", *by_alice).json == [], "alice has no rights"
    assert ottla("topics", "list", "-b", secured.bootstrap, "--timeout", "5").code != 0


def test_nobody_else_reads_the_secrets(secured: Dev, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "security"
    public = {"authority.crt"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [*folder.iterdir(), *(tmp_path / "data").glob("*.properties")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if file.name not in public} == {0o600}
    passwords = [line.split("=", 1)[1] for line in (folder / "passwords.properties").read_text().splitlines()]
    shown = " ".join(psutil.Process(secured.broker_pid).cmdline()) + (tmp_path / "data.log").read_text()
    assert not any(password in shown for password in passwords)


def test_everything_is_kept_between_starts(ottla: Ottla, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "security"
    first = Dev(tmp_path / "data", dict(os.environ), "--secure")
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert first.stop() == 0
    second = Dev(tmp_path / "data", dict(os.environ), "--secure", "--brokers", "2")
    try:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
        there = ("-b", second.bootstrap, "--command-config", second.announced["command_config"])
        assert len(ottla("brokers", "list", "--json", *there).json) == 2
    finally:
        assert second.stop() == 0
