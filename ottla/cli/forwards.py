"""Connections into a Kubernetes cluster: one `kubectl port-forward` for each broker to which the command connects.

Brokers advertise their names in the DNS of Kubernetes (`flights-broker-0.flights-brokers.demo.svc:9092`). Such a name
contains the target of the forward: a pod, or a Service, of which kubectl takes the first ready pod. A forward is
started when a client first connects to its address. It is started anew if kubectl has ended or reported a failed
connection, so that clients reach a restarted pod again. Clients connect to all other addresses directly.

Two rules. No kubectl outlives this process, even if this process is killed with -9: a shell has one end of a pipe, and
ends kubectl when the other end is closed. And Ctrl-C doesn't reach kubectl, because an interrupted consumer still
commits its offsets and leaves its group.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ottla.cli.route import NoWay

_LOOPBACK = "127.0.0.1"
# The pause after a forward that failed to start, so that a client's repeated attempts don't start a kubectl each time.
_PAUSE_S = 1.0
_POLL_S = 0.02
_END_S = 5.0
_SHELL = '"$@" </dev/null & child=$!; exec >&- 2>&-; read -r _; kill "$child" 2>/dev/null; wait "$child"'
_HOST = re.compile(r"(?:(?P<pod>[^.]+)\.)?(?P<service>[^.]+)\.(?P<namespace>[^.]+)\.svc(?:\..+)?")
_READY = re.compile(rf"Forwarding from {re.escape(_LOOPBACK)}:(\d+) -> ")
_ROUTINE = re.compile(r"Forwarding from |Handling connection for |$")
_BROKEN = re.compile(r"error occurred forwarding|error creating |lost connection to pod")
# The text before kubectl's own sentences: the header of a log line, or the origin of the error.
_HEAD = re.compile(r"^[EWIF]\d{4} \S+ +\d+ [\w.]+:\d+\] |^error: |^Error from server(?: \(\w+\))?: ", re.I)


class Target(NamedTuple):
    """The pod or Service, and its port, to which a `kubectl port-forward` leads."""

    namespace: str
    resource: str  # "pod/NAME" or "service/NAME"
    port: int


def target_of(host: str, port: int) -> Target | None:
    """The pod or Service that a host name in the DNS of Kubernetes stands for; None for every other host."""
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    resource = f"pod/{found['pod']}" if found["pod"] else f"service/{found['service']}"
    return Target(found["namespace"], resource, port)


def kubectl_sentence(text: str) -> str:
    """kubectl's error message, on one line and without the headers of log lines."""
    return " ".join(_HEAD.sub("", line.strip()) for line in text.splitlines() if line.strip())


class Forward:
    """One `kubectl port-forward`, from its start to its end."""

    def __init__(self, kubectl: Sequence[str], target: Target) -> None:
        """`kubectl` is the command with the options that lead to the cluster."""
        self.begun = time.monotonic()
        self._port: int | None = None  # the local port; None until kubectl listens
        self._broken = False
        self._ended = False
        self._said = ""
        command = [*kubectl, "--namespace", target.namespace, "port-forward", "--address", _LOOPBACK]
        command += ["--pod-running-timeout=5s", target.resource, f":{target.port}"]
        self._process = subprocess.Popen(
            ["sh", "-c", _SHELL, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, name=f"forward {target.resource}", daemon=True)
        self._reader.start()

    @property
    def spent(self) -> bool:
        """Whether kubectl has ended or reported a failed connection, so that a new connection needs a new forward."""
        return self._ended or self._broken

    @property
    def failure(self) -> str:
        """Why kubectl ended before it listened; empty if it listened, or hasn't ended."""
        if self._port is not None or not self._ended:
            return ""
        return f"kubectl: {self._said}" if self._said else "kubectl port-forward ended without a message"

    def address(self) -> tuple[str, int] | None:
        """The address on which kubectl listens; None before it listens. Raises NoWay if kubectl ended before that."""
        if self.failure:
            raise NoWay(self.failure)
        return None if self._port is None else (_LOOPBACK, self._port)

    def release(self) -> None:
        """Ends kubectl, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Ends kubectl, and waits at most `_END_S` for its end."""
        self.release()
        self._reader.join(_END_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if ready := _READY.match(line):
                    self._port = int(ready[1])
                elif not _ROUTINE.match(line):
                    self._said = kubectl_sentence(line)
                    self._broken = self._broken or bool(_BROKEN.search(line))
        self._ended = True
        self.release()
        self._process.wait()


class Forwards:
    """The forwards of one command. Each begins when it is first needed; all end with the command."""

    def __init__(self, kubectl: Sequence[str]) -> None:
        """`kubectl` is the command with the options that lead to the cluster."""
        self._kubectl = list(kubectl)
        self._forwards: dict[Target, Forward] = {}
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Forwards:
        return self

    def __exit__(self, *_error: Any) -> None:
        with self._lock:
            self._closed = True
            forwards = list(self._forwards.values())
        for forward in forwards:
            forward.release()
        for forward in forwards:
            forward.end()

    def begin(self, target: Target) -> Forward:
        """The forward to a target. It may not be ready yet: this method doesn't wait. An ended forward is replaced.

        Raises NoWay after the end of the command, when a client's thread may still call this method.
        """
        with self._lock:
            if self._closed:
                raise NoWay("the command is ending")
            before = self._forwards.get(target)
            if before is not None:
                soon = before.failure and time.monotonic() - before.begun < _PAUSE_S
                if not before.spent or soon:
                    return before
                before.release()
            self._forwards[target] = forward = Forward(self._kubectl, target)
            return forward

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address to connect to instead of (host, port). Waits until the forward listens. Raises NoWay."""
        target = target_of(host, port)
        if target is None:
            return host, port
        forward = self.begin(target)
        deadline = time.monotonic() + timeout_s
        while (address := forward.address()) is None:
            if time.monotonic() > deadline:
                raise NoWay(f"kubectl port-forward didn't listen within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return address
