"""A stand-in for `kubectl`, for tests without Kubernetes: Clusters from a file, and port-forwards to local brokers.

`port-forward` behaves like the real one. It listens on a free port and prints the port's number. It opens a connection
to the pod only when a client connects to that port, and ends with "lost connection to pod" if the pod refuses the
connection. A pod that isn't in the file is refused with the API server's error. Each start appends a line with its
process id and its arguments to the file `calls`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class KubectlStandIn:
    """A folder for PATH with the `kubectl`, and the data that this `kubectl` answers with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        program = folder / "kubectl"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {folder} "$@"\n')
        program.chmod(0o755)
        self._clusters: list[Mapping[str, Any]] = []
        self._targets: dict[str, str] = {}
        self._refusal = ""
        self.tell()

    def tell(
        self,
        clusters: list[Mapping[str, Any]] | None = None,
        targets: Mapping[str, str] | None = None,
        refusal: str | None = None,
    ) -> None:
        """Sets the data of the answers: the Clusters, the address behind each pod and Service, and the error by which
        every call is refused. None keeps the present value."""
        self._clusters = self._clusters if clusters is None else clusters
        self._targets = self._targets if targets is None else dict(targets)
        self._refusal = self._refusal if refusal is None else refusal
        known = {"clusters": self._clusters, "targets": self._targets, "refusal": self._refusal}
        fresh = self.folder / "known.new"
        fresh.write_text(json.dumps(known))
        fresh.replace(self.folder / "known")

    def calls(self) -> list[list[str]]:
        """The arguments of each start."""
        return [line.split()[1:] for line in self._lines()]

    def living(self) -> list[int]:
        """The process ids of the calls that still run."""
        return [pid for pid in (int(line.split()[0]) for line in self._lines()) if _runs(pid)]

    def _lines(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def cluster(name: str, bootstrap: str | None = None, message: str = "", namespace: str = "demo") -> dict[str, Any]:
    """A Cluster as the API server returns it, with the fields that the tests need."""
    listeners = [{"name": "outside", "bootstrap": "203.0.113.7:30092"}]
    listeners += [{"name": "plain", "bootstrap": bootstrap}] if bootstrap else []
    return {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace},
        "status": {"listeners": listeners, "message": message},
    }


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _main(folder: Path, arguments: list[str]) -> int:
    with open(folder / "calls", "a") as calls:
        calls.write(f"{os.getpid()} {' '.join(arguments)}\n")
    known = json.loads((folder / "known").read_text())
    if known["refusal"]:
        print(known["refusal"], file=sys.stderr)
        return 1
    if "get" in arguments:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": known["clusters"]}))
        return 0
    resource, ports = arguments[-2:]
    if resource not in known["targets"]:
        print(f'Error from server (NotFound): pods "{resource.partition("/")[2]}" not found', file=sys.stderr)
        return 1
    return _forward(known["targets"][resource], int(ports.removeprefix(":")))


def _forward(address: str, port: int) -> int:
    host, _, there = address.rpartition(":")
    server = socket.create_server(("127.0.0.1", 0))
    print(f"Forwarding from 127.0.0.1:{server.getsockname()[1]} -> {port}", flush=True)
    while True:
        client, _ = server.accept()
        print(f"Handling connection for {port}", flush=True)
        try:
            pod = socket.create_connection((host, int(there)), timeout=10)
        except OSError as error:
            print(
                f"E1123 12:00:00.000000   {os.getpid()} portforward.go:413] "
                f'"Unhandled Error" err="an error occurred forwarding {port} -> {port}: {error}"',
                file=sys.stderr,
            )
            print("error: lost connection to pod", file=sys.stderr)
            return 1
        pod.settimeout(None)
        for one, other in ((client, pod), (pod, client)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (one, other):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
