"""The oldest Kubernetes that Ottla is for takes its definitions: it thinks rules more expensive than newer ones do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from ottla.operator.manifests.__main__ import OLDEST_KUBERNETES
from tests.peers.helm import CRDS
from tests.peers.tools import ROOT, go_program

SOURCE = ROOT / "tests/peers/oldest_kubernetes"
KINDS = ("clusters", "topics")

# A fresh machine builds the judge first.
pytestmark = pytest.mark.timeout(2400)


def objections(*files: Path) -> str:
    program = go_program(SOURCE)
    done = subprocess.run([str(program), *map(str, files)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_the_judge_is_as_old_as_what_we_promise() -> None:
    _, minor, _ = OLDEST_KUBERNETES.split(".")
    assert f"k8s.io/apiextensions-apiserver v0.{minor}.0\n" in (SOURCE / "go.mod").read_text()


def test_it_takes_the_definitions() -> None:
    assert objections(*(CRDS / f"{kind}.yaml" for kind in KINDS)) == ""


def test_it_refuses_rules_whose_cost_grows_with_the_values(tmp_path: Path) -> None:
    """What newer ones think cheap, because they know how long a value may be that is a number or text."""
    crd = yaml.safe_load((CRDS / "topics.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["config"]["x-kubernetes-validations"].append(
        {"rule": "self.all(name, string(self[name]).matches('^[a-z]*$'))", "message": "no"}
    )
    changed = tmp_path / "topics.yaml"
    changed.write_text(yaml.safe_dump(crd))
    assert "estimated rule cost" in objections(changed)
