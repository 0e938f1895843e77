"""Gives brokers' pods other resources in place, one pod after the other. The rules are `plan/resize.py`'s.

What a pod is given is noted on it before it is asked for, so that whichever process of the operator comes next goes on
from there; so is when Kubernetes took the request, and that it is done. A pod whose resize is refused, or changed on
its way, is restarted by the rules of every roll, unless Kubernetes would refuse its successor, too: a pod that was
deleted for that would be missing.

Nothing here is looked at again by the clock: each step changes a pod, by the operator's hand or the node's, and the
watch of pods tells of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object, timestamp
from ottla.operator.plan import names
from ottla.operator.plan.observed import is_current, is_ready
from ottla.operator.plan.resize import (
    Note,
    Resize,
    containers_resized,
    lacking,
    needed_revisions,
    not_known,
    noted,
    resize_of,
)
from ottla.operator.plan.roll import Pod
from ottla.operator.refusals import Refusals
from ottla.operator.visit import Visit

SUBRESOURCE = "resize"
# What is forbidden to resizes alone, or on this node alone: another pod may have it. Whatever else is forbidden (a
# ResourceQuota, a LimitRange, a policy), the pod's successor is refused as well.
_OF_THIS_POD = ('cannot patch resource "pods/resize"', "node didn't have enough")
_DENIED = "denied the request"  # by a webhook, which may be asked about new pods, too
_CHANGED = "Kubernetes took the request, and something on its way, such as an admission webhook, changed it"


class Resizing:
    """Looks after the resources of the brokers' pods of any cluster."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def look(self, visit: Visit, sets: Mapping[str, Object], pods: Mapping[int, Object]) -> dict[int, Resize]:
        """The pods that differ from their StatefulSets in resources alone, and those of which Kubernetes doesn't say
        now whether they do, by broker. Why it doesn't is left for `carry_on` to tell."""
        visit.resizes = refusals = Refusals()
        found: dict[int, Resize] = {}
        for broker, pod in pods.items():
            stateful_set = sets.get(_set_of(pod["metadata"]["name"]))
            if stateful_set is None or not is_current(stateful_set):
                continue
            resize: Resize | None = not_known(stateful_set["status"].get("updateRevision", ""))
            with refusals.gathered():
                read = {name: await visit.found.revision(name) for name in sorted(needed_revisions(stateful_set, pod))}
                resize = resize_of(stateful_set, pod, read, visit.now, ready=is_ready(pod))
            if resize is not None:
                found[broker] = resize
        if begins := {
            broker: each for broker, each in found.items() if not (each.begun or each.refused or each.unknown)
        }:
            offered: bool | None = None
            with refusals.gathered():
                offered = await self._kube.offers("Pod", SUBRESOURCE)
            if offered is None:
                found |= {broker: not_known(each.revision) for broker, each in begins.items()}
            elif not offered:
                refused = "this Kubernetes doesn't offer it"
                found |= {broker: replace(each, refused=refused) for broker, each in begins.items()}
        return found

    async def carry_on(self, visit: Visit) -> None:
        """Notes how far the pods are that are given other resources, and asks for the one whose turn it is, if any.
        Raises Retry with the first refusal, and with what kept `look` from knowing how a pod stands."""
        decision, refusals = visit.findings.decision, visit.resizes
        assert decision is not None
        for pod in visit.findings.pods or ():
            if pod.resize is not None and pod.resize.asked:
                with refusals.gathered():
                    await self._note_progress(visit, pod, pod.resize)
        if decision.resize is not None:
            with refusals.gathered():
                await self._ask(visit, decision.resize)
        refusals.told()

    async def _note_progress(self, visit: Visit, pod: Pod, resize: Resize) -> None:
        there = visit.found.get("Pod", pod.name)
        assert there is not None
        note = noted(there)
        assert note is not None
        if resize.done:
            await self._note(visit, there, replace(note, done=True))
            await visit.tell("Resized", f"{pod.name} has its new resources, and wasn't restarted for them")
        elif not note.since:  # nobody heard the answer
            await self._note(visit, there, replace(note, since=timestamp(visit.now)))

    async def _ask(self, visit: Visit, chosen: Pod) -> None:
        pod, stateful_set = visit.found.get("Pod", chosen.name), visit.found.get("StatefulSet", _set_of(chosen.name))
        assert chosen.resize is not None
        assert pod is not None
        assert stateful_set is not None
        note = Note(chosen.uid, chosen.resize.revision)
        if not chosen.resize.begun:
            await self._note(visit, pod, note)
        wanted = {
            "metadata": {"uid": chosen.uid},
            "spec": {"containers": containers_resized(stateful_set, pod)},
        }
        try:
            answer = await self._kube.merge("Pod", visit.cluster.namespace, chosen.name, wanted, SUBRESOURCE)
        except KubeError as error:
            if not is_of_this_pod(error):
                raise
            await self._note(visit, pod, replace(note, refused=error.message))
            return
        lacks = lacking(stateful_set, answer)
        refused = f"{_CHANGED}: {lacks}" if lacks else ""
        await self._note(visit, pod, replace(note, since=timestamp(visit.now), refused=refused))

    async def _note(self, visit: Visit, pod: Object, note: Note) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "annotations": {names.RESIZE: note.text}}}
        await self._kube.merge("Pod", visit.cluster.namespace, meta["name"], patch)


def _set_of(pod: str) -> str:
    """The name of its StatefulSet."""
    return pod.rpartition("-")[0]


def is_of_this_pod(error: KubeError) -> bool:
    """Whether a refusal is final for this pod, and says nothing about its successor."""
    if error.status == 403:
        return any(words in error.message for words in _OF_THIS_POD)
    return error.status == 404 or (error.status == 422 and _DENIED not in error.message)
