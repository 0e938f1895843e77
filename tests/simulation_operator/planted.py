"""Bugs to plant into the operator. If the swarm doesn't catch each of them, its invariants prove nothing.

The first seven bugs in this file were in the operator once, and were seen on a real Kubernetes. The eighth was found by
this swarm, and the others before the heading "restarts" were found by reading the code. The bugs after that heading are
mistakes that a developer could make. Each bug is the smallest possible patch, and is undone afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ottla.operator import (
    access,
    administration,
    broker_sets,
    cluster,
    exposure,
    found,
    orphaned_topics,
    overrides,
    rolling,
    topic,
)
from ottla.operator.kube import KubeError
from ottla.operator.objects import Object
from ottla.operator.parts import Part
from ottla.operator.plan import broker_pods, disruption, links, observed, resize, roll
from ottla.operator.plan.orphans import Definition, Disappearances
from ottla.operator.plan.remembered import Remembered, shortened
from ottla.operator.plan.resize import Resize
from ottla.operator.plan.storage import has_to_be_made_again
from ottla.operator.queue import Retry
from ottla.operator.spec.cluster import RESTART
from ottla.operator.spec.rolling import Rolling
from ottla.operator.spec.topic import DeletionPolicy
from ottla.operator.visit import Visit

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants the bug of this name for the time of the context; plants none if the name is empty."""
    with Patch.context() as patch:
        if name:
            BUGS[name](patch)
        yield


def bug(planting: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Decorator: registers a function that plants a bug; the function's name is the bug's name."""
    BUGS[planting.__name__.replace("_", " ")] = planting
    return planting


# ---- bugs that the operator once had


@bug
def a_recovery_deletes_topics(patch: Patch) -> None:
    judge = Disappearances.judge

    def judged(self: Any, now: float, orphans: Any, owned: int, definition: Any, known: Any, confirmed: str) -> Any:
        ours = [each._replace(owner=each.owner._replace(cluster_uid=known.cluster_uid)) for each in orphans]
        known = replace(known, uids=frozenset(shortened(each.owner.uid) for each in orphans))
        return judge(self, now, ours, owned, definition, known, confirmed)

    patch.setattr(Disappearances, "judge", judged)


@bug
def a_service_goes_before_its_broker(patch: Patch) -> None:
    wanted = exposure.Exposure.wanted

    def too_soon(self: Any, visit: Visit) -> list[Object]:
        with Patch.context() as meanwhile:
            meanwhile.setattr(exposure, "_reachable", lambda visit: observed.broker_names(visit.cluster, (), ()))
            return wanted(self, visit)

    patch.setattr(exposure.Exposure, "wanted", too_soon)


@bug
def a_stray_pod_is_taken_for_a_broker(patch: Patch) -> None:
    patch.setattr(found, "_is_made_by", lambda *_: True)


@bug
def an_invalid_spec_and_a_restart_freeze_the_cluster(patch: Patch) -> None:
    async def none(*_: Any) -> None:
        return None

    patch.setattr(cluster, "last_followed", none)


@bug
def an_operator_without_rights_looks_healthy(patch: Patch) -> None:
    async def nothing(self: access.Access) -> str:
        return ""

    patch.setattr(access.Access, "_refusal", nothing)


@bug
def a_restart_in_the_template_rolls_for_ever(patch: Patch) -> None:
    outdated = observed.outdated

    def always(stateful_set: Object | None, pod: Object, resize: Resize | None = None) -> str:
        asked = RESTART in (pod["metadata"].get("annotations") or {})
        return "the annotation asks for a restart" if asked else outdated(stateful_set, pod, resize)

    patch.setattr(observed, "outdated", always)


@bug
def one_refused_object_stops_the_rest(patch: Patch) -> None:
    carry_out = cluster.carry_out

    async def until_one_fails(parts: Any, visit: Any, *, paused: bool) -> Any:
        failed: list[str] = []

        def stopped(part: Part[Visit]) -> Part[Visit]:
            async def does(visit: Visit) -> None:
                if failed:
                    raise Retry(f"{failed[0]} isn't done")
                try:
                    await part.does(visit)
                except Retry:
                    failed.append(part.name)
                    raise

            return replace(part, does=does)

        return await carry_out([stopped(part) for part in parts], visit, paused=paused)

    patch.setattr(cluster, "carry_out", until_one_fails)


@bug
def a_topic_is_marked_by_the_word_of_a_watch_that_is_late(patch: Patch) -> None:
    async def all_of_them(self: Any, sweep: Any, cluster: Any, mine: Any, remembered: Any, plans: Any) -> Any:
        return plans

    patch.setattr(topic.TopicReconciler, "_certain", all_of_them)


@bug
def an_upgrade_deletes_the_topic_of_a_topic_made_again_before_it(patch: Patch) -> None:
    orphans = orphaned_topics.orphans

    def never_answered(topics: Any, resources: Any, vanished: Any, answered: Any, watched: Any) -> Any:
        return orphans(topics, resources, vanished, (), watched)

    patch.setattr(orphaned_topics, "orphans", never_answered)


@bug
def a_topic_made_again_to_retain_loses_its_records(patch: Patch) -> None:
    orphans = orphaned_topics.orphans

    def by_the_predecessor_alone(topics: Any, resources: Any, *given: Any) -> Any:
        deleting = [replace(resource, deletion_policy=DeletionPolicy.DELETE) for resource in resources]
        return orphans(topics, deleting, *given)

    patch.setattr(orphaned_topics, "orphans", by_the_predecessor_alone)


# ---- restarts


@bug
def brokers_are_restarted_whatever_they_say(patch: Patch) -> None:
    patch.setattr(roll, "_blocked", lambda *_: "")


@bug
def a_roll_waits_for_nobody(patch: Patch) -> None:
    patch.setattr(roll, "_absent", lambda pod: "")


@bug
def etcd_and_brokers_are_restarted_at_once(patch: Patch) -> None:
    patch.setattr(Visit, "waits_for_others", lambda self, *components: self.hold)


@bug
def a_pod_is_restarted_by_an_old_look(patch: Patch) -> None:
    async def nothing(self: found.Found) -> None:
        return None

    patch.setattr(found.Found, "look_again", nothing)


@bug
def a_pause_is_ignored(patch: Patch) -> None:
    carry_out = cluster.carry_out

    async def going_on(parts: Any, visit: Any, *, paused: bool) -> Any:
        return await carry_out(parts, visit, paused=False)

    patch.setattr(cluster, "carry_out", going_on)


@bug
def brokers_of_two_racks_are_restarted_at_once(patch: Patch) -> None:
    patch.setattr(observed, "_rack", lambda pod: "everywhere")


@bug
def each_is_asked_only_for_itself(patch: Patch) -> None:
    async def alone(self: Any, visit: Visit, pods: Sequence[roll.Pod], *_: Any) -> Mapping[int, roll.Report]:
        return {pod.id: pod.report for pod in pods if pod.report is not None}

    patch.setattr(rolling.Rolling, "_together", alone)


@bug
def more_are_away_than_was_said(patch: Patch) -> None:
    patch.setattr(Rolling, "limit", lambda self, brokers: self.max_unavailable + 1)


# ---- data


@bug
def a_broker_goes_before_it_is_drained(patch: Patch) -> None:
    scale = administration.scale

    async def drained(*given: Any, **named: Any) -> Any:
        return replace(await scale(*given, **named), drained=True)

    patch.setattr(administration, "scale", drained)


@bug
def a_statefulset_is_made_anew_without_its_pods(patch: Patch) -> None:
    apply_set = found.Found.apply_set

    async def anew(self: Any, wanted: Object) -> Any:
        present = self.get("StatefulSet", wanted["metadata"]["name"])
        if present is None or not has_to_be_made_again(wanted, present):
            return await apply_set(self, wanted)
        meta = present["metadata"]
        await self._kube.delete("StatefulSet", meta["namespace"], meta["name"], uid=meta["uid"])
        return False, ""

    patch.setattr(found.Found, "apply_set", anew)


@bug
def volumes_go_with_their_cluster(patch: Patch) -> None:
    made = broker_pods.stateful_set

    def without_volumes(*args: Any, **given: Any) -> Object:
        return made(*args, **{**given, "keep_volumes": False})

    patch.setattr(broker_pods, "stateful_set", without_volumes)


@bug
def a_volume_goes_with_what_lies_on_it(patch: Patch) -> None:
    patch.setattr(broker_sets, "leaving", lambda *_: set())


@bug
def a_pod_goes_before_one_that_lacks_a_volume(patch: Patch) -> None:
    patch.setattr(roll, "_first_lacking", lambda *_: None)


@bug
def topics_go_with_the_definition_of_their_kind(patch: Patch) -> None:
    async def there(*_: object) -> Definition:
        return Definition("")

    patch.setattr(orphaned_topics, "definition", there)


@bug
def topics_made_after_the_backup_of_kubernetes_go(patch: Patch) -> None:
    patch.setattr(Remembered, "has", lambda self, uid: True)


# ---- status, events, and the operator's memory


@bug
def evictions_are_always_allowed(patch: Patch) -> None:
    brokers = disruption.brokers
    patch.setattr(disruption, "brokers", lambda cluster, *, evictable: brokers(cluster, evictable=True))


@bug
def drains_are_remembered_by_nobody(patch: Patch) -> None:
    noted = cluster.noted

    def forgotten(*given: Any) -> Any:
        return replace(noted(*given), draining=frozenset())

    patch.setattr(cluster, "noted", forgotten)


@bug
def node_ports_are_given_anew(patch: Patch) -> None:
    patch.setattr(cluster, "noted_ports", lambda status: {})


@bug
def a_status_says_when_it_was_written(patch: Patch) -> None:
    cluster_status = cluster.cluster_status

    def dated(cluster: Any, findings: Any, before: Any, now: Any) -> Object:
        return {**cluster_status(cluster, findings, before, now), "written": str(now)}

    patch.setattr(cluster, "cluster_status", dated)


@bug
def a_broker_that_ends_counts_as_ready(patch: Patch) -> None:
    look = rolling.Rolling.look

    async def all_ready(self: Any, visit: Visit) -> None:
        await look(self, visit)
        visit.findings.pods = [replace(pod, ready=bool(pod.uid)) for pod in visit.findings.pods or ()]

    patch.setattr(rolling.Rolling, "look", all_ready)


@bug
def a_refusal_is_no_failure(patch: Patch) -> None:
    carry_out = cluster.carry_out

    async def without(parts: Any, visit: Any, *, paused: bool) -> Any:
        troubles = await carry_out(parts, visit, paused=paused)
        return [trouble for trouble in troubles if not isinstance(trouble.error, KubeError)]

    patch.setattr(cluster, "carry_out", without)


@bug
def what_somebody_gave_to_a_broker_stays(patch: Patch) -> None:
    changes = overrides.changes

    def without(*given: Any) -> Any:
        return {broker: change._replace(reset=()) for broker, change in changes(*given).items() if change.given}

    patch.setattr(overrides, "changes", without)


@bug
def a_broker_is_not_restarted_for_settings_of_its_own(patch: Patch) -> None:
    patch.setattr(observed, "_file_is_current", lambda *given: True)


@bug
def a_resize_is_believed_before_it_is_done(patch: Patch) -> None:
    patch.setattr(resize, "_carried_out", lambda *_: True)
    patch.setattr(resize, "_current", lambda *_: {})


@bug
def links_go_on_before_every_broker_has_followed(patch: Patch) -> None:
    patch.setattr(links, "next_stage", lambda to, now: to)
