"""kubectl as a user runs it, with time-outs. Each `Kubectl` runs commands in one namespace."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
Manifest = Mapping[str, Any]


class KubectlError(AssertionError):
    """kubectl failed. The error's text is kubectl's output."""


class Kubectl:
    """Runs kubectl in one namespace of the cluster that the KUBECONFIG in `environment` names."""

    def __init__(self, environment: Mapping[str, str], namespace: str = "default") -> None:
        self.namespace = namespace
        self._environment = {**os.environ, **environment}

    def __call__(self, *words: str, stdin: str | None = None, seconds: float = 60.0) -> str:
        """Runs `kubectl` and returns its output. Raises KubectlError with the error message of `kubectl`."""
        command = ["kubectl", "--namespace", self.namespace, *words]
        try:
            done = subprocess.run(
                command,
                input=stdin,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KubectlError(f"{' '.join(command)} takes longer than {seconds:g} s") from None
        if done.returncode:
            raise KubectlError(f"{' '.join(command)}: {done.stderr.strip()}\n{done.stdout[-2000:]}".strip())
        return done.stdout

    def apply(self, *manifests: Manifest | Path) -> None:
        """Applies files and objects, as `kubectl apply -f` does."""
        for manifest in manifests:
            text = manifest.read_text() if isinstance(manifest, Path) else yaml.safe_dump(dict(manifest))
            self("apply", "-f", "-", stdin=text)

    def refused(self, manifest: Manifest) -> str:
        """The error for a manifest that isn't accepted. Raises AssertionError if the manifest is accepted."""
        try:
            self.apply(manifest)
        except KubectlError as error:
            return str(error)
        raise AssertionError(f"accepted: {manifest}")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object. Raises KubectlError."""
        found: dict[str, Any] = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object; None if it doesn't exist."""
        text = self("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def all(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects with these labels, in the order of their names."""
        words = ["--selector", selector] if selector else []
        found: list[dict[str, Any]] = json.loads(self("get", kind, "-o", "json", *words))["items"]
        return found

    def patch(self, kind: str, name: str, change: Manifest, *words: str) -> None:
        """Applies a merge patch."""
        self("patch", kind, name, "--type", "merge", "--patch", json.dumps(change), *words)

    def delete(self, kind: str, name: str, *words: str, seconds: float = 120.0) -> None:
        """Deletes an object, and waits until it is gone, unless `words` have `--wait=false`."""
        self("delete", kind, name, *words, seconds=seconds)

    def execute(self, pod: str, *command: str, seconds: float = 60.0) -> str:
        """Runs a command in a pod and returns its output."""
        return self("exec", pod, "--", *command, seconds=seconds)


def condition(thing: Manifest, kind: str) -> dict[str, Any]:
    """A condition of an object's status; empty if there is none of this type."""
    found = [one for one in thing.get("status", {}).get("conditions", []) if one["type"] == kind]
    return found[0] if found else {}


def holds(thing: Manifest, kind: str) -> bool:
    """Whether a condition is True, in a status that was written since the last change of the spec."""
    current = thing.get("status", {}).get("observedGeneration") == thing["metadata"]["generation"]
    return current and condition(thing, kind).get("status") == "True"


def wait(what: str, found: Callable[[], T | None], seconds: float = 120.0, pause_s: float = 0.5) -> T:
    """Calls `found` until its answer is true, and returns the answer. Errors of kubectl count as false. Raises
    AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            if answer := found():
                return answer
        except KubectlError as error:
            last = error
        time.sleep(pause_s)
    raise AssertionError(f"not within {seconds:g} s: {what}" + (f" ({last})" if last else ""))
