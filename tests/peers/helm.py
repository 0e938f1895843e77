"""Helm 3 and Helm 4, and programs that validate manifests as an API server does, built from their Go modules."""

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
        """Helm's cache, configuration and data are in `folder`. Skips the test if Go, which builds Helm, is missing."""
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
        """Runs Helm and returns its output. Raises AssertionError, with its error message, if it fails."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Helm and returns the result, also of a failure."""
        command = [str(self.program), *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=300, check=False
        )

    def template(self, chart: str, *arguments: str, release: str = "flights", namespace: str = "data") -> str:
        """A chart, rendered for the oldest supported Kubernetes. Blank lines between documents are removed, because the
        two Helms differ in them."""
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
    """An API server's objections to the manifests, one a line. Ottla's resources are validated by Ottla's CRDs."""
    program = go_program(_SOURCE, "./check", "check")
    crds = [f"--crd={CRDS / name}" for name in ("clusters.yaml", "topics.yaml", "users.yaml")]
    return _said(program, *crds, given=manifests)


def objections_of_the_oldest(*crds: Path) -> list[str]:
    """The objections of the oldest supported Kubernetes' API server to these definitions, one a line."""
    return _said(go_program(OLDEST), *map(str, crds))


def _said(judge: Path, *arguments: str, given: str = "") -> list[str]:
    done = subprocess.run(
        [str(judge), *arguments], input=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()
