"""A person or an autoscaler scales a Cluster, and `helm upgrade` of its chart leaves that number alone.

The tests run on a real API server, with Helm 3 and Helm 4. The number is written as by `kubectl scale` and the
HorizontalPodAutoscaler (also KEDA's): through the Cluster's subresource `scale`. No broker runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes.aio import client, config

from tests.peers.helm import Helm
from tests.peers.kube_apiserver import KubeApiServer
from tests.peers.tools import ROOT

pytestmark = pytest.mark.timeout(2400)

CLUSTER = "/apis/ottla.dev/v1alpha1/namespaces/data/clusters/flights"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFIGURED = ("--set-string", "cluster.config.log\\.retention\\.hours=7")


class Api:
    """Requests to one API server, each over a connection of its own."""

    def __init__(self, server: KubeApiServer) -> None:
        self._kubeconfig = str(server.kubeconfig)

    def __call__(self, method: str, path: str, body: Any = None, content: str = "application/json") -> dict[str, Any]:
        async def request() -> dict[str, Any]:
            await config.load_kube_config(self._kubeconfig)
            async with client.ApiClient() as api:
                made = await api.param_serialize(
                    method,
                    path,
                    header_params={"Accept": "application/json", "Content-Type": content},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                answer = await api.call_api(*made, _request_timeout=30)
                found: dict[str, Any] = json.loads(await answer.read())
            assert answer.status < 300, found
            return found

        return asyncio.run(request())

    def scaled(self, replicas: int, manager: str = "kubectl") -> None:
        """Writes the number through the subresource, as `kubectl scale` and autoscalers do."""
        scale = self("GET", f"{CLUSTER}/scale")
        scale["spec"]["replicas"] = replicas
        self("PUT", f"{CLUSTER}/scale?fieldManager={manager}", scale)

    @property
    def replicas(self) -> int:
        return int(self("GET", CLUSTER)["spec"]["brokers"]["replicas"])


@pytest.fixture(params=[3, 4], ids=["helm3", "helm4"])
def release(
    request: pytest.FixtureRequest, server: KubeApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Api, Helm]]:
    """A release of the Cluster's chart in an empty namespace, with three brokers."""
    ask = Api(server)
    helm = Helm(request.param, tmp_path_factory.mktemp("helm"), str(server.kubeconfig))
    helm(
        "upgrade", "--install", "definitions", "charts/ottla-operator", "--namespace", "default", "--set", "replicas=1"
    )
    wait_until_defined(ask)
    helm("install", "flights", "charts/ottla-cluster", "--namespace", "data", "--create-namespace")
    yield ask, helm
    helm("uninstall", "flights", "--namespace", "data")


def wait_until_defined(ask: Api) -> None:
    for _ in range(100):
        definition = ask("GET", f"{DEFINITIONS}/clusters.ottla.dev")
        if any(
            each["type"] == "Established" and each["status"] == "True" for each in definition["status"]["conditions"]
        ):
            return
    raise AssertionError("Clusters aren't defined")


def upgraded(helm: Helm, *words: str) -> Any:
    return helm.run("upgrade", "flights", "charts/ottla-cluster", "--namespace", "data", *words)


def test_who_scales_is_left_alone_by_helm_upgrade(release: tuple[Api, Helm]) -> None:
    ask, helm = release
    ask.scaled(5)
    done = upgraded(helm, "--set", "keepReplicas=true", *CONFIGURED)
    assert done.returncode == 0, done.stderr
    assert ask.replicas == 5
    assert ask("GET", CLUSTER)["spec"]["config"]["log.retention.hours"] == "7", "everything else is upgraded"
    ask.scaled(4, "kube-controller-manager")
    done = upgraded(helm, "--set", "keepReplicas=true")
    assert done.returncode == 0, done.stderr
    assert ask.replicas == 4
    done = upgraded(helm, "--set", "cluster.brokers.replicas=4")
    assert done.returncode == 0, done.stderr
    assert ask.replicas == 4, "with the present number in the values, keepReplicas may be dropped"


def test_without_being_told_helm_upgrade_wants_its_own_number(release: tuple[Api, Helm]) -> None:
    """Helm 4 refuses and names the field's owner; Helm 3 overwrites the number silently, as docs/kubernetes.md says."""
    ask, helm = release
    ask.scaled(5)
    done = upgraded(helm, *CONFIGURED)
    if helm.version == 4:
        assert done.returncode != 0
        assert 'conflict with "kubectl"' in done.stderr
        assert ".spec.brokers.replicas" in done.stderr
        assert ask.replicas == 5
    else:
        assert ask.replicas == 5, "the values haven't changed"
        done = upgraded(helm, "--set", "cluster.brokers.replicas=4")
        assert (done.returncode, ask.replicas) == (0, 4)


def test_the_first_installation_takes_the_number_of_the_values(release: tuple[Api, Helm]) -> None:
    ask, helm = release
    where = ("--namespace", "other", "--create-namespace")
    helm("install", "flights", "charts/ottla-cluster", *where, "--set", "keepReplicas=true,cluster.brokers.replicas=6")
    try:
        other = ask("GET", CLUSTER.replace("/data/", "/other/"))
        assert other["spec"]["brokers"]["replicas"] == 6
        assert ask.replicas == 3, "the Cluster of another namespace isn't changed"
    finally:
        helm("uninstall", "flights", "--namespace", "other")


def test_an_autoscaler_finds_the_brokers_and_their_number(release: tuple[Api, Helm]) -> None:
    """The controller of HorizontalPodAutoscalers finds the present number of brokers, and a selector of their pods."""
    ask, _ = release
    status = {"status": {"brokers": {"replicas": 3, "selector": "app.kubernetes.io/component=broker"}}}
    ask("PATCH", f"{CLUSTER}/status", status, "application/merge-patch+json")
    scale = ask("GET", f"{CLUSTER}/scale")
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 3, "selector": "app.kubernetes.io/component=broker"}
    made, autoscaler = yaml.safe_load_all((ROOT / "manifests/examples/autoscaling.yaml").read_text())
    target = autoscaler["spec"]["scaleTargetRef"]
    assert target == {name: made[name] for name in ("apiVersion", "kind")} | {"name": made["metadata"]["name"]}
    ask("POST", "/apis/autoscaling/v2/namespaces/data/horizontalpodautoscalers?dryRun=All", autoscaler)
