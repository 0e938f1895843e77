"""An Ottla broker for one test: a process in a folder, started as a user would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.peers.wire import free_port, wait_until_ready


class OttlaBroker:
    """`python -m ottla.cli.server` on a free port of the loopback interface, with its metadata in `folder`."""

    def __init__(self, folder: Path, bootstrap: str | None = None, **settings: str) -> None:
        """`settings` have underscores instead of dots. `bootstrap` is needed if the settings change the listeners."""
        self.bootstrap = bootstrap or f"127.0.0.1:{free_port()}"
        self.data = folder / "data"
        self.log_path = folder / "broker.log"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "node.id": "0",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
        } | {name.replace("_", "."): value for name, value in settings.items()}
        self.log_directories = [Path(part) for part in values["log.dirs"].split(",")]
        properties = folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.command = [sys.executable, "-m", "ottla.cli.server", "--config", str(properties)]
        self._paused = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        began = time.monotonic()
        with open(self.log_path, "ab") as log:
            process = subprocess.Popen(self.command, stdout=log, stderr=log, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        try:
            wait_until_ready(self.bootstrap, 30)
        except TimeoutError:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker doesn't start:\n{self.log_path.read_text()[-4000:]}") from None
        self.start_seconds = time.monotonic() - began
        return process

    @property
    def running(self) -> bool:
        """Whether the process lives and isn't paused."""
        return not self._paused and self.process.poll() is None

    def pause(self) -> None:
        """Sends SIGSTOP: the broker's connections stay open, and it doesn't answer."""
        self.process.send_signal(signal.SIGSTOP)
        self._paused = True

    def go_on(self) -> None:
        """Sends SIGCONT."""
        self.process.send_signal(signal.SIGCONT)
        self._paused = False

    def restart(self) -> None:
        """Stops the broker cleanly and starts it again."""
        self.stop()
        self.process = self._start()

    def kill(self) -> None:
        """Sends SIGKILL: bytes that the broker hadn't written to a file are lost."""
        self.process.kill()
        self.process.wait()
        self._paused = False

    def start_again(self) -> None:
        """Starts the broker after `kill` or `stop`."""
        self.process = self._start()

    def stop(self, timeout: float = 30.0) -> None:
        """Sends SIGTERM. Raises AssertionError if the broker doesn't end in time, or ends with another code than 0."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the broker doesn't stop:\n{self.log_path.read_text()[-4000:]}") from None
        assert code == 0, f"the broker ended with {code}:\n{self.log_path.read_text()[-4000:]}"

    def resident_bytes(self) -> int:
        """The process's memory in RAM."""
        import psutil

        return int(psutil.Process(self.process.pid).memory_info().rss)
