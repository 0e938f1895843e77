"""The operator as its chart installs it, once for all scenarios. Some scenarios remove it for a while."""

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
    """The operator's release, Deployment and pods. An object of this class keeps the ends of processes that it has
    seen, so each scenario needs a new object."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kube: Kubectl = target.namespace(NAMESPACE)
        self._ended: dict[tuple[str, int], str] = {}  # (pod, restart) → the text of `_unexpected`

    def install(self, *words: str) -> None:
        """Runs `helm upgrade --install`, with the further arguments `words`. Returns when the operator is ready.

        Raises AssertionError with helm's output and the events, because helm's output says only that pods aren't ready.
        """
        self.endings()
        make_namespace(self.target, NAMESPACE)
        try:
            self.target.run(
                *("helm", "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE),
                *("--reset-values", "--wait", "--timeout", "3m", *words),  # drops values of former scenarios
            )
        except AssertionError as error:
            seen = self.kube("get", "pods", "-o", "wide") + self.kube("get", "events", "--sort-by=.lastTimestamp")
            raise AssertionError(f"{error}\n{seen}") from None

    def uninstall(self) -> None:
        """Runs `helm uninstall`; the CRDs stay."""
        self.endings()
        self.target.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "2m")

    def remove(self) -> None:
        """Removes the release, its namespace and Ottla's CRDs."""
        self.target.run("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
        self.kube.delete("namespace", NAMESPACE, "--ignore-not-found")
        self.kube.delete("crd", "clusters.ottla.dev", "topics.ottla.dev", "users.ottla.dev", "--ignore-not-found")

    def scale(self, replicas: int) -> None:
        """Scales the Deployment, and waits until it has exactly this number of pods, all ready."""
        self.endings()
        self.kube("scale", "deployment", RELEASE, f"--replicas={replicas}")
        wait(f"{replicas} operators", lambda: self._ready() == replicas and len(self.pods()) == replicas)

    def kill(self) -> None:
        """Deletes the operator's pods without a grace period, as if their node had died. The Deployment creates new
        ones."""
        self.endings()
        for pod in self.pods():
            self.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")

    def pods(self) -> list[str]:
        """The names of the pods that aren't being deleted."""
        found = self.kube.all("pods", SELECTOR)
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def endings(self) -> list[str]:
        """The last log lines of operator processes that ended by themselves, except for the reasons in EXPECTED.

        `install`, `uninstall`, `scale` and `kill` call this first, so the lines of pods that they remove are kept.
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
    """A text about the end of a container's process; empty if the process ended itself for a reason in EXPECTED."""
    code = status["lastState"].get("terminated", {}).get("exitCode")
    if code == 1 and any(reason in log for reason in EXPECTED):
        return ""
    return f"exit code {code}: {''.join(log.splitlines()[-1:])}"
