"""The charts under Helm 3 and Helm 4: they render, they refuse mistakes, and an API server takes their objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.operator.manifests.__main__ import OLDEST_KUBERNETES, rendered_files
from ottla.operator.plan.network import OPERATOR as ADMITTED
from tests.peers.helm import Helm, objections
from tests.peers.tools import ROOT

GOLDEN = Path(__file__).parent / "golden"
VALUES = Path(__file__).parent / "values"
EXAMPLES = sorted([*(ROOT / "manifests/examples").glob("*.yaml"), *(ROOT / "examples/spark").glob("*.yaml")])
REWRITE = "OTTLA_REWRITE_GOLDEN"
# A fresh machine builds both Helms first.
pytestmark = pytest.mark.timeout(2400)

OPERATOR = ("default", "everything", "namespaces", "no-cluster-role")
CLUSTER = ("default", "everything", "pools", "external-etcd")


@pytest.fixture(scope="module", params=[3, 4], ids=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(request.param, tmp_path_factory.mktemp("helm"))


def rendered(helm: Helm, chart: str, name: str, *words: str) -> str:
    file = VALUES / chart / f"{name}.yaml"
    return helm.template(chart, *(["--values", str(file)] if file.exists() else []), *words)


@pytest.mark.parametrize(
    ("chart", "name"),
    [*(("ottla-operator", name) for name in OPERATOR), *(("ottla-cluster", name) for name in CLUSTER)],
)
class TestEachSetOfValues:
    def test_renders_what_it_did(self, helm: Helm, chart: str, name: str) -> None:
        # test_generated checks the CRDs; here each change of a CRD would appear in four files.
        text = rendered(helm, chart, name, *(["--set", "crds.create=false"] if chart == "ottla-operator" else []))
        golden = GOLDEN / chart / f"{name}.yaml"
        if os.environ.get(REWRITE):
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text)
        assert golden.read_text() == text, f"check the difference; {REWRITE}=1 writes the new text"

    def test_renders_what_an_api_server_takes(self, helm: Helm, chart: str, name: str) -> None:
        assert objections(rendered(helm, chart, name)) == []

    def test_passes_the_linter(self, helm: Helm, chart: str, name: str) -> None:
        file = VALUES / chart / f"{name}.yaml"
        values = ["--values", str(file)] if file.exists() else []
        helm("lint", "--strict", "--kube-version", OLDEST_KUBERNETES, f"charts/{chart}", *values)


def test_what_is_there_without_helm_is_what_helm_renders(helm: Helm) -> None:
    for path, text in rendered_files(helm).items():
        assert (ROOT / path).read_text() == text, f"run `make docs HELM={helm.program}`"


@pytest.mark.parametrize(
    ("chart", "setting", "complaint"),
    [
        ("ottla-operator", "replica=2", "replica"),
        ("ottla-operator", "metrics.serviceMonitor.enabled=true", "enabled"),
        ("ottla-operator", "image.pullPolicy=Sometimes", "pullPolicy"),
        ("ottla-operator", "replicas=many", "replicas"),
        ("ottla-operator", "watchNamespaces={Data}", "watchNamespaces"),
        ("ottla-cluster", "brokers.replicas=3", "brokers"),
        ("ottla-cluster", "cluster.brokers.replicas=three", "replicas"),
        ("ottla-cluster", "cluster.brokers.storage.sise=10Gi", "sise"),
        ("ottla-cluster", "cluster.metadata.etcd.members=2", "members"),
        ("ottla-cluster", "topics.orders.partition=3", "orders"),
        ("ottla-cluster", "topics.orders.cluster.name=other", "orders"),
        ("ottla-cluster", "users.shop.authentication.typ=tls", "shop"),
    ],
)
def test_refuses_what_can_not_be_meant(helm: Helm, chart: str, setting: str, complaint: str) -> None:
    done = helm.run("template", "flights", f"charts/{chart}", "--kube-version", OLDEST_KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert complaint in done.stderr


@pytest.mark.parametrize("chart", ["ottla-operator", "ottla-cluster"])
def test_refuses_a_kubernetes_that_is_too_old(helm: Helm, chart: str) -> None:
    old = helm.run("template", "flights", f"charts/{chart}", "--kube-version", "1.29.9")
    assert "1.30" in old.stderr
    helm("template", "flights", f"charts/{chart}", "--kube-version", "1.33.5-gke.1000")


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def kinds(text: str) -> Sequence[str]:
    return [one["kind"] for one in objects(text)]


def test_crds_are_upgraded_and_kept(helm: Helm) -> None:
    crds = [one for one in objects(helm.template("ottla-operator")) if one["kind"] == "CustomResourceDefinition"]
    assert sorted(crd["metadata"]["name"] for crd in crds) == [
        "clusters.ottla.dev",
        "topics.ottla.dev",
        "users.ottla.dev",
    ]
    assert {crd["metadata"]["annotations"]["helm.sh/resource-policy"] for crd in crds} == {"keep"}
    assert "CustomResourceDefinition" not in kinds(helm.template("ottla-operator", "--set", "crds.create=false"))
    gone = objects(helm.template("ottla-operator", "--set", "crds.keep=false"))
    assert not any("annotations" in one["metadata"] for one in gone if one["kind"] == "CustomResourceDefinition")


def test_without_rights_on_the_cluster_there_is_no_cluster_role(helm: Helm) -> None:
    text = helm.template("ottla-operator", "--set", "watchNamespaces={data,web},rbac.clusterWide=false")
    found = objects(text)
    assert not [one["kind"] for one in found if one["kind"].startswith("ClusterRole")]
    places = [one["metadata"]["namespace"] for one in found if one["kind"] == "Role"]
    # data has two: the release's own namespace also has the Role for the Lease
    assert sorted(places) == ["data", "data", "web"]


def test_another_log_level_is_no_other_pod(helm: Helm) -> None:
    found = [objects(helm.template("ottla-operator", "--set", f"logLevel={level}")) for level in ("info", "debug")]
    deployments, configs = (
        [one for each in found for one in each if one["kind"] == kind] for kind in ("Deployment", "ConfigMap")
    )
    assert deployments[0] == deployments[1]
    assert [config["data"]["log.level"] for config in configs] == ["info", "debug"]
    variables = {each["name"]: each.get("value") for each in container(deployments[0])["env"]}
    (mount,) = (each for each in container(deployments[0])["volumeMounts"] if each["name"] == "config")
    assert variables["OTTLA_OPERATOR_LOG_LEVEL_FILE"] == f"{mount['mountPath']}/log.level"


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    """The operator's container."""
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_network_policies_of_clusters_know_the_operator(helm: Helm) -> None:
    found = objects(helm.template("ottla-operator", "--set", "nameOverride=kafka"))
    (deployment,) = (one for one in found if one["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert ADMITTED["podSelector"]["matchLabels"].items() <= labels.items()


def test_notes_say_what_comes_next(tmp_path: Path) -> None:
    helm = Helm(4, tmp_path)  # Helm 3 renders notes only where there is a cluster
    dry = ["--dry-run=client", "--namespace", "data"]
    notes = helm("install", "flights", "charts/ottla-cluster", *dry)
    assert "kubectl --namespace data wait clusters.ottla.dev/flights --for=condition=Ready" in notes
    assert "helm test flights --namespace data" in notes
    assert "kind: Topic" in notes
    notes = helm("install", "ottla", "charts/ottla-operator", *dry)
    assert "helm install flights charts/ottla-cluster --namespace flights" in notes


def test_a_topic_that_is_taken_away_isnt_rendered(helm: Helm) -> None:
    text = helm.template("ottla-cluster", "--set", "topics.orders.partitions=3,topics.old=null")
    (topic,) = (one for one in objects(text) if one["kind"] == "Topic")
    assert topic["metadata"]["name"] == "orders"
    assert topic["spec"] == {"cluster": {"name": "flights"}, "partitions": 3}


def test_users_are_rendered_with_their_cluster(helm: Helm) -> None:
    text = helm.template("ottla-cluster", "--set", "users.shop.authentication.type=tls,users.old=null")
    (user,) = (one for one in objects(text) if one["kind"] == "User")
    assert user["metadata"]["name"] == "shop"
    assert user["spec"] == {"cluster": {"name": "flights"}, "authentication": {"type": "tls"}}
    assert objections(text) == []


def test_numbers_stay_numbers(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "topics: {orders: {config: {retention.ms: 604800000}}}\ncluster: {config: {log.retention.bytes: 1e12}}\n"
    )
    text = helm.template("ottla-cluster", "--values", str(values))
    assert "retention.ms: 604800000\n" in text
    assert objections(text) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_api_server_takes_the_examples(example: Path) -> None:
    assert objections(example.read_text()) == []


def test_an_api_server_takes_what_the_chart_shows_off() -> None:
    annotations = yaml.safe_load((ROOT / "charts/ottla-operator/Chart.yaml").read_text())["annotations"]
    shown = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert objections(yaml.safe_dump_all(shown)) == []


def test_an_api_server_takes_our_definitions() -> None:
    assert objections((ROOT / "manifests/crds.yaml").read_text()) == []


@pytest.mark.parametrize(
    ("manifest", "objection"),
    [
        ("{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {port: 1}}", "unknown field"),
        ("{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: 1}}", "cannot unmarshal"),
        (
            "{apiVersion: ottla.dev/v1alpha1, kind: Cluster, metadata: {name: a}, spec: {brokers: {replicas: 1}}}",
            "storage",
        ),
        (
            "{apiVersion: ottla.dev/v1alpha1, kind: Cluster, metadata: {name: a},"
            " spec: {brokers: {replicas: 1, storage: {size: 1Gi}}, broker: 3}}",
            "unknown field",
        ),
        (
            "{apiVersion: monitoring.coreos.com/v1, kind: PrometheusRule, metadata: {name: a},"
            " spec: {groups: [{name: g, rules: [{alert: A, expr: 'sum(x'}]}]}}",
            "parse",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}",
            "not restricted",
        ),
    ],
)
def test_what_is_wrong_is_found(manifest: str, objection: str) -> None:
    assert objection in "\n".join(objections(manifest))
