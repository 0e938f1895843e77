"""The CRDs are upgraded, kept at `helm uninstall`, installed again, and taken over from another owner, by Helm 3 and
Helm 4.

A Cluster exists all the time, and clients work on it: no resource is lost by any of these steps.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.installed import CHART, NAMESPACE, RELEASE, Operator
from tests.e2e.scene import NAME, TOPIC, Scene, working
from tests.e2e.target import ROOT
from tests.peers.helm import Helm

CRD = "topics.ottla.dev"
NOW, BEFORE = "A topic of an Ottla cluster.", "A topic, as an older chart described it."
# No operator has to run for these checks, and the old chart would install the same operator.
NO_PODS = ("--set", "replicas=0", "--namespace", NAMESPACE)

pytestmark = pytest.mark.timeout(2400, func_only=True)


@pytest.mark.parametrize("version", [3, 4])
def test_helm_crds(operator: Operator, tmp_path: Path, version: int) -> None:
    helm = Helm(version, tmp_path, operator.target.environment["KUBECONFIG"])
    with working(operator, f"crds-helm{version}") as scene:
        ids = resources(scene)
        operator.uninstall()
        try:
            upgraded(helm, scene, older_chart(tmp_path))
            reinstalled(helm, scene)
            under_another_name(helm, scene)
            taken_over_from_kubectl(helm, scene)
            assert resources(scene) == ids
        finally:
            helm.run("uninstall", RELEASE, "--namespace", NAMESPACE)
            operator.install("--take-ownership", "--force-conflicts")


def taking_over(helm: Helm) -> list[str]:
    """Helm's options to take over existing resources. Helm 4 uses server-side apply, by which each field has an owner,
    so it also needs --force-conflicts."""
    return ["--take-ownership", *(["--force-conflicts"] if helm.version == 4 else [])]


def upgraded(helm: Helm, scene: Scene, older: Path) -> None:
    helm("install", RELEASE, str(older), *NO_PODS, *taking_over(helm))
    assert described(scene).startswith(BEFORE)
    helm("upgrade", RELEASE, str(CHART), *NO_PODS)
    assert described(scene).startswith(NOW)


def reinstalled(helm: Helm, scene: Scene) -> None:
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    assert described(scene).startswith(NOW)
    helm("install", RELEASE, str(CHART), *NO_PODS)
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")


def under_another_name(helm: Helm, scene: Scene) -> None:
    refused = helm.run("install", "other", str(CHART), *NO_PODS)
    assert refused.returncode != 0
    assert RELEASE in refused.stderr
    helm("install", "other", str(CHART), *NO_PODS, "--take-ownership")
    helm("uninstall", "other", "--namespace", NAMESPACE, "--wait")
    assert described(scene).startswith(NOW)


def taken_over_from_kubectl(helm: Helm, scene: Scene) -> None:
    definitions = (ROOT / "manifests/crds.yaml").read_text().replace(NOW, BEFORE)
    scene.kube("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=definitions)
    assert described(scene).startswith(BEFORE)
    helm("install", RELEASE, str(CHART), *NO_PODS, *taking_over(helm))
    assert described(scene).startswith(NOW)
    helm("upgrade", RELEASE, str(CHART), *NO_PODS)


def resources(scene: Scene) -> dict[str, str]:
    """The uids of the Cluster and its Topic."""
    return {
        name: scene.kube.get(kind, name)["metadata"]["uid"]
        for kind, name in (("clusters.ottla.dev", NAME), (CRD, TOPIC))
    }


def described(scene: Scene) -> str:
    """The description of the kind Topic in its CRD."""
    (version,) = scene.kube.get("crd", CRD)["spec"]["versions"]
    text: str = version["schema"]["openAPIV3Schema"]["description"]
    return text


def older_chart(folder: Path) -> Path:
    """The chart with another definition of Topics."""
    copy = folder / "older"
    shutil.copytree(CHART, copy)
    template = copy / "templates" / "crds" / "topics.yaml"
    text = template.read_text()
    assert NOW in text
    template.write_text(text.replace(NOW, BEFORE))
    return copy
