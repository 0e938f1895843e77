"""The operator as its chart installs it, once for all scenarios; some of them take it away for a while."""

from __future__ import annotations

from typing import Any

from tests.e2e.kubectl import Kubectl, wait
from tests.e2e.target import ROOT, Target

RELEASE = "ottla-operator"
NAMESPACE = "ottla-system"
CHART = ROOT / "charts" / "ottla-operator"
SELECTOR = "app.kubernetes.io/name=ottla-operator"
EXPECTED = "couldn't be renewed for ", "was deleted: the operator stops"
PODS = {"pod-security.kubernetes.io/enforce": "restricted"}


class Operator:
    """Its release, its Deployment and its pods. One object for each scenario."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kube: Kubectl = target.namespace(NAMESPACE)
        self._ended: dict[tuple[str, int], str] = {}  # by pod and restart, what `_unexpected` says

    def install(self, *words: str) -> None:
        """`helm upgrade --install`, with more of helm's `words`; returns when it is ready.

        Raises AssertionError with what helm says and, since that is only that pods aren't ready, what events say.
        """
        self.endings()
        make_namespace(self.target, NAMESPACE)
        try:
            self.target.run(
                *("helm", "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE),
                *("--reset-values", "--wait", "--timeout", "3m", *words),  # none of the scenario before
            )
        except AssertionError as error:
            seen = self.kube("get", "pods", "-o", "wide") + self.kube("get", "events", "--sort-by=.lastTimestamp")
            raise AssertionError(f"{error}\n{seen}") from None

    def uninstall(self) -> None:
        """`helm uninstall`; the CRDs stay."""
        self.endings()
        self.target.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "2m")

    def remove(self) -> None:
        """Nothing of it is left, and no definition of ours."""
        self.target.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
        self.kube.delete("namespace", NAMESPACE, "--ignore-not-found")
        self.kube.delete("crd", "clusters.ottla.dev", "topics.ottla.dev", "--ignore-not-found")

    def scale(self, replicas: int) -> None:
        """To so many pods; returns when they are there, or none is."""
        self.endings()
        self.kube("scale", "deployment", RELEASE, f"--replicas={replicas}")
        wait(f"{replicas} operators", lambda: self._ready() == replicas and len(self.pods()) == replicas)

    def kill(self) -> None:
        """Its pods are gone at once, as with their node; the Deployment makes new ones."""
        self.endings()
        for pod in self.pods():
            self.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")

    def pods(self) -> list[str]:
        """Names of the pods that aren't on their way out."""
        found = self.kube.all("pods", SELECTOR)
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def endings(self) -> list[str]:
        """The last lines of processes that ended by themselves, other than for these reasons.

        Who takes pods away asks before, so that these are of pods, too, that are gone since.
        """
        for pod in self.kube.all("pods", SELECTOR):
            name = pod["metadata"]["name"]
            for status in pod["status"].get("containerStatuses", []):
                key = name, status["restartCount"]
                if status["restartCount"] and key not in self._ended:
                    self._ended[key] = _unexpected(status, self.kube("logs", name, "--previous"))
        return [line for line in self._ended.values() if line]

    def _ready(self) -> int:
        count: int = self.kube.get("deployment", RELEASE)["status"].get("readyReplicas", 0)
        return count


def make_namespace(target: Target, name: str) -> None:
    """A namespace that admits only pods that are `restricted`."""
    target.namespace(name).apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**PODS, "ottla-e2e": "true"}}}
    )


def _unexpected(status: dict[str, Any], log: str) -> str:
    """How a container's process ended; empty where it told that it would, and did so by itself."""
    code = status["lastState"].get("terminated", {}).get("exitCode")
    if code == 1 and any(reason in log for reason in EXPECTED):
        return ""
    return f"exit code {code}: {''.join(log.splitlines()[-1:])}"
