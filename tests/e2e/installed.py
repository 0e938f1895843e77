"""The operator as its chart installs it, once for all scenarios; some of them take it away for a while."""

from __future__ import annotations

from tests.e2e.kubectl import Kubectl, wait
from tests.e2e.target import ROOT, Target

RELEASE = "ottla-operator"
NAMESPACE = "ottla-system"
CHART = ROOT / "charts" / "ottla-operator"
SELECTOR = "app.kubernetes.io/name=ottla-operator"
PODS = {"pod-security.kubernetes.io/enforce": "restricted"}


class Operator:
    """Its release, its Deployment and its pods."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kube: Kubectl = target.namespace(NAMESPACE)

    def install(self, *words: str) -> None:
        """`helm upgrade --install`, with more of helm's `words`; returns when it is ready."""
        make_namespace(self.target, NAMESPACE)
        self.target.run(
            *("helm", "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE),
            *("--wait", "--timeout", "3m", *words),
        )

    def uninstall(self) -> None:
        """`helm uninstall`; the CRDs stay."""
        self.target.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "2m")

    def remove(self) -> None:
        """Nothing of it is left, and no definition of ours."""
        self.target.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
        self.kube.delete("namespace", NAMESPACE, "--ignore-not-found")
        self.kube.delete("crd", "clusters.ottla.dev", "topics.ottla.dev", "--ignore-not-found")

    def scale(self, replicas: int) -> None:
        """To so many pods; returns when they are there, or none is."""
        self.kube("scale", "deployment", RELEASE, f"--replicas={replicas}")
        wait(f"{replicas} operators", lambda: self._ready() == replicas and len(self.pods()) == replicas)

    def kill(self) -> None:
        """Its pods are gone at once, as with their node; the Deployment makes new ones."""
        for pod in self.pods():
            self.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")

    def pods(self) -> list[str]:
        """Names of the pods that aren't on their way out."""
        found = self.kube.all("pods", SELECTOR)
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def endings(self) -> list[str]:
        """The last lines of processes that ended by themselves, other than for these reasons."""
        expected = "the lease couldn't be renewed", "was deleted: the operator stops"
        ended = [
            self.kube("logs", pod["metadata"]["name"], "--previous", "--tail=1").strip()
            for pod in self.kube.all("pods", SELECTOR)
            if any(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
        ]
        return [line for line in ended if not any(reason in line for reason in expected)]

    def _ready(self) -> int:
        count: int = self.kube.get("deployment", RELEASE)["status"].get("readyReplicas", 0)
        return count


def make_namespace(target: Target, name: str) -> None:
    """A namespace that admits only pods that are `restricted`."""
    target.namespace(name).apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**PODS, "ottla-e2e": "true"}}}
    )
