"""Resizes that webhooks change, that wait, or whose outcome isn't known: none continues for ever, and none stops other
work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ottla.operator.cluster import QUIET_S
from ottla.operator.kube import KubeError
from ottla.operator.spec.cluster import Defaults
from tests.unit.operator.kubernetes_world import Object
from tests.unit.operator.test_cluster import Scene, running
from tests.unit.operator.test_resized import BEFORE, LESS, MORE, STORAGE, before, births, change, given, pod, reasons

WINDOW = [{"cron": "0 2 * * *", "durationMinutes": 60}]


def capped(what: str, item: Object) -> None:
    """A webhook that allows no container more memory than before."""
    if what == "resize":
        item["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1024Mi"


def asked(scene: Scene) -> list[str]:
    return [write for write in scene.world.writes if write.startswith("resize")]


def pools(first: Object | None = None, second: Object | None = None) -> list[Object]:
    """Two pools, with the fields `first` and `second` changed."""
    of_first: Object = {"name": "a", "firstId": 0, "replicas": 1}
    of_second: Object = {"name": "b", "firstId": 100, "replicas": 2}
    return [of_first | (first or {}), of_second | (second or {})]


def uids_by_name(scene: Scene) -> dict[str, str]:
    return {name: scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}


def open_window(scene: Scene) -> None:
    scene.now = scene.now.replace(hour=2, minute=10) + timedelta(days=1)


# ---- resizes that others change


def test_a_resize_that_a_webhook_changes_is_asked_for_once_and_then_a_restart() -> None:
    """Before the fix, the resize was requested at every reconcile, without end."""
    scene = before()
    uids = births(scene)
    scene.world.webhook = capped
    change(scene, MORE)
    scene.rounds(20)
    assert asked(scene) == [f"resize Pod k-broker-{broker}" for broker in range(3)]
    assert not set(births(scene)) & set(uids)
    told = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert told == [
        f"k-broker-{broker} is restarted: its resources change, and not in place: Kubernetes accepted the request, but "
        "an admission webhook or another program changed the resources: limit of memory of broker was to be 2048Mi, "
        "and is 1024Mi"
        for broker in range(3)
    ]
    assert scene.condition("Rolling") == ("False", "UpToDate")


def test_what_was_changed_on_its_way_is_told_while_the_restart_waits_for_a_window() -> None:
    scene = before(maintenanceWindows=WINDOW)
    uids = births(scene)
    scene.world.webhook = capped
    change(scene, MORE)
    scene.rounds(10)
    assert births(scene) == uids
    assert len(asked(scene)) == 3
    assert scene.condition_message("Rolling") == (
        "Rolling 0/3: waiting for the next maintenance window; k-broker-0: its resources change, and not in place: "
        "Kubernetes accepted the request, but an admission webhook or another program changed the resources: limit of "
        "memory of broker was to be 2048Mi, and is 1024Mi"
    )
    open_window(scene)
    scene.rounds(14)
    assert not set(births(scene)) & set(uids)


def test_what_somebody_takes_back_before_it_is_done_is_not_asked_for_again() -> None:
    scene = before()
    uids = births(scene)
    scene.world.node_says["k-broker-0"] = "InProgress"
    change(scene, MORE)
    scene.rounds(3)
    assert given(scene)[0] == MORE
    pod(scene, 0)["spec"]["containers"][0]["resources"] = {**BEFORE}
    scene.rounds(14)
    assert asked(scene) == [f"resize Pod k-broker-{broker}" for broker in range(3)]
    assert births(scene)[0] != uids[0]
    assert births(scene)[1:] == uids[1:]
    (told,) = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert "another program gave the pod other resources: limit of memory of broker was to be 2048Mi" in told


def test_five_minutes_begin_when_kubernetes_takes_the_request() -> None:
    """Before the fix, a request that failed for long counted as a node that was slow for long."""
    scene = before()
    uids = births(scene)
    scene.world.refusals["resize Pod k-broker-0"] = KubeError(500, "patching Pod k-broker-0", "a webhook is away")
    scene.world.node_says["k-broker-0"] = "Deferred"
    change(scene, MORE)
    scene.rounds(4)
    scene.now += timedelta(minutes=10)
    scene.world.refusals.clear()
    scene.rounds(4)
    scene.now += timedelta(seconds=290)
    scene.rounds(4)
    assert births(scene) == uids
    scene.now += timedelta(seconds=20)
    scene.rounds(12)
    assert births(scene)[0] != uids[0]


def test_five_minutes_begin_though_the_answer_was_lost() -> None:
    """The operator died after the request, before it noted on the pod that Kubernetes had accepted the request."""
    scene = before()
    uids = births(scene)
    scene.world.node_says["k-broker-0"] = "Deferred"
    scene.world.refusals["resize Pod k-broker-0"] = KubeError(0, "patching Pod k-broker-0", "timed out")
    change(scene, MORE)
    scene.rounds(3)
    scene.world.refusals.clear()
    pod(scene, 0)["spec"]["containers"][0]["resources"] = {**MORE}
    scene.restart()
    scene.rounds(3)
    scene.now += timedelta(seconds=310)
    scene.rounds(12)
    assert births(scene)[0] != uids[0]
    assert births(scene)[1:] == uids[1:]


def test_a_status_that_tells_of_a_late_one_does_not_count_the_seconds() -> None:
    """If the status counted the seconds, each reconcile would change and write the status, and each write would cause
    another reconcile.
    """
    scene = before(maintenanceWindows=WINDOW)
    scene.world.node_says["k-broker-0"] = "Deferred"
    change(scene, MORE)
    scene.rounds(4)
    scene.now += timedelta(seconds=310)
    scene.rounds(10)
    assert "not in place: the resize isn't done after 300 s (Deferred: " in scene.condition_message("Rolling")
    scene.world.writes.clear()
    for _ in range(3):
        scene.now += timedelta(seconds=30)
        scene.rounds(1)
    assert scene.world.writes == []


# ---- windows


def test_another_releases_resources_wait_when_the_window_closes_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = running(image="ottla:1", maintenanceWindows=WINDOW)
    uids = births(scene)
    monkeypatch.setattr("ottla.operator.plan.broker_pods.DEFAULT_RESOURCES", MORE)
    scene.restart(Defaults("ottla:1", "etcd:1", "2"))
    open_window(scene)
    scene.rounds(4)
    assert given(scene).count(MORE) == 1
    scene.now = scene.now.replace(hour=4)
    scene.rounds(10)
    assert given(scene).count(MORE) == 1
    assert scene.status["operator"]["turn"]
    assert scene.condition_message("Rolling").endswith("waiting for the next maintenance window")
    assert scene.reconcile().requeue_after == QUIET_S
    open_window(scene)
    scene.rounds(10)
    assert (births(scene), given(scene)) == (uids, [MORE, MORE, MORE])


# ---- the next reconcile


def test_a_node_that_takes_its_time_is_not_asked_after_by_the_clock() -> None:
    """The watch of pods reports the node's answer. Before the fix, all brokers were asked every few seconds for
    nothing.
    """
    scene = before()
    scene.world.node_says["k-broker-0"] = "Deferred"
    change(scene, MORE)
    scene.rounds(6)
    assert scene.reconcile().requeue_after == QUIET_S


def test_what_is_refused_is_not_asked_for_by_the_clock() -> None:
    scene = before()
    scene.world.refusals["resize Pod k-broker-0"] = KubeError(403, "patching", "exceeded quota: team")
    change(scene, MORE)
    scene.rounds(6)
    result = scene.reconcile()
    assert (result.requeue_after, "exceeded quota" in result.failure) == (QUIET_S, True)


# ---- answers that can't be known, and work that mustn't wait for them


@pytest.mark.parametrize("what", ["revision", "offers"])
def test_a_resize_that_can_not_be_judged_stops_nothing_else(what: str) -> None:
    scene = before()
    uids = births(scene)
    change(scene, MORE)
    scene.reconcile()
    scene.world.settle()
    revisions = [name for kind, _, name in scene.world.objects if kind == "ControllerRevision"]
    requests = [f"get ControllerRevision {name}" for name in revisions] if what == "revision" else ["offers Pod resize"]
    scene.world.refusals |= {request: KubeError(500, request, "etcd is away") for request in requests}
    scene.world.objects["Cluster", "shop", "k"]["spec"]["config"] = {"log.retention.ms": "7200000"}
    scene.world.edit("Cluster", "k", lambda spec: None)
    scene.rounds(4)
    assert [each["type"] for each in scene.status["conditions"] if each["type"].endswith("Reconciled")] == [
        "ResizingReconciled"
    ]
    assert scene.condition("ResizingReconciled") == ("False", "Refused")
    assert "etcd is away" in scene.condition_message("ResizingReconciled")
    assert scene.kafka.dynamic == {"log.retention.ms": "7200000"}
    assert scene.budget() == 1
    assert scene.status["pools"][0]["outdated"] == 3
    assert scene.condition_message("Rolling") == (
        "Resizing 0/3: waiting for k-broker-0 to have its new resources "
        "(it isn't known whether they can change in place)"
    )
    assert births(scene) == uids
    scene.world.refusals.clear()
    scene.rounds(14)
    assert (births(scene), given(scene)) == (uids, [MORE, MORE, MORE])


def test_a_pod_of_another_image_is_restarted_whether_or_not_its_revision_can_be_read() -> None:
    scene = before()
    uids = births(scene)
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.reconcile()
    scene.world.settle()
    for kind, _, name in scene.world.objects:
        if kind == "ControllerRevision":
            scene.world.refusals[f"get ControllerRevision {name}"] = KubeError(500, "reading", "etcd is away")
    scene.rounds(14)
    assert not set(births(scene)) & set(uids)


def test_a_resize_that_a_quota_refuses_does_not_keep_others_from_a_roll() -> None:
    """The brokers of one pool wait for room under the quota, while those of the other pool are restarted with new
    labels.
    """
    scene = running(brokers={"pools": pools(), "storage": STORAGE, "resources": BEFORE})
    uids = uids_by_name(scene)
    scene.world.refusals["resize Pod k-a-0"] = KubeError(403, "patching Pod k-a-0", "exceeded quota: team")
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=pools({"resources": MORE})))
    scene.rounds(4)
    assert scene.condition("ResizingReconciled") == ("False", "Refused")
    changed = pools({"resources": MORE}, {"template": {"labels": {"a": "b"}}})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=changed))
    scene.rounds(10)
    assert {name for name, uid in uids_by_name(scene).items() if uid != uids[name]} == {"k-b-100", "k-b-101"}
    scene.world.refusals.clear()
    scene.rounds(6)
    assert scene.world.objects["Pod", "shop", "k-a-0"]["spec"]["containers"][0]["resources"] == MORE


def test_nobody_is_restarted_at_the_look_at_which_a_resize_is_taken_after_all() -> None:
    scene = running(brokers={"pools": pools(), "storage": STORAGE, "resources": BEFORE})
    uids = uids_by_name(scene)
    scene.world.refusals["resize Pod k-a-0"] = KubeError(403, "patching Pod k-a-0", "exceeded quota: team")
    changed = pools({"resources": MORE}, {"template": {"labels": {"a": "b"}}})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=changed))
    scene.reconcile()
    scene.world.settle()
    scene.reconcile()  # the request is refused, which is noted on the pod
    scene.world.refusals.clear()
    scene.world.settle()
    scene.reconcile()
    assert asked(scene) == ["resize Pod k-a-0"]
    assert uids_by_name(scene) == uids
    assert scene.condition_message("Rolling").endswith("waiting for k-a-0 to have its new resources")
    scene.world.settle()
    scene.rounds(10)
    assert {name for name, uid in uids_by_name(scene).items() if uid != uids[name]} == {"k-b-100", "k-b-101"}


def test_nothing_is_asked_for_again_while_another_pod_is_away() -> None:
    """A failed request for a resize is repeated only when all pods serve."""
    scene = before()
    scene.world.refusals["resize Pod k-broker-0"] = KubeError(500, "patching Pod k-broker-0", "try again")
    change(scene, LESS)
    scene.rounds(3)
    scene.world.refusals.clear()
    scene.world.refused_pods.add("k-broker-2")
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    scene.rounds(3)
    assert asked(scene) == []
    scene.world.refused_pods.clear()
    scene.rounds(10)
    assert given(scene) == [LESS, LESS, LESS]
    assert reasons(scene, "RollingRestart") == []
