"""The commands of the README, from `helm install` to a Spark result, word for word."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.e2e.installed import NAMESPACE, RELEASE, Operator
from tests.e2e.kubectl import wait
from tests.e2e.target import ROOT, Target

HEADING = "## On Kubernetes"
BUILT = "make images"  # blocks with this command are skipped, because the images are on the nodes already
DEMO = "demo"


@pytest.mark.usefixtures("spark_image")
def test_readme(kubernetes: Target) -> None:
    """The README's own commands install the operator, so it is removed first."""
    operator = Operator(kubernetes)
    operator.install()
    operator.uninstall()
    kube = kubernetes.namespace(DEMO)
    try:
        printed = "".join(typed(kubernetes, block) for block in blocks())
        assert "20 keys" in printed, printed
        assert operator.endings() == []
    finally:
        kube("delete", "namespace", DEMO, "--ignore-not-found", "--wait=false")
        wait("the namespace is gone", lambda: kube.find("namespace", DEMO) is None)
        assert RELEASE in kubernetes.run("helm", "list", "--namespace", NAMESPACE)


def blocks() -> list[str]:
    """The blocks of commands in the section."""
    section = (ROOT / "README.md").read_text().split(f"{HEADING}\n")[1].split("\n## ")[0]
    found = [block for block in re.findall(r"```sh\n(.*?)```", section, re.S) if BUILT not in block]
    assert found
    return found


def typed(kubernetes: Target, block: str) -> str:
    """Runs a block in a shell that stops at the first failing command, and returns its output."""
    done = subprocess.run(
        ["bash", "-e"],
        input=block,
        cwd=ROOT,
        env={**os.environ, **kubernetes.environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout
