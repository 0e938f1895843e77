"""Brokers get other resources in place, in a Kubernetes in memory that resizes pods, can't resize them (yet), or
doesn't offer resizes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ottla.operator.kube import KubeError
from ottla.operator.plan import names
from ottla.operator.plan.resize import noted
from ottla.operator.plan.roll import Report
from ottla.operator.spec.cluster import Defaults
from tests.unit.operator.kubernetes_world import Object
from tests.unit.operator.test_cluster import Scene, running

STORAGE = {"size": "1Gi"}
BEFORE: Object = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1024Mi"}}
MORE: Object = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2048Mi"}}
LESS: Object = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def sized(resources: Object, **fields: Any) -> Object:
    return {"replicas": 3, "storage": STORAGE, "resources": resources, **fields}


def before(**spec: Any) -> Scene:
    return running(brokers=sized(BEFORE), **spec)


def change(scene: Scene, resources: Object, **fields: Any) -> None:
    scene.world.edit("Cluster", "k", lambda spec: spec.update(brokers=sized(resources, **fields)))


def pod(scene: Scene, broker: int) -> Object:
    found: Object = scene.world.objects["Pod", "shop", f"k-broker-{broker}"]
    return found


def births(scene: Scene) -> list[str]:
    return [pod(scene, broker)["metadata"]["uid"] for broker in range(3)]


def given(scene: Scene) -> list[Object]:
    return [pod(scene, broker)["spec"]["containers"][0]["resources"] for broker in range(3)]


def reasons(scene: Scene, *wanted: str) -> list[str]:
    return [f"{reason} {message.split()[0]}" for reason, message in scene.world.events if reason in wanted]


def test_resources_change_in_place_one_pod_at_a_time_and_nobody_restarts() -> None:
    scene = before()
    uids = births(scene)
    change(scene, MORE)
    at_once = 0
    for _ in range(20):
        scene.reconcile()
        notes = [noted(pod(scene, broker)) for broker in range(3)]
        at_once = max(at_once, sum(note is not None and not note.done for note in notes))
        scene.world.settle()
    assert at_once == 1
    assert births(scene) == uids
    assert given(scene) == [MORE, MORE, MORE]
    assert reasons(scene, "Resized", "RollingRestart") == [f"Resized k-broker-{broker}" for broker in range(3)]
    assert scene.condition("Rolling") == ("False", "UpToDate")
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []


def test_the_status_says_how_far_it_is_and_what_the_node_says() -> None:
    scene = before()
    scene.world.node_says["k-broker-1"] = "Deferred"
    change(scene, MORE)
    scene.rounds(8)
    assert scene.status["message"] == (
        "Resizing 1/3: waiting for k-broker-1 to have its new resources "
        "(Deferred: Node didn't have enough resource: memory)"
    )
    assert scene.condition("Rolling") == ("True", "Resizing")
    assert scene.status["pools"][0]["outdated"] == 2
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.budget() == 1
    assert given(scene)[2] == BEFORE
    scene.world.node_says.clear()
    scene.rounds(8)
    assert given(scene) == [MORE, MORE, MORE]
    assert reasons(scene, "RollingRestart") == []


def test_what_waits_for_longer_than_five_minutes_is_restarted_and_the_others_are_not() -> None:
    scene = before()
    uids = births(scene)
    scene.world.node_says["k-broker-0"] = "Deferred"
    change(scene, MORE)
    scene.rounds(5)
    scene.now += timedelta(seconds=290)
    scene.rounds(3)
    assert births(scene) == uids
    scene.now += timedelta(seconds=20)
    scene.rounds(12)
    assert births(scene)[1:] == uids[1:]
    assert births(scene)[0] != uids[0]
    assert given(scene) == [MORE, MORE, MORE]
    (told,) = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert told.startswith("k-broker-0 is restarted: its resources change, and not in place: it isn't done after 3")
    assert told.endswith("00 s (Deferred: Node didn't have enough resource: memory)")


def test_what_the_node_can_never_do_is_restarted_at_once() -> None:
    scene = before()
    uids = births(scene)
    scene.world.node_says["k-broker-1"] = "Infeasible"
    change(scene, MORE)
    scene.rounds(14)
    assert births(scene)[1] != uids[1]
    assert (births(scene)[0], births(scene)[2]) == (uids[0], uids[2])
    assert given(scene) == [MORE, MORE, MORE]
    assert scene.condition("Rolling") == ("False", "UpToDate")


def test_an_api_server_that_does_not_offer_it_has_everybody_restarted() -> None:
    scene = before()
    scene.world.resizes = False
    change(scene, MORE)
    scene.rounds(16)
    assert given(scene) == [MORE, MORE, MORE]
    assert reasons(scene, "RollingRestart", "Resized") == [f"RollingRestart k-broker-{broker}" for broker in range(3)]
    assert not [write for write in scene.world.writes if write.startswith("resize")]


def guaranteed(scene: Scene) -> None:
    """Changes resources so that the pods would get another QoS class."""
    change(scene, {"requests": {"cpu": "1", "memory": "1024Mi"}, "limits": {"cpu": "1", "memory": "1024Mi"}})


def ephemeral_storage(scene: Scene) -> None:
    change(scene, {**BEFORE, "limits": {"memory": "1024Mi", "ephemeral-storage": "1Gi"}})


def taken_away(scene: Scene) -> None:
    change(scene, {"requests": {"cpu": "250m", "memory": "512Mi"}})


def less_memory(scene: Scene) -> None:
    """Asks for less memory, which Kubernetes 1.33 refuses."""
    scene.world.lowers_memory = False
    change(scene, LESS)


def restarting_container(scene: Scene) -> None:
    """A webhook has given the containers a restart policy for resizes."""
    for broker in range(3):
        policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
        pod(scene, broker)["spec"]["containers"][0]["resizePolicy"] = policy
    change(scene, MORE)


def another_image(scene: Scene) -> None:
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2", brokers=sized(MORE)))


def without_the_right(scene: Scene) -> None:
    refusal = KubeError(403, "patching", 'User "operator" cannot patch resource "pods/resize" in API group ""')
    scene.world.refusals |= {f"resize Pod k-broker-{broker}": refusal for broker in range(3)}
    change(scene, MORE)


@pytest.mark.parametrize(
    "cause",
    [
        guaranteed,
        ephemeral_storage,
        taken_away,
        less_memory,
        restarting_container,
        another_image,
        without_the_right,
    ],
)
def test_what_is_not_possible_in_place_is_a_roll(cause: Callable[[Scene], None]) -> None:
    scene = before()
    uids = births(scene)
    cause(scene)
    away = 0
    for _ in range(20):
        scene.reconcile()
        away = max(away, 3 - len(scene.pods()))
        scene.world.settle()
    assert away == 1
    assert not set(births(scene)) & set(uids)
    assert scene.condition("Rolling") == ("False", "UpToDate")
    assert reasons(scene, "RollingRestart", "Resized") == [f"RollingRestart k-broker-{broker}" for broker in range(3)]


def test_less_memory_is_given_in_place_where_kubernetes_takes_it() -> None:
    scene = before()
    uids = births(scene)
    change(scene, LESS)
    scene.rounds(14)
    assert (births(scene), given(scene)) == (uids, [LESS, LESS, LESS])


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        (403, "exceeded quota: team"),
        (403, "failed quota: team: must specify limits.cpu for: broker"),
        (403, "status unknown for quota: team, resources: memory"),
        (403, "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000"),
        (403, "ValidatingAdmissionPolicy 'sizes' with binding 'sizes' denied request: too large"),
        (422, 'admission webhook "sizes.example" denied the request: too large'),
    ],
)
def test_what_would_be_refused_to_the_successor_too_costs_no_pod(status: int, refusal: str) -> None:
    """Otherwise the deleted broker would be missing until a person came."""
    scene = before()
    uids = births(scene)
    scene.world.refusals["resize Pod k-broker-0"] = KubeError(
        status, "patching Pod k-broker-0", f'pods "k-broker-0" is forbidden: {refusal}'
    )
    change(scene, MORE)
    scene.rounds(6)
    assert births(scene) == uids
    assert scene.condition("ResizingReconciled") == ("False", "InvalidObject" if status == 422 else "Refused")
    assert refusal[:20] in scene.status["message"]
    scene.world.refusals.clear()
    scene.rounds(14)
    assert (births(scene), given(scene)) == (uids, [MORE, MORE, MORE])


def test_a_request_that_fails_for_now_is_made_again() -> None:
    scene = before()
    uids = births(scene)
    scene.world.refusals["resize Pod k-broker-0"] = KubeError(500, "patching Pod k-broker-0", "try again")
    change(scene, MORE)
    scene.rounds(4)
    scene.now += timedelta(minutes=10)
    scene.world.refusals.clear()
    scene.rounds(14)
    assert (births(scene), given(scene)) == (uids, [MORE, MORE, MORE])


def test_another_operator_goes_on_with_it_and_asks_for_nothing_twice() -> None:
    scene = before()
    uids = births(scene)
    change(scene, MORE)
    for _ in range(20):
        scene.reconcile()
        scene.restart()
        scene.world.settle()
    assert (births(scene), given(scene)) == (uids, [MORE, MORE, MORE])
    asked = [write for write in scene.world.writes if write.startswith("resize")]
    assert asked == [f"resize Pod k-broker-{broker}" for broker in range(3)]


def test_back_again_is_a_resize_too() -> None:
    """After the second change the StatefulSet has the revision again with which its pods were created."""
    scene = before()
    uids = births(scene)
    change(scene, MORE)
    scene.rounds(14)
    change(scene, BEFORE)
    scene.rounds(14)
    assert (births(scene), given(scene)) == (uids, [BEFORE, BEFORE, BEFORE])


def test_a_limit_that_came_in_place_goes_only_by_a_restart() -> None:
    scene = before()
    uids = births(scene)
    change(scene, {**BEFORE, "limits": {"memory": "1024Mi", "cpu": "2"}})
    scene.rounds(14)
    assert births(scene) == uids
    change(scene, BEFORE)
    scene.rounds(16)
    assert not set(births(scene)) & set(uids)
    assert given(scene) == [BEFORE, BEFORE, BEFORE]


def test_a_change_in_the_middle_is_followed() -> None:
    scene = before()
    uids = births(scene)
    scene.world.node_says["k-broker-0"] = "Deferred"
    change(scene, MORE)
    scene.rounds(5)
    change(scene, LESS)
    scene.world.node_says.clear()
    scene.rounds(16)
    assert (births(scene), given(scene)) == (uids, [LESS, LESS, LESS])


def test_a_pod_that_was_resized_is_restarted_for_another_change() -> None:
    scene = before()
    change(scene, MORE)
    scene.rounds(14)
    uids = births(scene)
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(14)
    assert not set(births(scene)) & set(uids)
    assert not [broker for broker in range(3) if names.RESIZE in pod(scene, broker)["metadata"]["annotations"]]
    assert given(scene) == [MORE, MORE, MORE]


def test_a_pod_that_a_too_small_limit_keeps_down_is_replaced() -> None:
    scene = before()
    scene.world.bad_images.add("ottla:1")  # the operator sees only that the pod's container doesn't start
    scene.rounds(2)
    change(scene, MORE)
    scene.rounds(3)
    assert reasons(scene, "ReplacedStuckPod", "Resized")[0] == "ReplacedStuckPod k-broker-0"
    scene.world.bad_images.clear()
    scene.rounds(14)
    assert given(scene) == [MORE, MORE, MORE]


def test_a_limit_alone_is_the_request_too() -> None:
    scene = running(brokers=sized({"limits": {"memory": "512Mi"}}))
    uids = births(scene)
    change(scene, {"limits": {"memory": "1024Mi"}})
    scene.rounds(14)
    assert births(scene) == uids
    both = {"limits": {"memory": "1024Mi"}, "requests": {"memory": "1024Mi"}}
    assert given(scene) == [both, both, both]


def test_it_needs_no_window_and_no_word_of_the_brokers() -> None:
    scene = before(maintenanceWindows=[{"cron": "0 2 * * *", "durationMinutes": 60}])
    uids = births(scene)
    scene.pages.said = dict.fromkeys(range(3), Report(risks={"offline": ("orders-4",)}))
    change(scene, MORE)
    scene.rounds(14)
    assert (births(scene), given(scene)) == (uids, [MORE, MORE, MORE])


def test_a_pause_holds_it_back_and_says_so() -> None:
    scene = before()
    change(scene, MORE)
    scene.rounds(3)
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    scene.world.writes.clear()
    scene.rounds(3)
    assert not [write for write in scene.world.writes if "Pod " in write]
    assert scene.condition("Rolling") == ("False", "SpecPaused")
    assert "get other resources after the pause" in scene.condition_message("Rolling")


def test_what_another_release_makes_of_resources_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = running(image="ottla:1", maintenanceWindows=[{"cron": "0 2 * * *", "durationMinutes": 60}])
    uids = births(scene)
    monkeypatch.setattr("ottla.operator.plan.broker_pods.DEFAULT_RESOURCES", MORE)
    scene.restart(Defaults("ottla:1", "etcd:1", "2"))
    scene.rounds(6)
    assert MORE not in given(scene)
    assert scene.condition_message("Rolling").endswith("waiting for the next maintenance window")
    scene.now = scene.now.replace(hour=2, minute=10) + timedelta(days=1)
    scene.rounds(30)
    assert given(scene) == [MORE, MORE, MORE]
    assert births(scene) == uids
    assert scene.status["operator"] == {"release": "ottla:1 etcd:1 2"}


def test_pods_of_which_nobody_knows_what_made_them_are_restarted() -> None:
    scene = before()
    uids = births(scene)
    for key in [key for key in scene.world.objects if key[0] == "ControllerRevision"]:
        del scene.world.objects[key]
    change(scene, MORE)
    scene.rounds(16)
    assert not set(births(scene)) & set(uids)
    assert given(scene) == [MORE, MORE, MORE]


def test_a_note_that_another_pod_had_says_nothing() -> None:
    scene = before()
    change(scene, MORE)
    scene.rounds(14)
    copied = pod(scene, 0)["metadata"]["annotations"][names.RESIZE]
    template = {"annotations": {names.RESIZE: copied}}
    change(scene, MORE, template=template)
    scene.rounds(14)
    assert scene.condition("Rolling") == ("False", "UpToDate")
    uids = births(scene)
    scene.rounds(5)
    assert births(scene) == uids


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pod": "x"}', '{"pod": 1, "revision": 2, "since": "3"}'])
def test_a_note_that_can_not_be_read_says_nothing(text: str) -> None:
    assert noted({"metadata": {"uid": "x", "annotations": {names.RESIZE: text}}}) is None
