"""One refused object, or one unforeseen error, stops only its part of a Cluster, in a Kubernetes in memory."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
import yaml

from ottla.operator.doctor import CRDS
from ottla.operator.kube import KubeError
from ottla.operator.plan.roll import Report
from tests.unit.operator.test_cluster import OUTSIDE, Scene, running

FORBIDDEN = KubeError(403, "applying", "forbidden: exceeded quota")


def _troubles(scene: Scene) -> dict[str, tuple[str, str]]:
    return {
        each["type"].removesuffix("Reconciled"): (each["reason"], each["message"])
        for each in scene.status["conditions"]
        if each["type"].endswith("Reconciled")
    }


def test_a_budget_that_is_refused_stops_nothing_and_is_mended_with_its_condition() -> None:
    scene = running()
    scene.world.refusals["apply PodDisruptionBudget k-brokers"] = FORBIDDEN
    scene.pages.said = {0: Report(risks={"below_min_isr": ("orders-1",)})}
    scene.rounds(2)
    assert _troubles(scene) == {"BrokerBudget": ("Refused", "applying: forbidden: exceeded quota")}
    assert scene.condition("Ready") == ("False", "NotApplied")
    assert scene.world.warnings == [
        ("NotApplied", "applying: forbidden: exceeded quota"),
        ("BrokerBudgetFailed", "applying: forbidden: exceeded quota"),
    ]
    failing = scene.reconciler.failing[scene.key]
    assert [part for part, fails in failing.items() if fails] == ["BrokerBudget"]
    scene.world.refusals.clear()
    scene.rounds(1)
    assert scene.budget() == 0
    assert _troubles(scene) == {}
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert not any(scene.reconciler.failing[scene.key].values())


def test_a_service_whose_port_is_taken_stops_neither_etcd_nor_rolls_nor_the_budget() -> None:
    """Before the fix, a second Cluster whose node port was taken never got an etcd on a real Kubernetes, and its
    PodDisruptionBudget stayed at 1.
    """
    listeners = [
        {"name": "plain", "port": 9092, "type": "Internal"},
        {"name": "node", "port": 9095, "type": "NodePort", "nodePorts": {"first": 31000}},
    ]
    first = running()
    first.world.taken_ports.add(31001)
    scene = Scene("m", first.world, listeners=listeners)
    scene.rounds(8)
    assert scene.pods() == ["m-broker-0", "m-broker-1", "m-broker-2"]
    assert ("Service", "shop", "m-broker-2-node") in scene.world.objects
    assert _troubles(scene).keys() == {"ExternalServices"}
    assert "already allocated" in scene.status["message"]
    scene.pages.said = {1: Report(risks={"below_min_isr": ("orders-1",)})}
    scene.rounds(1)
    assert scene.budget() == 0
    scene.pages.said.clear()
    scene.world.edit("Cluster", "m", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(10)
    assert scene.status["version"] == "2"
    first.rounds(2)
    assert first.condition("Ready") == ("True", "BrokersServe")
    assert _troubles(first) == {}
    scene.world.taken_ports.clear()
    scene.rounds(2)
    assert _troubles(scene) == {}


OBJECTS = {
    "apply Service k-brokers": "BrokerService",
    "apply Service k-bootstrap": "BootstrapService",
    "apply Service k-etcd": "EtcdService",
    "apply ConfigMap k-config": "BrokerConfig",
    "apply ConfigMap k-client": "ClientConfig",
    "apply ConfigMap k-followed": "FollowedSpec",
    "apply ConfigMap k-etcd": "EtcdConfig",
    "apply StatefulSet k-etcd": "EtcdMembers",
    "apply StatefulSet k-broker": "Brokers",
    "apply PodDisruptionBudget k-etcd": "EtcdBudget",
    "apply PodDisruptionBudget k-brokers": "BrokerBudget",
    "list CronJob": "Snapshots",
    "list NetworkPolicy": "NetworkPolicies",
}
OF_EVERY_STATUS = ("apply StatefulSet k-broker", "list NetworkPolicy")


@pytest.mark.parametrize(
    ("object_", "status"),
    [
        *((object_, 403) for object_ in OBJECTS),
        *((object_, status) for object_ in OF_EVERY_STATUS for status in (0, 409, 422, 500)),
    ],
)
def test_one_refusal_is_one_condition_and_a_roll_goes_on(object_: str, status: int) -> None:
    part = OBJECTS[object_]
    scene = running(
        networkPolicy={"enabled": True}, metadata={"etcd": {"members": 1, "snapshots": {"schedule": "0 * * * *"}}}
    )
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.reconcile()  # all objects are applied, and the roll has begun
    scene.world.settle()
    scene.world.refusals[object_] = KubeError(status, "asking", "no")
    scene.rounds(14)
    assert scene.status["version"] == "2"
    troubles = _troubles(scene)
    assert troubles[part] == ("InvalidObject" if status == 422 else "Refused", "asking: no")
    needing = {name for name, (reason, _) in troubles.items() if reason == "Waiting"}
    known = {each.name: each for each in scene.reconciler.parts}
    assert all(set(known[name].needs) & troubles.keys() for name in needing)
    scene.world.refusals.clear()
    scene.rounds(2)
    assert _troubles(scene) == {}
    assert scene.condition("Ready") == ("True", "BrokersServe")


def test_a_part_that_needs_a_refused_one_says_so_and_is_not_done() -> None:
    scene = Scene()
    scene.world.refusals["apply ConfigMap k-config"] = FORBIDDEN
    scene.rounds(5)
    assert _troubles(scene)["Brokers"] == ("Waiting", "waits for BrokerConfig, which isn't done")
    assert scene.pods() == []
    assert scene.condition("MetadataReady") == ("True", "EtcdAnswers")
    failing = scene.reconciler.failing[scene.key]
    assert [part for part, fails in failing.items() if fails] == ["BrokerConfig"], "an alert names only the cause"
    assert ("BrokersFailed", _troubles(scene)["Brokers"][1]) not in scene.world.warnings


LABEL = KubeError(422, "applying StatefulSet k-broker", 'metadata.labels: Invalid value: "-team-"')


def test_an_object_that_kubernetes_finds_invalid_has_a_reason_of_its_own() -> None:
    """Only another spec helps, and GitOps tools have to know that. Before the fix, the reason was NotApplied, as for a
    quota or an API server that can't be reached."""
    scene = running()
    scene.world.refusals |= {"apply ConfigMap k-client": FORBIDDEN, "apply StatefulSet k-broker": LABEL}
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(template={"metadata": {"labels": {}}}))
    scene.rounds(2)
    assert _troubles(scene) == {"ClientConfig": ("Refused", str(FORBIDDEN)), "Brokers": ("InvalidObject", str(LABEL))}
    assert scene.condition("Ready") == ("False", "InvalidObject")
    assert scene.status["message"] == str(LABEL), "what a person has to change comes first"
    assert ("InvalidObject", str(LABEL)) in scene.world.warnings
    del scene.world.refusals["apply StatefulSet k-broker"]
    scene.rounds(1)
    assert scene.condition("Ready") == ("False", "NotApplied")


def test_one_invalid_object_of_several_refused_ones_is_told_first() -> None:
    scene = running(listeners=OUTSIDE)
    scene.world.refusals |= {"apply Service k-broker-0-node": FORBIDDEN, "apply Service k-broker-1-node": LABEL}
    scene.rounds(2)
    assert _troubles(scene) == {"ExternalServices": ("InvalidObject", f"{LABEL} (and 1 more)")}


def test_what_nobody_thought_of_stops_only_its_part() -> None:
    scene = running()
    scene.world.refusals["apply Service k-bootstrap"] = KeyError("ports")
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(12)
    said = "BootstrapService failed unexpectedly (KeyError): 'ports'"
    assert _troubles(scene) == {"BootstrapService": ("Unexpected", said)}
    assert [reason for reason, _ in scene.world.warnings] == ["NotApplied", "BootstrapServiceFailed"], "told only once"
    assert scene.status["version"] == "2"


def test_a_plan_that_can_not_be_made_keeps_what_is_there_from_being_deleted() -> None:
    scene = running(networkPolicy={"enabled": True})
    policies = {key for key in scene.world.objects if key[0] == "NetworkPolicy"}
    scene.cluster["spec"]["networkPolicy"]["clients"] = ["no object"]
    (part,) = (each for each in scene.reconciler.parts if each.name == "NetworkPolicies")

    def plans(visit: object) -> list[dict[str, object]]:
        raise TypeError("a plan")

    object.__setattr__(part, "plans", plans)
    scene.rounds(2)
    assert policies <= scene.world.objects.keys()
    assert _troubles(scene)["Pruning"] == ("Unexpected", "Pruning failed unexpectedly (TypeError): a plan")


def test_the_budget_lets_nobody_go_while_it_is_not_known_what_brokers_say() -> None:
    scene = running()
    scene.world.refusals["list PersistentVolumeClaim"] = FORBIDDEN
    scene.rounds(1)
    assert scene.budget() == 0
    assert "BrokerStates" in _troubles(scene)
    assert scene.status["brokers"]["summary"] == "3/3", "without an answer the last summary stays"


def test_an_api_server_that_lists_no_pods_is_told() -> None:
    scene = running()
    scene.world.refusals["list Pod"] = KubeError(403, "listing Pod", "forbidden")
    with pytest.raises(KubeError):
        scene.reconcile()
    assert scene.condition("Ready") == ("False", "NotApplied")
    assert scene.status["message"] == "listing Pod: forbidden"
    assert ("NotApplied", "listing Pod: forbidden") in scene.world.warnings


def test_every_part_of_the_table_has_a_line_on_the_page(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "kubernetes.md").read_text()
    lines = re.findall(r"^\| `(\w+)Reconciled` \|.*\| (.*) ?\|$", page, re.MULTILINE)
    told = [(name, tuple(re.findall(r"`(\w+)`", needs))) for name, needs in lines]
    assert told == [(part.name, part.needs) for part in Scene().reconciler.parts]


def test_a_status_that_can_not_be_told_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = running()

    def untold(*_: object) -> None:
        raise ZeroDivisionError("a count")

    monkeypatch.setattr("ottla.operator.cluster.cluster_status", untold)
    with pytest.raises(ZeroDivisionError):
        scene.reconcile()
    assert scene.condition("Ready") == ("False", "NotApplied")
    assert ("NotApplied", "a count") in scene.world.warnings


def test_the_status_has_room_for_every_part_at_once() -> None:
    scene = running(listeners=OUTSIDE)

    async def fail(_: object) -> None:
        raise KubeError(403, "asking", "no")

    scene.reconciler.parts = tuple(replace(part, does=fail, needs=()) for part in scene.reconciler.parts)
    scene.rounds(1)
    assert len(_troubles(scene)) == len(scene.reconciler.parts)
    definition = yaml.safe_load((CRDS / "clusters.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert len(scene.status["conditions"]) + 4 <= status["conditions"]["maxItems"], "more would be refused"


def test_a_part_that_hangs_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = running()
    monkeypatch.setattr("ottla.operator.parts.PART_S_MAX", 0.05)

    async def hang(*_: object) -> None:
        await asyncio.sleep(60)

    scene.kafka.settings = hang  # type: ignore[assignment, method-assign]
    scene.pages.said = {0: Report(risks={"below_min_isr": ("orders-1",)})}
    scene.rounds(1)
    assert _troubles(scene) == {"Settings": ("Refused", "Settings took too long")}
    assert scene.budget() == 0
