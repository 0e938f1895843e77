"""The findings of `ottla operator doctor` in installations as the chart renders them, and in broken ones."""

from __future__ import annotations

import asyncio
import copy
import functools
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from ottla.operator.diagnosis import Finding, of_kubernetes
from ottla.operator.doctor import CRDS, Doctor
from ottla.operator.kinds import KINDS
from ottla.operator.kube import KubeError
from tests.peers.tools import ROOT

Object = dict[str, Any]
GOLDEN = ROOT / "tests/charts/golden/ottla-operator"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
VERSION = "0.1.0"


@functools.cache
def rendered(golden: str) -> bytes:
    """The chart's objects and the CRDs, pickled: unpickling takes a hundredth of the time of YAML."""
    paths = (GOLDEN / f"{golden}.yaml", *CRDS.glob("*.yaml"))
    return pickle.dumps([item for path in paths for item in yaml.safe_load_all(path.read_text())])


class Kubernetes:
    """The objects of a rendered chart, as if applied. The caller may read all of them."""

    def __init__(self, golden: str) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.refused: dict[str, int] = {}
        self.git_version = "v1.33.5"
        for item in pickle.loads(rendered(golden)):
            self.put(item)
        for item in self.all("CustomResourceDefinition"):
            item["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
        self.deployment["status"] = {"readyReplicas": 1}
        spec = {"holderIdentity": "pod", "renewTime": "2026-05-01T11:59:50.000000Z"}
        self.put({"kind": "Lease", "metadata": self.deployment["metadata"], "spec": spec})

    def put(self, item: Object) -> None:
        meta = item["metadata"]
        self.objects[item["kind"], meta.get("namespace", ""), meta["name"]] = item

    def all(self, *kinds: str) -> list[Object]:
        return [item for key, item in self.objects.items() if key[0] in kinds]

    def cluster(self, namespace: str, **status: Any) -> None:
        meta = {"namespace": namespace, "name": "k", "generation": 2, "creationTimestamp": "2026-05-01T00:00:00Z"}
        seen = {"observedGeneration": 2, "version": VERSION, **status}
        self.put({"kind": "Cluster", "metadata": meta, "spec": {}, "status": seen})

    @property
    def deployment(self) -> Object:
        return self.all("Deployment")[0]

    @property
    def lease(self) -> Object:
        return self.all("Lease")[0]

    @property
    def definition(self) -> Object:
        """The CRD of Clusters."""
        return self.objects["CustomResourceDefinition", "", "clusters.ottla.dev"]

    @property
    def fields(self) -> Object:
        """The fields of a Cluster's spec in the CRD."""
        schema: Object = self.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        fields: Object = schema["properties"]["spec"]["properties"]
        return fields

    # ---- the methods of `Kube`

    async def version(self) -> str:
        return self.git_version

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self._check(kind)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        self._check(kind)
        wanted = dict(part.split("=") for part in labels.split(",") if part)
        found = [item for item in self.all(kind) if wanted.items() <= (item["metadata"].get("labels") or {}).items()]
        return copy.deepcopy(found)

    async def create(self, wanted: Object) -> Object:
        """Answers a SubjectAccessReview by the roles that are bound to the account."""
        self._check(wanted["kind"])
        return {**wanted, "status": {"allowed": self._allowed(wanted["spec"])}}

    def _allowed(self, spec: Object) -> bool:
        asked = spec["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked["subresource"] else "")
        for binding in self.all("RoleBinding", "ClusterRoleBinding"):
            users = [f"system:serviceaccount:{one['namespace']}:{one['name']}" for one in binding["subjects"]]
            place = binding["metadata"].get("namespace", "")
            if spec["user"] not in users or place not in ("", asked["namespace"]):
                continue
            role = self.objects[binding["roleRef"]["kind"], place, binding["roleRef"]["name"]]
            for rule in role["rules"]:
                granted = asked["group"] in rule["apiGroups"] and resource in rule["resources"]
                if granted and asked["verb"] in rule["verbs"]:
                    return True
        return False

    def _check(self, kind: str) -> None:
        assert kind in KINDS
        if kind in self.refused:
            raise KubeError(self.refused[kind], kind, f"{kind} is forbidden")


def looked(kube: Kubernetes, version: str = VERSION) -> list[Finding]:
    return asyncio.run(Doctor(kube, version, NOW).look())


@pytest.mark.parametrize("golden", ["default", "everything", "namespaces", "no-cluster-role"])
def test_what_the_chart_renders_has_all_that_it_needs(golden: str) -> None:
    findings = looked(Kubernetes(golden))
    assert [finding for finding in findings if finding.broken] == []
    assert len(findings) == (4 if golden == "no-cluster-role" else 0), "each names what won't work"
    assert all("the only purpose of this right: " in finding.message for finding in findings)


def test_a_cluster_that_is_fine_is_no_finding() -> None:
    """The tests below break parts of this installation, which has no findings as it is."""
    kube = Kubernetes("default")
    kube.cluster("fine")
    assert looked(kube) == []


def without_pods(kube: Kubernetes) -> None:
    for role in kube.all("Role", "ClusterRole"):
        role["rules"] = [rule for rule in role["rules"] if "pods" not in rule["resources"]]


def with_secrets(kube: Kubernetes) -> None:
    kube.all("ClusterRole")[0]["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]})


def without_topics(kube: Kubernetes) -> None:
    del kube.objects["CustomResourceDefinition", "", "topics.ottla.dev"]


def second_operator(kube: Kubernetes) -> None:
    again = copy.deepcopy(kube.deployment)
    again["metadata"]["name"] = "another"
    kube.put(again)


BROKEN: list[tuple[Callable[[Kubernetes], object], bool, str]] = [
    (without_pods, True, "may not get, list, watch, patch, delete pods in all namespaces"),
    (with_secrets, False, "may list secrets in all namespaces, and needs none of these rights"),
    (without_topics, True, "there is no such definition, so the operator has nothing to watch"),
    (lambda kube: kube.fields.pop("paused"), True, "older than this version of Ottla: it lacks spec.paused"),
    (lambda kube: kube.fields.update(shape={}), False, "newer than this version of Ottla: only it has spec.shape"),
    (lambda kube: kube.fields["brokers"].update(description="?"), False, "rules aren't those of this version"),
    (lambda kube: kube.definition["metadata"].update(deletionTimestamp="now"), True, "the definition is being deleted"),
    (
        lambda kube: kube.definition["spec"]["versions"][0].update(name="v9"),
        True,
        "the definition has no version v1alpha1",
    ),
    (lambda kube: kube.definition.update(status={}), True, "Kubernetes doesn't serve the kind"),
    (lambda kube: kube.objects.pop(("Deployment", "data", "flights-ottla-operator")), True, "no operator is installed"),
    (lambda kube: kube.deployment.update(status={}), True, "no pod of the operator is ready"),
    (lambda kube: kube.lease.update(spec={}), True, "no process has the operator's Lease"),
    (lambda kube: kube.lease["spec"].update(renewTime="2026-05-01T11:00:00Z"), True, "renewed last 3600 s ago, by pod"),
    (second_operator, True, "the operator reconciles the same Clusters as data/another"),
    (
        lambda kube: kube.cluster("shop", observedGeneration=1),
        True,
        "the operator hasn't looked at the Cluster's newest spec",
    ),
    (
        lambda kube: kube.cluster("shop", version="0.0.9"),
        False,
        "the brokers run 0.0.9, and the Cluster's operator brings 0.1.0",
    ),
    (lambda kube: setattr(kube, "git_version", "v1.29.4-gke.1"), True, "needs 1.30 or newer"),
    (lambda kube: kube.refused.update(SubjectAccessReview=403), False, "SubjectAccessReview is forbidden"),
    (lambda kube: kube.refused.update(CustomResourceDefinition=403), False, "CustomResourceDefinition is forbidden"),
]


@pytest.mark.parametrize(("change", "broken", "message"), BROKEN, ids=[message for _, _, message in BROKEN])
def test_what_is_broken_is_found(change: Callable[[Kubernetes], object], broken: bool, message: str) -> None:
    kube = Kubernetes("default")
    kube.cluster("fine")
    change(kube)
    findings = looked(kube)
    assert {finding.broken for finding in findings if message in finding.message} == {broken}, findings
    assert all(finding.remedy for finding in findings)


def test_what_nobody_may_see_is_not_said_to_be_missing() -> None:
    kube = Kubernetes("default")
    kube.cluster("shop")
    kube.refused = dict.fromkeys(["Deployment", "Cluster", "Lease", "SubjectAccessReview"], 403)
    findings = looked(kube)
    assert {(finding.about, finding.broken) for finding in findings} == {("your own rights", False)}
    assert sorted(finding.message.partition(" ")[0] for finding in findings) == ["Cluster:", "Deployment:"]


def test_brokers_of_an_image_of_ones_own_are_as_they_should_be() -> None:
    kube = Kubernetes("default")
    for each in kube.deployment["spec"]["template"]["spec"]["containers"][0]["env"]:
        if each["name"] == "OTTLA_OPERATOR_IMAGE":
            each["value"] = "registry.example/ottla:mine"
    kube.cluster("shop", version="mine")
    assert looked(kube) == []


def test_a_namespace_that_nobody_watches_is_found() -> None:
    kube = Kubernetes("namespaces")
    kube.cluster("data")
    assert looked(kube) == []
    kube.cluster("elsewhere")
    (finding,) = looked(kube)
    assert (finding.about, finding.message) == ("Cluster elsewhere/k", "no operator watches the namespace elsewhere")


def test_an_operator_of_another_version_is_told() -> None:
    (finding,) = looked(Kubernetes("default"), "0.2.0")
    assert finding.message == "the operator is of version 0.1.0, and this command of 0.2.0"


def test_a_kubernetes_that_cant_be_reached_is_no_finding() -> None:
    kube = Kubernetes("default")
    kube.refused["Deployment"] = 0
    with pytest.raises(KubeError):
        looked(kube)


def test_which_kubernetes_is_too_old() -> None:
    too_old = {text: bool(list(of_kubernetes(text))) for text in ("v1.29.9", "v1.30.0", "v2.0.0", "v1.100.1", "?")}
    assert [text for text, old in too_old.items() if old] == ["v1.29.9"]
