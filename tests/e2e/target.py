"""The Kubernetes cluster on which the scenarios run, and how Ottla's images get onto its nodes.

The cluster is that of $KUBECONFIG, or else a node that `../shared/kube-node` starts, if that program exists. The images
are built, and loaded into that node, or with docker into a kind cluster. On any other cluster the images have to be
present already (OTTLA_E2E_IMAGES=present).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT.parent / "shared" / "kube-node"
NODE_CONFIG = Path(os.environ.get("KUBE_NODE_DIR", "/var/tmp/kube-node"), "kubeconfig")
VERSION = "0.1.0"
BROKER_IMAGE, ETCD_IMAGE, SPARK_IMAGE = f"ottla:{VERSION}", f"ottla-etcd:{VERSION}", f"ottla-spark:{VERSION}"
CLIENTS_IMAGE = f"ottla-e2e:{VERSION}"
IMAGES = {"broker": BROKER_IMAGE, "etcd": ETCD_IMAGE, "spark": SPARK_IMAGE, "clients": CLIENTS_IMAGE}
CLIENTS_DOCKERFILE = ROOT / "tests" / "e2e" / "Dockerfile"
NODE_ATTEMPTS = 3
NO_CLUSTER = (
    "there is no Kubernetes to test on: set KUBECONFIG to a cluster's (1.30 or newer), for example after `kind create "
    "cluster`; its nodes need the images, see tests/e2e/target.py"
)
NO_IMAGES = (
    "this cluster is no kind cluster, so its nodes must have the images already: build and push or load "
    "them (Dockerfile, tests/e2e/Dockerfile), then set OTTLA_E2E_IMAGES=present"
)


class TargetMissing(Exception):
    """There is no cluster to run on. The error's text says what a person has to do."""


class NodeMissing(Exception):
    """A node doesn't start. The error's text says why."""


class CommandFailed(Exception):
    """A program that starts the node or loads images failed. The error's text is the program's output."""


@dataclass(frozen=True)
class Builder:
    """Commands that build an image and load it into the nodes, and the base images."""

    build: tuple[str, ...]
    load: tuple[str, ...]
    prefix: str  # the prefix of the image names in both commands
    python: str
    java: str
    bases: str = ""  # a program that builds the base images

    def provide(self, *targets: str) -> None:
        """Builds targets of the Dockerfile, or `clients` on top of `broker`, and loads them. Raises CommandFailed."""
        for target in targets:
            words = ["--target", target]
            if target == "clients":
                words = ["-f", str(CLIENTS_DOCKERFILE), "--build-arg", f"BROKER_IMAGE={self.prefix}{BROKER_IMAGE}"]
            self._made(IMAGES[target], ROOT, words, with_java=target == "spark")

    def provide_brokers_of(self, sources: Path, image: str) -> None:
        """Builds the brokers' image of other sources under a name of its own, and loads it. Raises CommandFailed."""
        self._made(image, sources, ["--target", "broker"])

    def _made(self, image: str, sources: Path, words: list[str], *, with_java: bool = False) -> None:
        if self.bases:
            _said(self.bases, "jre" if with_java else "python")
        base, name = self.java if with_java else self.python, self.prefix + image
        _said(*self.build, *words, "--build-arg", f"BASE_IMAGE={base}", "-t", name, str(sources))
        _said(*self.load, name)


@dataclass(frozen=True)
class Target:
    """A Kubernetes cluster to which the scenarios may do anything."""

    environment: dict[str, str]
    started: bool = False  # whether the node was started for this run
    builder: Builder | None = None  # None: the images are present

    def namespace(self, name: str) -> Kubectl:
        """kubectl for a namespace."""
        return Kubectl(self.environment, name)

    def run(self, *command: str, seconds: float = 300.0) -> str:
        """Runs a program that uses the cluster, such as helm, and returns its output. Raises AssertionError."""
        known = {**os.environ, **self.environment}
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr}{done.stdout}"
        return done.stdout

    def provide(self, *targets: str) -> None:
        """Builds and loads these images, unless they are present. Raises CommandFailed."""
        if self.builder is not None:
            self.builder.provide(*targets)

    def stop(self) -> None:
        """Stops the node if it was started for this run."""
        if self.started:
            _said(str(NODE / "down"))


def target() -> Target:
    """The cluster. Raises TargetMissing, NodeMissing."""
    config = os.environ.get("KUBECONFIG", "")
    started = False
    if not config and (NODE / "up").exists():
        started = not _node_runs()
        config = _node(started)
    if not config:
        raise TargetMissing(NO_CLUSTER)
    path = os.environ["PATH"]
    beside = Path(config).parent / "bin"
    if (beside / "kubectl").exists():
        path = f"{beside}:{path}"
    environment = {"KUBECONFIG": config, "PATH": path}
    if os.environ.get("OTTLA_E2E_IMAGES") == "present":
        return Target(environment, started)
    if (NODE / "load-image").exists() and (beside / "ctr").exists():
        return Target(environment, started, _on_node())
    return Target(environment, started, _with_docker(Kubectl(environment)("config", "current-context").strip()))


def _node_runs() -> bool:
    """Whether a node is running. The node's files alone don't prove that: the machine may have been switched off."""
    if not NODE_CONFIG.exists():
        return False
    kubectl = NODE_CONFIG.parent / "bin" / "kubectl"
    command = kubectl, "--kubeconfig", NODE_CONFIG, "get", "--raw", "/readyz", "--request-timeout=10s"
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _node(is_ours: bool) -> str:
    """Starts the node and returns the path of its kubeconfig. Raises NodeMissing.

    `is_ours`: no node was running before. Then the remains of a former node are removed first, and this node is removed
    if it doesn't start. `up` gives the node's programs only seconds to answer, and their first load from a cold disk
    takes longer. So `up` is repeated: each run goes on where the last one stopped.
    """
    if is_ours:
        _take_away()
    failed: CommandFailed | None = None
    for _ in range(NODE_ATTEMPTS):
        try:
            return _said(str(NODE / "up")).strip()
        except CommandFailed as error:
            failed = error
    if is_ours:
        _take_away()
    raise NodeMissing(f"the node doesn't start: {failed}")


def _take_away() -> None:
    with suppress(CommandFailed):
        _said(str(NODE / "down"))


def _on_node() -> Builder:
    return Builder(
        build=(str(NODE / "build-image"),),
        load=(str(NODE / "load-image"),),
        prefix="docker.io/library/",
        python="localhost/debian-python:bookworm",
        java="localhost/debian-python-jre:bookworm",
        bases=str(NODE / "base-image"),
    )


def _with_docker(context: str) -> Builder:
    if not (context.startswith("kind-") and shutil.which("docker") and shutil.which("kind")):
        raise TargetMissing(NO_IMAGES)
    base = os.environ.get("BASE_IMAGE", "python:3.13-slim")
    load = ("kind", "load", "docker-image", "--name", context.removeprefix("kind-"))
    return Builder(build=("docker", "build"), load=load, prefix="", python=base, java=base)


def _said(*command: str, seconds: float = 3600.0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout
