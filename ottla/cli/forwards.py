"""Ways into a Kubernetes cluster: one `kubectl port-forward` for each broker that is talked to.

Brokers advertise their names in the DNS of Kubernetes (`flights-broker-0.flights-brokers.demo.svc:9092`), which say
themselves what to forward to: a pod, or the first ready pod of a Service. A forward is started when its address is
wanted for the first time, and anew when it is wanted after kubectl has ended or complained: so a pod that was restarted
is found again. Any other address is connected to as it is.

Two rules: no kubectl outlives this process, even where it is killed with -9 (a shell holds one end of a pipe and ends
kubectl when the other is closed); and Ctrl-C doesn't reach kubectl, because a consumer that was interrupted still
commits and leaves its group.
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
# Between two attempts at what kubectl refused, so that a client that tries again and again doesn't start a kubectl
# each time.
_PAUSE_S = 1.0
_POLL_S = 0.02
_END_S = 5.0
_SHELL = '"$@" </dev/null & child=$!; exec >&- 2>&-; read -r _; kill "$child" 2>/dev/null; wait "$child"'
_HOST = re.compile(r"(?:(?P<pod>[^.]+)\.)?(?P<service>[^.]+)\.(?P<namespace>[^.]+)\.svc(?:\..+)?")
_READY = re.compile(rf"Forwarding from {re.escape(_LOOPBACK)}:(\d+) -> ")
_ROUTINE = re.compile(r"Forwarding from |Handling connection for |$")
_BROKEN = re.compile(r"error occurred forwarding|error creating |lost connection to pod")
# What stands in front of kubectl's own sentences: the log's head, and where the error is from.
_HEAD = re.compile(r"^[EWIF]\d{4} \S+ +\d+ [\w.]+:\d+\] |^error: |^Error from server(?: \(\w+\))?: ", re.I)


class Target(NamedTuple):
    """What kubectl forwards to."""

    namespace: str
    resource: str  # "pod/NAME" or "service/NAME"
    port: int


def target_of(host: str, port: int) -> Target | None:
    """What a name in the DNS of Kubernetes stands for; None for every other host."""
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    resource = f"pod/{found['pod']}" if found["pod"] else f"service/{found['service']}"
    return Target(found["namespace"], resource, port)


def kubectl_sentence(text: str) -> str:
    """What kubectl complained about, on one line and without the heads of its log."""
    return " ".join(_HEAD.sub("", line.strip()) for line in text.splitlines() if line.strip())


class Forward:
    """One `kubectl port-forward`, from its start to its end."""

    def __init__(self, kubectl: Sequence[str], target: Target) -> None:
        """`kubectl` is the command with the options that lead to the cluster."""
        self.begun = time.monotonic()
        self._port: int | None = None  # once kubectl listens
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
        """Whether no connection may be opened through it any more."""
        return self._ended or self._broken

    @property
    def failure(self) -> str:
        """Why it never listened; empty while that isn't known or where it did."""
        if self._port is not None or not self._ended:
            return ""
        return f"kubectl: {self._said}" if self._said else "kubectl port-forward ended without a word"

    def address(self) -> tuple[str, int] | None:
        """Where to connect to; None while kubectl doesn't listen yet. Raises NoWay where it ended before it did."""
        if self.failure:
            raise NoWay(self.failure)
        return None if self._port is None else (_LOOPBACK, self._port)

    def release(self) -> None:
        """Ends kubectl, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Ends kubectl; returns when it has ended."""
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
    """The forwards of one command, each begun when it is first needed; all of them end with it."""

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
        """The forward to a target, which may not listen yet; begun anew where the one before is spent. Doesn't wait.

        Raises NoWay after the end, when a client's thread may still ask.
        """
        with self._lock:
            if self._closed:
                raise NoWay("the command ends")
            before = self._forwards.get(target)
            if before is not None:
                soon = before.failure and time.monotonic() - before.begun < _PAUSE_S
                if not before.spent or soon:
                    return before
                before.release()
            self._forwards[target] = forward = Forward(self._kubectl, target)
            return forward

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """Where to connect to for an address, once that works. Raises NoWay."""
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
