"""Controllers in processes of their own, for brokers without the controller's role: one replaces the other."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.peers.etcd import Etcd
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port

OTTLA = [sys.executable, "-m", "ottla.cli.main"]
SESSION = "2000"


class ControllerAlone:
    """`ottla controller` on a store."""

    def __init__(self, store: str, number: int, log: Path, session_ms: str = SESSION) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        self.log = log
        settings = {
            "node.id": str(number),
            "ottla.metadata.store": store,
            "ottla.http.listener": self.http,
            "broker.session.timeout.ms": session_ms,
        }
        pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with log.open("ab") as file:
            self.process = subprocess.Popen([*OTTLA, "controller", *pairs], stdout=file, stderr=file)

    def says(self, page: str) -> str:
        """The content of one of the controller's HTTP pages; empty while the controller starts."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{page}", timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def until_it_decides(self) -> None:
        self.until("it decides\n")

    def until(self, state: str) -> None:
        deadline = time.monotonic() + 30
        while self.says("/readyz") != state:
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.05)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(20)


def create(bootstrap: str, topic: str, timeout_ms: int = 20_000) -> int:
    with Wire(bootstrap) as wire:
        new = {"name": topic, "num_partitions": 3, "replication_factor": 2, "assignments": [], "configs": []}
        answer = wire.call(19, 5, {"topics": [new], "timeout": timeout_ms, "validate_only": False})
        return int(answer.topics[0].error_code)


def test_controllers_of_their_own(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'metadata.sqlite'}"
    first = ControllerAlone(store, 10, tmp_path / "first.log")
    first.until("it waits for a broker that begins a cluster\n")
    shared = {"process_roles": "broker", "ottla_metadata_store": store, "broker_session_timeout_ms": SESSION}
    brokers = [OttlaBroker(tmp_path / f"b{number}", node_id=str(number), **shared) for number in (0, 1)]
    first.until_it_decides()
    second = ControllerAlone(store, 11, tmp_path / "second.log")
    try:
        second.until("it stands by\n")
        assert create(brokers[0].bootstrap, "one") == 0
        assert "kafka_controller_kafkacontroller_activebrokercount 2" in first.says("/metrics")
        first.process.kill()
        first.process.wait()
        second.until_it_decides()
        assert create(brokers[1].bootstrap, "two") == 0
        for broker in brokers:
            broker.stop()
        assert second.end(signal.SIGTERM) == 0
    finally:
        for process in (first.process, second.process, *(broker.process for broker in brokers)):
            process.kill()
            process.wait()


def test_a_standby_does_not_wait_for_the_session_of_one_that_was_killed(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd")
    running: list[ControllerAlone] = []
    store = f"etcd:{etcd.endpoint}"
    broker = OttlaBroker(tmp_path / "broker", process_roles="broker", ottla_metadata_store=store)
    try:
        for number in (10, 11):
            log = tmp_path / f"{number}.log"
            running.append(ControllerAlone(store, number, log, session_ms="60000"))
            running[0].until_it_decides()
        first, second = running
        second.until("it stands by\n")
        time.sleep(1)  # the standby connects to the active controller
        first.process.kill()
        second.until_it_decides()
        assert "controller-10 is dead" in (tmp_path / "11.log").read_text()
    finally:
        for process in running:
            process.process.kill()
            process.process.wait()
        broker.kill()
        etcd.kill()


def test_a_controller_needs_the_brokers_store() -> None:
    done = subprocess.run(
        [*OTTLA, "controller", "--set", "node.id=1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "metadata store" in done.stderr
    assert "Traceback" not in done.stderr
