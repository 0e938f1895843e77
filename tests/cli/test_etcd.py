"""`ottla broker --etcd` and `ottla metadata --store etcd:…`, each as a new process, because grpc's threads don't
survive a fork."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import OTTLA, TIMEOUT_S
from tests.peers.etcd import Etcd, etcd_cluster
from tests.peers.wire import free_port


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path_factory.mktemp("etcd"))
    yield etcd
    etcd.kill()


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*OTTLA, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)


def test_a_broker_on_etcd_and_a_look_at_its_keys(etcd: Etcd, tmp_path: Path, environment: dict[str, str]) -> None:
    port = free_port()
    settings = tmp_path / "server.properties"
    settings.write_text(
        f"node.id=7\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path / 'data'}\n"
        "ottla.metadata.etcd.prefix=/ottla/flights\n"
    )
    started = run(environment, "broker", "--daemon", "--config", str(settings), "--etcd", etcd.endpoint)
    assert started.returncode == 0, started.stderr
    try:
        here = ("--store", f"etcd:{etcd.endpoint}", "--set", "ottla.metadata.etcd.prefix=/ottla/flights/")
        shown = run(environment, "metadata", "get", "brokers/7", "--json", *here)
        assert shown.returncode == 0, shown.stderr
        registered = json.loads(shown.stdout)
        assert registered["lease"]
        assert "/ottla/flights/brokers/7" in etcd.control("get", "--prefix", "/", "--keys-only")

        watching = subprocess.Popen(
            [*OTTLA, "metadata", "watch", "topics/", "--after", "1", "--json", *here],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert run(environment, "topics", "create", "delays", "-b", f"127.0.0.1:{port}").returncode == 0
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["key"] == "topics/delays"
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=TIMEOUT_S)
    finally:
        stopped = run(environment, "broker", "stop", "--config", str(settings))
    assert stopped.returncode == 0, stopped.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["metadata", "ls", "--store", "etcd:nowhere"], 2, "must look like embedded"),
        (
            ["metadata", "ls", "--store", "etcd:127.0.0.1:1", "--set", "ottla.metadata.etcd.timeout.ms=300"],
            1,
            "refused",
        ),
        (["broker", "--etcd", "nowhere", "--set", "node.id=1"], 2, "must look like embedded"),
        (["broker", "status", "--set", "ottla.metadata.etcd.user=me", "--set", "node.id=1"], 2, "password.file, too"),
    ],
)
def test_mistakes_are_one_line(environment: dict[str, str], arguments: list[str], code: int, words: str) -> None:
    refused = run(environment, *arguments)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (code, "", 1), refused.stderr
    assert words in refused.stderr


def test_a_broker_that_starts_while_etcd_has_no_leader_waits_for_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Before the fix, such a broker ended immediately. A broker also waits if no member of etcd runs at all. Either
    broker waits until it gets a signal, or until the registration time-out is over."""
    members = etcd_cluster(tmp_path / "etcd", 3)
    log = tmp_path / "broker.log"
    own = ["--set", "node.id=1", "--set", "ottla.metadata.etcd.timeout.ms=500"]

    def broker(*more: str) -> subprocess.Popen[bytes]:
        etcd = ",".join(member.endpoint for member in members)
        listener = f"listeners=PLAINTEXT://127.0.0.1:{free_port()}"
        where = ["--etcd", etcd, "--set", listener, "--set", f"log.dirs={tmp_path}/data"]
        with log.open("ab") as file:
            return subprocess.Popen([*OTTLA, "broker", *own, *where, *more], stdout=file, stderr=file, env=environment)

    def said(words: str) -> bool:
        return words in log.read_text()

    def until_said(words: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not said(words):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    try:
        for member in members[1:]:
            member.kill()
        process = broker()
        try:
            until_said("waits for the metadata store")
            time.sleep(2)
            assert process.poll() is None, log.read_text()
            for member in members[1:]:
                member.launch()
            until_said("ready bootstrap=")
            assert said("the metadata store answers")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        for member in members:
            member.kill()
        log.write_text("")
        process = broker()
        until_said("waits for the metadata store")
        assert said("can't be reached")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert broker("--set", "initial.broker.registration.timeout.ms=1000").wait(TIMEOUT_S) == 1
    finally:
        for member in members:
            member.kill()
