"""Where the scenarios run: which Kubernetes, and how our images get there.

The cluster is that of $KUBECONFIG; without one, a node that `../shared/kube-node` starts, where that is there. Images
are built and loaded into that node, or with docker into a kind cluster; for any other cluster they have to be there
(OTTLA_E2E_IMAGES=present).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT.parent / "shared" / "kube-node"
NODE_CONFIG = Path(os.environ.get("KUBE_NODE_DIR", "/var/tmp/kube-node"), "kubeconfig")  # there while the node is up
VERSION = "0.1.0"
BROKER_IMAGE, ETCD_IMAGE, SPARK_IMAGE = f"ottla:{VERSION}", f"ottla-etcd:{VERSION}", f"ottla-spark:{VERSION}"
CLIENTS_IMAGE = f"ottla-e2e:{VERSION}"
NO_CLUSTER = (
    "there is no Kubernetes to test on: set KUBECONFIG to a cluster's (1.30 or newer), for example after `kind create "
    "cluster`; its nodes need the images, see tests/e2e/target.py"
)
NO_IMAGES = (
    "this cluster is no kind cluster, so its nodes must have the images already: build and push or load "
    "them (Dockerfile, tests/e2e/Dockerfile), then set OTTLA_E2E_IMAGES=present"
)


class TargetMissing(Exception):
    """There is nothing to run on; says what to do."""


@dataclass(frozen=True)
class Target:
    """A Kubernetes that we may do anything to, with our images on its nodes."""

    environment: dict[str, str]
    started: bool = False  # the node wasn't there before

    def namespace(self, name: str) -> Kubectl:
        """kubectl in that namespace."""
        return Kubectl(self.environment, name)

    def run(self, *command: str, seconds: float = 300.0) -> str:
        """What a program prints that talks to the cluster: helm. Raises AssertionError."""
        known = {**os.environ, **self.environment}
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr}{done.stdout}"
        return done.stdout

    def stop(self) -> None:
        """Takes the node away again, where it was started for this."""
        if self.started:
            _said(str(NODE / "down"))


def target() -> Target:
    """The cluster, with our images. Raises TargetMissing."""
    config = os.environ.get("KUBECONFIG", "")
    started = False
    if not config and (NODE / "up").exists():
        started = not NODE_CONFIG.exists()
        config = _said(str(NODE / "up")).strip()
    if not config:
        raise TargetMissing(NO_CLUSTER)
    path = os.environ["PATH"]
    beside = Path(config).parent / "bin"
    if (beside / "kubectl").exists():
        path = f"{beside}:{path}"
    found = Target({"KUBECONFIG": config, "PATH": path}, started)
    try:
        if os.environ.get("OTTLA_E2E_IMAGES") != "present":
            _provide_images(found, on_node=(NODE / "load-image").exists() and (beside / "ctr").exists())
    except BaseException:
        found.stop()
        raise
    return found


def _provide_images(found: Target, *, on_node: bool) -> None:
    context = found.namespace("default")("config", "current-context").strip()
    if on_node:
        _said(str(NODE / "base-image"), "python", "jre")
        python, java = "localhost/debian-python:bookworm", "localhost/debian-python-jre:bookworm"
        build, prefix = [str(NODE / "build-image")], "docker.io/library/"
        load = [str(NODE / "load-image")]
    elif context.startswith("kind-") and shutil.which("docker") and shutil.which("kind"):
        python = java = os.environ.get("BASE_IMAGE", "python:3.13-slim")
        build, prefix = ["docker", "build"], ""
        load = ["kind", "load", "docker-image", "--name", context.removeprefix("kind-")]
    else:
        raise TargetMissing(NO_IMAGES)
    for image, target, base in (
        (BROKER_IMAGE, "broker", python),
        (ETCD_IMAGE, "etcd", python),
        (SPARK_IMAGE, "spark", java),
    ):
        _said(*build, "--build-arg", f"BASE_IMAGE={base}", "--target", target, "-t", f"{prefix}{image}", str(ROOT))
    _said(
        *(*build, "-f", str(ROOT / "tests/e2e/Dockerfile"), "--build-arg", f"BASE_IMAGE={python}"),
        *("--build-arg", f"BROKER_IMAGE={prefix}{BROKER_IMAGE}", "-t", f"{prefix}{CLIENTS_IMAGE}", str(ROOT)),
    )
    _said(*load, *(f"{prefix}{image}" for image in (BROKER_IMAGE, ETCD_IMAGE, SPARK_IMAGE, CLIENTS_IMAGE)))


def _said(*command: str, seconds: float = 3600.0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise TargetMissing(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout
