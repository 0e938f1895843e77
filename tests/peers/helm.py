"""Helm 3 and Helm 4, and a program that objects to manifests as an API server would, built from their Go modules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ottla.operator.manifests.__main__ import OLDEST_KUBERNETES
from tests.peers.tools import ROOT, go_program

_SOURCE = ROOT / "tests/peers/kubernetes_tools"
OLDEST = ROOT / "tests/peers/oldest_kubernetes"
CRDS = ROOT / "operator/ottla/operator/crds"


class Helm:
    """One version of Helm, run in the repository's root."""

    def __init__(self, version: int, folder: Path, kubeconfig: str = "") -> None:
        """Keeps what Helm remembers in `folder`. Skips the test where there is no Go to build it with."""
        self.version = version
        self.program = go_program(_SOURCE, f"helm.sh/helm/v{version}/cmd/helm", f"helm{version}")
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "KUBECONFIG": kubeconfig,
            "HELM_CACHE_HOME": str(folder / "cache"),
            "HELM_CONFIG_HOME": str(folder / "config"),
            "HELM_DATA_HOME": str(folder / "data"),
        }

    def __call__(self, *arguments: str) -> str:
        """What it prints. Raises AssertionError with what it complains about."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs it, whatever comes of it."""
        command = [str(self.program), *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=300, check=False
        )

    def template(self, chart: str, *arguments: str, release: str = "flights", namespace: str = "data") -> str:
        """A chart rendered for the oldest Kubernetes that it is for; without free lines, where the two Helms differ."""
        command = (
            "template",
            release,
            f"charts/{chart}",
            "--namespace",
            namespace,
            "--kube-version",
            OLDEST_KUBERNETES,
        )
        return re.sub(r"^\n+(?=---$|\Z)", "", self(*command, *arguments), flags=re.MULTILINE)


def objections(manifests: str) -> list[str]:
    """What an API server would object to, a line for each; our own resources are judged by our CRDs."""
    program = go_program(_SOURCE, "./check", "check")
    crds = [f"--crd={CRDS / name}" for name in ("clusters.yaml", "topics.yaml")]
    return _said(program, *crds, given=manifests)


def objections_of_the_oldest(*crds: Path) -> list[str]:
    """What the API server of the oldest Kubernetes would object to in definitions, a line for each."""
    return _said(go_program(OLDEST), *map(str, crds))


def _said(judge: Path, *arguments: str, given: str = "") -> list[str]:
    done = subprocess.run(
        [str(judge), *arguments], input=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()
