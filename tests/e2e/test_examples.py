"""Every example is accepted unchanged, and the example for development runs: one broker, one etcd member, a topic."""

from __future__ import annotations

from functools import partial

import yaml

from tests.e2e.installed import Operator
from tests.e2e.kubectl import Kubectl, holds, wait
from tests.e2e.scene import namespace
from tests.e2e.target import ROOT

EXAMPLES = ROOT / "manifests" / "examples"
DEVELOPMENT = EXAMPLES / "development.yaml"


def test_examples(operator: Operator) -> None:
    with namespace(operator, "examples") as scene:
        for path in sorted([*EXAMPLES.glob("*.yaml"), *(ROOT / "examples/spark").glob("*.yaml")]):
            warned = scene.kube("apply", "--dry-run=server", "-f", str(path))
            assert "created" in warned, f"{path}: {warned}"
        scene.kube.apply(DEVELOPMENT)
        for made in yaml.safe_load_all(DEVELOPMENT.read_text()):
            kind, name = f"{made['kind'].lower()}s.ottla.dev", made["metadata"]["name"]
            wait(f"{name} is ready", partial(_ready, scene.kube, kind, name), 240)


def _ready(kube: Kubectl, kind: str, name: str) -> bool:
    return holds(kube.get(kind, name), "Ready")
