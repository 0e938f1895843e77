"""`ottla operator doctor` as a person runs it, on a real API server that judges rights by its own RBAC."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.peers.helm import Helm
from tests.peers.kube_apiserver import KubeApiServer

pytestmark = pytest.mark.timeout(2400)

WHERE = ("--namespace", "ottla-system", "--create-namespace")


def doctor(kubeconfig: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `ottla operator doctor`."""
    command = [str(Path(sys.executable).with_name("ottla")), "operator", "doctor", *words]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(kubeconfig.parent), "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def findings(kubeconfig: Path) -> list[dict[str, Any]]:
    _, printed, complaint = doctor(kubeconfig, "--json")
    assert printed, complaint
    found: list[dict[str, Any]] = json.loads(printed)
    return found


def test_an_installation_is_looked_at(server: KubeApiServer, tmp_path: Path) -> None:
    helm = Helm(4, tmp_path, str(server.kubeconfig))
    code, printed, complaint = doctor(server.kubeconfig)
    assert (code, "no operator is installed" in printed, complaint) == (
        1,
        True,
        "error: 4 problems found that must be solved\n",
    )
    assert printed.startswith("ABOUT:      definition ")
    assert max(map(len, printed.splitlines())) < 200, "each text has a line of its own"
    # No controller makes pods here, so the only finding left is that the operator has no ready pod.
    helm("install", "ottla-operator", "charts/ottla-operator", *WHERE)
    assert [found["message"].partition(":")[0] for found in findings(server.kubeconfig)] == [
        "no pod of the operator is ready"
    ]
    helm("upgrade", "ottla-operator", "charts/ottla-operator", *WHERE, "--set", "rbac.create=false")
    told = [found["message"] for found in findings(server.kubeconfig)]
    account = "system:serviceaccount:ottla-system:ottla-operator"
    assert f"{account} may not get, create, patch secrets in all namespaces" in told
    assert f"{account} may not get, create, update leases in the namespace ottla-system" in told
    helm("upgrade", "ottla-operator", "charts/ottla-operator", *WHERE, "--set", "watchNamespaces={default}")
    assert [found["message"].partition(":")[0] for found in findings(server.kubeconfig)] == [
        "no pod of the operator is ready"
    ]


def test_no_way_to_kubernetes_is_one_line(tmp_path: Path) -> None:
    nowhere = tmp_path / "kubeconfig"
    server = {"name": "k", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}}
    context = {"name": "k", "context": {"cluster": "k", "user": "me"}}
    user = {"name": "me", "user": {"token": "t"}}
    document = {"clusters": [server], "users": [user], "contexts": [context], "current-context": "k"}
    nowhere.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **document}))
    code, printed, complaint = doctor(nowhere)
    assert (code, printed) == (3, "")
    assert complaint.startswith("error: asking Kubernetes for its version: ")
    assert "127.0.0.1:1" in complaint
    code, _, complaint = doctor(nowhere, "--context", "elsewhere")
    assert (code, complaint.startswith("error: kubectl's configuration can't be used: ")) == (1, True)
