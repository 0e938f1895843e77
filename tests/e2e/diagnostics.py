"""Saves the state of a failed scenario: objects, events, and the logs of every container."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.e2e.kubectl import Kubectl, KubectlError

KINDS = "clusters.ottla.dev,topics.ottla.dev,users.ottla.dev,statefulsets,pods,services,configmaps,pvc,pdb,jobs"


def keep(kube: Kubectl, operator: Kubectl, folder: Path) -> None:
    """Writes the state into `folder`, as far as it can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in {
        "objects.txt": ("get", KINDS, "-o", "wide"),
        "objects.yaml": ("get", KINDS, "-o", "yaml"),
        "described.txt": ("describe", "clusters.ottla.dev,topics.ottla.dev,users.ottla.dev,pods"),
        "events.txt": ("get", "events", "--sort-by=.lastTimestamp"),
        "nodes.txt": ("describe", "nodes"),
    }.items():
        _write(folder / name, kube, *words)
    for where, prefix in ((kube, ""), (operator, "operator-")):
        with suppress(KubectlError):
            for pod in where("get", "pods", "-o", "name").split():
                name = prefix + pod.removeprefix("pod/")
                _write(folder / f"{name}.log", where, "logs", pod, "--all-containers", "--timestamps")
                _write(folder / f"{name}.previous.log", where, "logs", pod, "--all-containers", "--previous")


def keep_history(kube: Kubectl, pod: str, folder: Path) -> None:
    """Saves the clients' history, one event a line."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "history.jsonl", kube, "exec", pod, "--", "cat", "/tmp/history.jsonl")


def _write(path: Path, kube: Kubectl, *words: str) -> None:
    with suppress(KubectlError):
        path.write_text(kube(*words, seconds=120))
