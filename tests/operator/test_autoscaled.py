"""Kubernetes' own HorizontalPodAutoscaler scales a Cluster as manifests/examples/autoscaling.yaml says.

The API server is real, and so is the controller manager, with only its controller of autoscalers. A stand-in of the
metrics server reports the brokers' CPU; no broker runs.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.test_scaled_from_outside import Api, wait_until_defined
from tests.peers.helm import Helm
from tests.peers.kube_apiserver import BUILT, KubeApiServer
from tests.peers.tools import ROOT
from tests.peers.wire import free_port

pytestmark = pytest.mark.timeout(2400)

EXAMPLE = ROOT / "manifests/examples/autoscaling.yaml"
LABELS = {"app.kubernetes.io/instance": "flights", "app.kubernetes.io/component": "broker"}
NAMESPACE = "data"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
MERGE = "application/merge-patch+json"


class MetricsServer:
    """A stand-in of the metrics server: each pod in `pods` uses `millicores`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the API server's folder, which has its certificate."""
        self.millicores = 100
        self.pods: list[str] = []
        owner = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(owner.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # the API server has created these files
        context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> dict[str, Any]:
        group = "metrics.k8s.io/v1beta1"
        if not path.startswith(f"/apis/{group}/namespaces/"):
            kind = {
                "name": "pods",
                "singularName": "",
                "namespaced": True,
                "kind": "PodMetrics",
                "verbs": ["get", "list"],
            }
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": [kind]}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        used = {"cpu": f"{self.millicores}m", "memory": "100Mi"}
        items = [
            {
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": LABELS},
                "timestamp": now,
                "window": "30s",
                "containers": [{"name": "broker", "usage": used}],
            }
            for name in self.pods
        ]
        return {"kind": "PodMetricsList", "apiVersion": group, "metadata": {}, "items": items}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metrics(server: KubeApiServer) -> Iterator[MetricsServer]:
    serving = MetricsServer(server.kubeconfig.parent)
    yield serving
    serving.close()


@pytest.fixture
def controller(server: KubeApiServer, tmp_path: Path) -> Iterator[Path]:
    """Runs the controller of HorizontalPodAutoscalers, and yields the path of its log file."""
    program = Path(os.environ.get("KUBE_CONTROLLER_MANAGER", BUILT.with_name("kube-controller-manager")))
    if not program.exists():
        pytest.skip("needs a kube-controller-manager: set KUBE_CONTROLLER_MANAGER to one")
    command = [
        str(program),
        f"--kubeconfig={server.kubeconfig}",
        "--controllers=horizontal-pod-autoscaler-controller",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={tmp_path}",
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
    ]
    log = tmp_path / "controller.log"
    with log.open("ab") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, cwd=tmp_path)
    yield log
    process.kill()
    process.wait()


def announce(ask: Api, metrics: MetricsServer) -> None:
    """Has the API server forward requests for metrics to the stand-in."""
    ports = [{"port": metrics.port, "protocol": "TCP"}]
    service = {"type": "ExternalName", "externalName": "localhost", "ports": ports}
    made = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"}, "spec": service}
    ask("POST", "/api/v1/namespaces/default/services", made)
    where = {"namespace": "default", "name": "metrics", "port": metrics.port}
    spec = {"group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": True, "service": where}
    more = {"groupPriorityMinimum": 100, "versionPriority": 100}
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {**spec, **more},
    }
    ask("POST", "/apis/apiregistration.k8s.io/v1/apiservices", registration)


def broker(ask: Api, name: str) -> None:
    """Creates a broker's pod that has been ready for longer than a start takes."""
    containers = [{"name": "broker", "image": "ottla", "resources": {"requests": {"cpu": "250m"}}}]
    spec = {"containers": containers, "nodeName": "node"}
    ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": spec})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [ready]}
    ask("PATCH", f"{PODS}/{name}/status", {"status": status}, MERGE)


def test_a_horizontal_pod_autoscaler_scales_a_cluster_by_its_brokers_cpu(
    server: KubeApiServer, metrics: MetricsServer, controller: Path, tmp_path: Path
) -> None:
    ask = Api(server)
    helm = Helm(4, tmp_path / "helm", str(server.kubeconfig))
    helm("install", "definitions", "charts/ottla-operator", "--namespace", "default")
    wait_until_defined(ask)
    ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster, autoscaler = yaml.safe_load_all(EXAMPLE.read_text())
    for direction in autoscaler["spec"]["behavior"].values():
        direction["stabilizationWindowSeconds"] = 0  # otherwise the test would wait for ten minutes
    ask("POST", f"/apis/ottla.dev/v1alpha1/namespaces/{NAMESPACE}/clusters", cluster)
    selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
    path = f"/apis/ottla.dev/v1alpha1/namespaces/{NAMESPACE}/clusters/flights"
    status = {"status": {"brokers": {"replicas": 3, "selector": selector}}}  # as the operator writes it
    ask("PATCH", f"{path}/status", status, MERGE)
    metrics.pods = [f"flights-broker-{number}" for number in range(3)]
    for name in metrics.pods:
        broker(ask, name)
    announce(ask, metrics)
    scalers = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
    ask("POST", scalers, autoscaler)

    def scaler() -> dict[str, Any]:
        return dict(ask("GET", f"{scalers}/flights").get("status") or {})

    def wait(what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if what in {each["reason"] for each in scaler().get("conditions") or ()}:
                return
            time.sleep(0.5)
        raise AssertionError(f"{what}: {json.dumps(scaler(), indent=1)}\n{controller.read_text()[-2000:]}")

    wait("ValidMetricFound")
    assert ask.replicas == 3, "the brokers are mostly idle"
    metrics.millicores = 1400
    wait("ScaleUpLimit")
    assert ask.replicas == 4, "the brokers use twice the target, and one broker is added at a time"
    assert scaler()["desiredReplicas"] == 4
