"""A worker of Kafka Connect in distributed mode, as a process."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.peers.apache_kafka import TOOLS, jars, java
from tests.peers.wire import free_port


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"no {what} after {timeout:.0f} s"
        time.sleep(0.1)
    return result


class Connect:
    """A Kafka Connect worker in distributed mode: its process, and a client of its REST interface."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._process = process

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request and returns the decoded answer; None while the worker or the resource isn't ready."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            if error.code in (404, 409, 503):
                return None
            raise AssertionError(error.read().decode()) from error
        except OSError:
            return None
        return json.loads(content) if content else {}

    def running(self, name: str) -> bool:
        """Whether the connector and all its tasks run."""
        status = self.ask("GET", f"/connectors/{name}/status")
        if not status or not status["tasks"]:
            return False
        failed = [task for task in status["tasks"] if task["state"] == "FAILED"]
        assert not failed, failed
        return {status["connector"]["state"], *(task["state"] for task in status["tasks"])} == {"RUNNING"}


@contextmanager
def connect_worker(
    bootstrap: str, replication_factor: int, name: str, folder: Path, **settings: str
) -> Iterator[Connect]:
    """A running worker. It creates its three internal topics itself, compacted, with this replication factor.
    `settings` have underscores instead of dots."""
    port = free_port()
    properties = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "config.storage.topic": f"{name}-configs",
        "offset.storage.topic": f"{name}-offsets",
        "offset.storage.partitions": "5",
        "status.storage.topic": f"{name}-status",
        "config.storage.replication.factor": str(replication_factor),
        "offset.storage.replication.factor": str(replication_factor),
        "status.storage.replication.factor": str(replication_factor),
        "offset.flush.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "session.timeout.ms": "3000",
        "heartbeat.interval.ms": "500",
        "plugin.discovery": "service_load",
    } | {key.replace("_", "."): value for key, value in settings.items()}
    file = folder / "connect.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    with open(folder / "connect.log", "ab") as log:
        command = java(jars("kafka"), TOOLS["connect-distributed"], str(file), heap="512M")
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        connect = Connect(port, process)
        wait_for(
            lambda: connect.ask("GET", "/connectors") is not None,
            f"worker ({(folder / 'connect.log').read_text()[-2000:]})",
            180,
        )
        yield connect
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
