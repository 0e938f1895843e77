"""A pod with an operator behind the proxy of faults, in place of the operator that the chart deploys.

The pod is like the Deployment's, with the same rights, labels, variables and files. But the account's token is at a
path where no client looks for it, and the program is `supervisor`.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.e2e.chaos.supervisor import ACCOUNT
from tests.e2e.installed import EXPECTED, RELEASE, Operator
from tests.e2e.kubectl import KubectlError, wait
from tests.e2e.target import CLIENTS_IMAGE, ROOT

POD = "chaos"
LOGS = ROOT / ".cache" / "e2e"
SEED_VARIABLE = "OTTLA_CHAOS_SEED"
TOKEN_S = 7200
_CALM = "import os, signal; os.kill(1, signal.SIGUSR1)"


class Chaos:
    """The pod with the operator and the proxy of faults, and the reports in its log."""

    def __init__(self, operator: Operator) -> None:
        self._kube = operator.kube

    def start(self, seed: int) -> None:
        """Starts the pod, and waits until its operator has the lease."""
        deployment = self._kube.get("deployment", RELEASE)
        self._kube.apply(pod_of(deployment["spec"]["template"], seed))
        wait("the operator begins", lambda: any("holds the lease" in line for line in self._lines()), 180)

    def calm(self) -> None:
        """Ends the faults. The operator keeps running."""
        self._kube.execute(POD, "python", "-c", _CALM)
        wait("the faults have ended", lambda: any(each.get("calm") for each in self.told()), 30)

    def stop(self) -> None:
        """Deletes the pod; its reports are lost."""
        self._kube.delete("pod", POD, "--ignore-not-found")

    def told(self) -> list[dict[str, Any]]:
        """The reports in order: the seed, each fault and each end of a process."""
        return [json.loads(line) for line in self._lines() if line.startswith('{"at": ')]

    def faults(self) -> Counter[str]:
        """The number of faults by their names."""
        return Counter(each["fault"] for each in self.told() if "fault" in each)

    def endings(self) -> list[str]:
        """The last lines of operator processes that ended by themselves, for unexpected reasons."""
        return [
            f"exit code {each['ended']}: {' '.join(each['last'])}"
            for each in self.told()
            if "ended" in each
            and not each["killed"]
            and not any(reason in line for reason in EXPECTED for line in each["last"])
        ]

    def keep_log(self, path: Path) -> Path:
        """Writes the pod's log to a file, as far as it can be read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(KubectlError):
            path.write_text(self._kube("logs", POD, "--timestamps"))
        return path

    def _lines(self) -> list[str]:
        return self._kube("logs", POD).splitlines()


@contextmanager
def in_its_place(operator: Operator, seed: int) -> Iterator[Chaos]:
    """Replaces the deployed operator for the time of the context."""
    operator.scale(0)
    chaos = Chaos(operator)
    try:
        chaos.start(seed)
        yield chaos
    except BaseException:
        print(f"what the operator and the proxy said is in {chaos.keep_log(LOGS / f'chaos-{seed}.log')}")
        raise
    finally:
        chaos.stop()
        operator.scale(1)


def pod_of(template: dict[str, Any], seed: int) -> dict[str, Any]:
    """The manifest of the pod with the operator and the proxy, from the pod template of the operator's Deployment."""
    spec = copy.deepcopy(template["spec"])
    (container,) = spec["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        container.pop(probe, None)
    container |= {
        "image": CLIENTS_IMAGE,
        "command": ["python", "-m", "tests.e2e.chaos.supervisor"],
        "args": [str(seed)],
        "resources": {"requests": {"cpu": "50m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}},
    }
    container["volumeMounts"].append({"name": "account", "mountPath": str(ACCOUNT), "readOnly": True})
    ca = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    token = {"path": "token", "expirationSeconds": TOKEN_S}
    spec["volumes"].append(
        {"name": "account", "projected": {"sources": [{"serviceAccountToken": token}, {"configMap": ca}]}}
    )
    spec |= {"automountServiceAccountToken": False, "restartPolicy": "Never", "terminationGracePeriodSeconds": 10}
    labels = {**template["metadata"]["labels"], "ottla-e2e": "chaos"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "labels": labels}, "spec": spec}
