"""A real API server of Kubernetes with its etcd, but without controllers, nodes and running pods.

As in every cluster, it validates objects, fills in defaults, prunes unknown fields and merges applied objects. The
program is $KUBE_APISERVER, or else that of `../shared/kube-node`, if it has been built.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.peers.etcd import Etcd
from tests.peers.wire import free_port

BUILT = Path(os.environ.get("KUBE_NODE_DIR", "/var/tmp/kube-node"), "bin", "kube-apiserver")
TOKEN = "test"
READY_S_MAX = 90


def kube_apiserver() -> Path:
    """The path of the program. Skips the test if there is none."""
    program = Path(os.environ.get("KUBE_APISERVER", BUILT))
    if not program.exists():
        pytest.skip("needs a kube-apiserver: set KUBE_APISERVER to one (1.30 or newer)")
    return program


class KubeApiServer:
    """A running API server with its data in `folder`. `kubeconfig` has an administrator's credentials."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._log = folder / "kube-apiserver.log"
        self.etcd = Etcd(folder / "etcd")
        self.port = free_port()
        (folder / "tokens").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        key = ec.generate_private_key(ec.SECP256R1())
        encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, none)
        public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        (folder / "sa.key").write_bytes(private)
        (folder / "sa.pub").write_bytes(public)
        command = [
            str(kube_apiserver()),
            f"--etcd-servers=http://{self.etcd.endpoint}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={folder}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'sa.pub'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            f"--token-auth-file={folder / 'tokens'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount,Priority",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {
                            "name": "k",
                            "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True},
                        }
                    ],
                    "users": [{"name": "admin", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "k", "context": {"cluster": "k", "user": "admin"}}],
                    "current-context": "k",
                }
            )
        )
        self._wait()

    def _wait(self) -> None:
        """Waits until the API server reports that it is ready. Raises AssertionError."""
        unverified = ssl._create_unverified_context()
        deadline = time.monotonic() + READY_S_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            connection = HTTPSConnection("127.0.0.1", self.port, timeout=5, context=unverified)
            try:
                connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
                if connection.getresponse().status == 200:
                    return
            except (OSError, HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.2)
        self.stop()
        raise AssertionError(f"the API server doesn't start:\n{self._log.read_text()[-4000:]}")

    def stop(self) -> None:
        """Stops the API server and its etcd."""
        self._process.kill()
        self._process.wait()
        self.etcd.kill()
