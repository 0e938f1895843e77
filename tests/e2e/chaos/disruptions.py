"""Finds out by a watch which brokers' pods are away because they were deleted.

A pod is away from the beginning of its deletion until another pod of its name is ready. A pod that isn't ready but
wasn't deleted doesn't count as away, because the operator didn't cause that.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping

COLUMNS = (
    "{.type}|{.object.metadata.name}|{.object.metadata.uid}|{.object.metadata.deletionTimestamp}|"
    '{.object.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
)


class Disruptions:
    """The pods that are away, by the watch's events so far."""

    def __init__(self) -> None:
        self.wrong: list[str] = []  # a sentence for each moment at which several pods were away
        self.taken = 0
        self._away: dict[str, str] = {}  # name → the uid of the deleted pod
        self._leaving: set[str] = set()

    def leaves(self, pod: str) -> None:
        """Notes that a pod is removed for good."""
        self._leaving.add(pod)
        self._away.pop(pod, None)

    def told(self, line: str) -> None:
        """Notes an event, a line with the columns of COLUMNS."""
        event, name, uid, deleted, ready = line.strip().split("|")
        if name in self._leaving:
            return
        if event == "DELETED" or deleted:
            if self._away.get(name) != uid:
                self._away[name] = uid
                self.taken += 1
                if len(self._away) > 1:
                    self.wrong.append(f"away at the same time: {', '.join(sorted(self._away))}")
        elif ready == "True" and self._away.get(name) != uid:
            self._away.pop(name, None)


class Watch:
    """`kubectl get --watch` in a thread, restarted when it ends. Use it as a context manager."""

    def __init__(self, environment: Mapping[str, str], namespace: str, selector: str) -> None:
        self.seen = Disruptions()
        self._command = [
            *("kubectl", "--namespace", namespace, "get", "pods", "--selector", selector),
            *("--watch", "--output-watch-events", f"--output=jsonpath={COLUMNS}"),
        ]
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[str] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of the brokers' pods", daemon=True)

    def __enter__(self) -> Disruptions:
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(0.2):
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self.seen.told(line)
            self._process.wait()
