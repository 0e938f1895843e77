"""A table of a pod's statuses, as its node writes them, and of the progress of the resize that follows from each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ottla.operator.objects import Object, timestamp
from ottla.operator.plan import names
from ottla.operator.plan.resize import Note, containers_resized, lacking, resize_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
OLD: Object = {"requests": {"memory": "512Mi"}, "limits": {"memory": "1Gi"}}
NEW: Object = {"requests": {"memory": "512Mi"}, "limits": {"memory": "2Gi"}}
AS_BYTES: Object = {"requests": {"memory": "536870912"}, "limits": {"memory": "2147483648"}}
SET: Object = {
    "spec": {"template": {"spec": {"containers": [{"name": "broker", "resources": NEW}]}}},
    "status": {"updateRevision": "k-2"},
}
DONE, WAITS, REFUSED, ASK = "done", "waits", "refused", "to be asked for"
NEVER = -1  # Kubernetes hasn't accepted the request yet


def _told(kind: str, reason: str = "", about: int | None = 7) -> Object:
    told = {"type": kind, "status": "True", "reason": reason, "message": "no room"}
    return told if about is None else {**told, "observedGeneration": about}


def _status(resources: Object, *conditions: Object, seen: int | None = 7, allocated: Object | None = None) -> Object:
    container = {"name": "broker", "resources": resources}
    if allocated is not None:
        container["allocatedResources"] = allocated
    status: Object = {"conditions": list(conditions), "containerStatuses": [container]}
    return status if seen is None else {**status, "observedGeneration": seen}


PENDING, WORKING = "PodResizePending", "PodResizeInProgress"


@pytest.mark.parametrize(
    ("spec", "status", "after_s", "expected"),
    [
        pytest.param(NEW, _status(NEW), 1, DONE, id="the container has them"),
        pytest.param(NEW, _status(AS_BYTES), 1, DONE, id="the container has them in another notation"),
        pytest.param(NEW, _status(NEW, seen=None), 1, DONE, id="done, by a node that reports no observedGeneration"),
        pytest.param(NEW, _status(NEW), 1000, DONE, id="late, but done"),
        pytest.param(NEW, _status(OLD), 1, WAITS, id="the container doesn't have them yet"),
        pytest.param(NEW, _status(NEW, seen=6), 1, WAITS, id="the status is about the spec before the change"),
        pytest.param(
            NEW, _status(NEW, allocated={"memory": "256Mi"}), 1, WAITS,
            id="the container has them, but other resources are allocated"
        ),
        pytest.param(NEW, _status(NEW, _told(WORKING)), 1, WAITS, id="in progress"),
        pytest.param(NEW, _status(OLD, _told(PENDING, "Deferred")), 299, WAITS, id="deferred"),
        pytest.param(NEW, _status(OLD, _told(PENDING, "Deferred")), 300, REFUSED, id="deferred for too long"),
        pytest.param(NEW, _status(OLD), 300, REFUSED, id="the node reports nothing for too long"),
        pytest.param(NEW, _status(OLD, _told(PENDING, "Infeasible")), 1, REFUSED, id="infeasible"),
        pytest.param(
            NEW, _status(OLD, _told(PENDING, "Infeasible", 6)), 1, WAITS, id="the resize before this one was infeasible"
        ),
        pytest.param(
            NEW, _status(OLD, _told(PENDING, "Infeasible", None)), 9, WAITS,
            id="infeasible, perhaps about the resize before"
        ),
        pytest.param(
            NEW, _status(OLD, _told(PENDING, "Infeasible", None)), 10, REFUSED,
            id="infeasible, hardly about the resize before"
        ),
        pytest.param(OLD, _status(OLD), NEVER, ASK, id="Kubernetes hasn't accepted the request yet"),
        pytest.param(OLD, _status(OLD), 1, REFUSED, id="another program took the resources back"),
        pytest.param(NEW, _status(NEW), NEVER, DONE, id="done, though the operator missed the acceptance"),
        pytest.param(
            NEW, _status(OLD, _told(PENDING, "Deferred")), NEVER, WAITS,
            id="deferred, and the operator missed the acceptance"
        ),
        pytest.param(
            NEW, _status(OLD, _told(PENDING, "Infeasible", None)), NEVER, WAITS,
            id="infeasible, and the operator missed the acceptance"
        ),
        pytest.param(NEW, {}, 1, WAITS, id="no status"),
    ],
)  # fmt: skip
def test_how_far_it_is(spec: Object, status: Object, after_s: int, expected: str) -> None:
    since = "" if after_s == NEVER else timestamp(NOW - timedelta(seconds=after_s))
    note = Note("uid-1", "k-2", since)
    pod = {
        "metadata": {
            "name": "k-0",
            "uid": "uid-1",
            "generation": 7,
            "labels": {names.REVISION: "k-1"},
            "annotations": {names.RESIZE: note.text},
        },
        "spec": {"containers": [{"name": "broker", "resources": spec}]},
        "status": status,
    }
    found = resize_of(SET, pod, {}, NOW, ready=True)
    assert found is not None
    assert found.begun
    if expected == ASK:
        assert not found.asked
    else:
        assert (DONE if found.done else REFUSED if found.refused else WAITS) == expected


@pytest.mark.parametrize(
    ("said", "told"),
    [("250000u", "250m"), ("1e-1", "100m"), ("1e+3", "1000"), (".5", "500m"), ("5e8n", "500m"), ("2.", "2")],
)
def test_a_quantity_is_the_same_in_other_words(said: str, told: str) -> None:
    """The API server writes quantities in its own way. Before the fix, two texts of the same quantity counted as
    different, and the resize was requested again and again.
    """
    wanted = _of_set({"requests": {"cpu": said}})
    pod = {"spec": {"containers": [{"name": "broker", "resources": {"requests": {"cpu": told}}}]}}
    assert lacking(wanted, pod) == ""
    assert lacking(wanted, {"spec": {"containers": [{"name": "broker"}]}}) == (
        f"request of cpu of broker was to be {said}, and is none"
    )


def test_what_else_a_pod_has_stays_as_it_is() -> None:
    """A webhook has added a second container to the pod, and devices to both containers. A resize changes neither."""
    claims = {"claims": [{"name": "device"}]}
    beside = {"name": "beside", "resources": {"requests": {"cpu": "1"}, **claims}}
    pod = {"spec": {"containers": [{"name": "broker", "resources": {**OLD, **claims}}, beside]}}
    assert containers_resized(SET, pod) == [{"name": "broker", "resources": {**NEW, **claims}}, beside]


def _of_set(resources: Object) -> Object:
    return {"spec": {"template": {"spec": {"containers": [{"name": "broker", "resources": resources}]}}}}
