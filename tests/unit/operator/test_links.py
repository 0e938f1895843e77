"""The stages by which the links between brokers become encrypted, and plain again: each pair of brokers that may exist
at one time reaches each other."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from ottla.operator.plan import links
from ottla.operator.plan.links import Standing, aim, next_stage, progress, stage_of
from ottla.operator.spec.security import Links

PLAIN, OPENED, SWITCHED, ENCRYPTED = Links
NOTHING = Standing((), (), complete=True)


def standing(pods: list[Links], templates: list[Links], *, complete: bool = True) -> Standing:
    return Standing(tuple(pods), tuple(templates), complete)


def test_a_new_cluster_is_as_the_spec_says_at_once_and_encrypted_without_a_word() -> None:
    assert next_stage(aim(None, NOTHING), NOTHING) is ENCRYPTED
    assert next_stage(aim(False, NOTHING), NOTHING) is PLAIN
    assert next_stage(aim(True, NOTHING), NOTHING) is ENCRYPTED


@pytest.mark.parametrize("stage", [PLAIN, ENCRYPTED])
def test_a_cluster_stays_as_it_is_without_a_word(stage: Links) -> None:
    now = standing([stage] * 3, [stage])
    assert next_stage(aim(None, now), now) is stage
    assert progress(stage, stage, now) == ""


def test_a_change_that_was_begun_is_finished_when_the_word_is_taken_back() -> None:
    assert aim(None, standing([PLAIN, OPENED], [OPENED])) is ENCRYPTED


@pytest.mark.parametrize(
    ("pods", "template", "to", "step"),
    [
        ([PLAIN, PLAIN], PLAIN, ENCRYPTED, OPENED),
        ([PLAIN, OPENED], OPENED, ENCRYPTED, OPENED),
        ([OPENED, OPENED], OPENED, ENCRYPTED, SWITCHED),
        ([OPENED, SWITCHED], SWITCHED, ENCRYPTED, SWITCHED),
        ([SWITCHED, SWITCHED], SWITCHED, ENCRYPTED, ENCRYPTED),
        ([SWITCHED, ENCRYPTED], ENCRYPTED, ENCRYPTED, ENCRYPTED),
        ([ENCRYPTED, ENCRYPTED], ENCRYPTED, PLAIN, SWITCHED),
        ([SWITCHED, SWITCHED], SWITCHED, PLAIN, OPENED),
        ([OPENED, OPENED], OPENED, PLAIN, PLAIN),
        ([PLAIN, OPENED], OPENED, PLAIN, PLAIN),
        ([OPENED, SWITCHED], SWITCHED, PLAIN, OPENED),
        ([SWITCHED, ENCRYPTED], ENCRYPTED, PLAIN, SWITCHED),
    ],
)
def test_each_step_waits_for_every_pod(pods: list[Links], template: Links, to: Links, step: Links) -> None:
    assert next_stage(to, standing(pods, [template])) is step


def test_no_step_is_taken_while_a_pod_is_missing_that_may_come_up_older() -> None:
    missing = standing([OPENED, OPENED], [OPENED], complete=False)
    assert next_stage(ENCRYPTED, missing) is OPENED
    assert next_stage(PLAIN, standing([SWITCHED], [SWITCHED], complete=False)) is SWITCHED
    assert next_stage(ENCRYPTED, standing([PLAIN], [PLAIN], complete=False)) is OPENED, (
        "every pod reaches the first step"
    )


@pytest.mark.parametrize("seed", range(200))
def test_brokers_that_exist_at_one_time_reach_each_other(seed: int) -> None:
    """People change their minds, pods are deleted, and Kubernetes makes pods by a template that it saw a while ago."""
    random = Random(seed)
    begin = random.choice((PLAIN, ENCRYPTED))
    pods: list[Links | None] = [begin] * 3
    template = seen = begin
    to = random.choice((PLAIN, ENCRYPTED))
    for _ in range(60):
        if random.random() < 0.1:
            to = random.choice((PLAIN, ENCRYPTED))
        there = [pod for pod in pods if pod is not None]
        template = next_stage(to, standing(there, [template], complete=len(there) == len(pods)))
        if len(there) < len(pods):
            if random.random() < 0.5:
                seen = template  # otherwise the pod is made by the template that Kubernetes knows
            pods[pods.index(None)] = seen
        elif random.random() < 0.7:
            seen = template
            old = [number for number, pod in enumerate(pods) if pod is not template]
            pods[random.choice(old or range(3))] = None
        elif random.random() < 0.5:
            pods[random.choice(range(3))] = None  # an eviction, before Kubernetes has seen the present template
        for one, other in itertools.combinations([pod for pod in pods if pod is not None], 2):
            assert abs(one - other) <= 1, (pods, template)
    for _ in range(40):  # without further events, the cluster arrives
        template = next_stage(to, standing([pod or template for pod in pods], [template]))
        old = [number for number, pod in enumerate(pods) if pod is not template]
        if old:
            pods[old[0]] = template
    assert pods == [to] * 3


def test_what_a_cluster_does_is_said_until_all_have_arrived() -> None:
    assert "both" in progress(ENCRYPTED, OPENED, standing([PLAIN], [PLAIN]))
    assert progress(ENCRYPTED, ENCRYPTED, standing([SWITCHED, ENCRYPTED], [ENCRYPTED]))
    assert progress(PLAIN, OPENED, standing([SWITCHED], [OPENED]))
    assert progress(ENCRYPTED, ENCRYPTED, standing([ENCRYPTED], [ENCRYPTED])) == ""


def test_the_stage_stands_in_an_annotation() -> None:
    assert stage_of({}) is PLAIN
    assert stage_of({"annotations": {"ottla.dev/links": "SWITCHED"}}) is SWITCHED


def test_brokers_and_controllers_count_and_members_of_etcd_do_not() -> None:
    def item(component: str, stage: str, **spec: Any) -> dict[str, Any]:
        annotated = {"annotations": {"ottla.dev/links": stage}}
        labels = {"app.kubernetes.io/component": component}
        return {"metadata": {"labels": labels, **annotated}, "spec": {**spec, "template": {"metadata": annotated}}}

    sets = [item("broker", "OPENED", replicas=2), item("controller", "OPENED", replicas=1), item("etcd", "PLAIN")]
    pods = [item("broker", "OPENED"), item("controller", "PLAIN")]
    found = links.standing(sets, pods)
    assert found == standing([OPENED, PLAIN], [OPENED, OPENED], complete=False)
    assert not found.encrypted_everywhere
    assert standing([OPENED], [OPENED]).encrypted_everywhere


def test_a_stage_of_a_later_release_is_taken_for_the_last_one() -> None:
    assert stage_of({"annotations": {"ottla.dev/links": "SEALED"}}) is ENCRYPTED
