"""Gives brokers' pods other resources in place, one pod after the other. The rules are `plan/resize.py`'s.

What a pod is given is noted on it before it is asked for, so that whichever process of the operator comes next goes on
from there, and notes that it is done. A pod whose resize is refused is restarted by the rules of every roll, unless
Kubernetes would refuse its successor, too: a pod that was deleted for that would be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object, timestamp
from ottla.operator.plan import names
from ottla.operator.plan.observed import is_current, is_ready
from ottla.operator.plan.resize import Note, Resize, containers_resized, needed_revisions, noted, resize_of
from ottla.operator.plan.roll import Pod
from ottla.operator.refusals import Refusals
from ottla.operator.visit import Visit

SUBRESOURCE = "resize"
# What is forbidden to resizes alone, or on this node alone: another pod may have it. Whatever else is forbidden (a
# ResourceQuota, a LimitRange, a policy), the pod's successor is refused as well.
_OF_THIS_POD = ('cannot patch resource "pods/resize"', "node didn't have enough")
_DENIED = "denied the request"  # by a webhook, which may be asked about new pods, too


class Resizing:
    """Looks after the resources of the brokers' pods of any cluster."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def look(self, visit: Visit, sets: Mapping[str, Object], pods: Mapping[int, Object]) -> dict[int, Resize]:
        """The pods that differ from their StatefulSets in resources alone, by broker. Raises KubeError."""
        found: dict[int, Resize] = {}
        for broker, pod in pods.items():
            stateful_set = sets.get(pod["metadata"]["name"].rpartition("-")[0])
            if stateful_set is None or not is_current(stateful_set):
                continue
            names_needed = sorted(needed_revisions(stateful_set, pod))
            read = {name: await visit.found.revision(name) for name in names_needed}
            resize = resize_of(stateful_set, pod, read, visit.now, ready=is_ready(pod))
            if resize is not None:
                found[broker] = resize
        begins = [broker for broker, resize in found.items() if not resize.begun and not resize.refused]
        if begins and not await self._kube.offers("Pod", SUBRESOURCE):
            found |= {broker: replace(found[broker], refused="this Kubernetes doesn't offer it") for broker in begins}
        return found

    async def carry_on(self, visit: Visit) -> None:
        """Goes on with the pods that are given other resources, and begins with the one whose turn it is, if any.
        Raises Retry with the first refusal."""
        decision = visit.findings.decision
        assert decision is not None
        begun = [pod for pod in visit.findings.pods or () if pod.resize is not None and pod.resize.begun]
        refusals = Refusals()
        for pod in begun if decision.resize is None else [*begun, decision.resize]:
            visit.busy = True
            with refusals.gathered():
                await self._carry_on(visit, pod)
        refusals.told()

    async def _carry_on(self, visit: Visit, pod: Pod) -> None:
        resize, there = pod.resize, visit.found.get("Pod", pod.name)
        assert resize is not None
        assert there is not None
        if resize.done:
            note = noted(there)
            assert note is not None
            await self._note(visit, there, replace(note, done=True))
            await visit.tell("Resized", f"{pod.name} has its new resources, and wasn't restarted for them")
        elif not resize.asked:
            await self._ask(visit, there, Note(pod.uid, resize.revision, timestamp(visit.now)))

    async def _ask(self, visit: Visit, pod: Object, note: Note) -> None:
        meta = pod["metadata"]
        stateful_set = visit.found.get("StatefulSet", meta["name"].rpartition("-")[0])
        assert stateful_set is not None
        await self._note(visit, pod, note)
        wanted = {
            "metadata": {"uid": meta["uid"]},
            "spec": {"containers": containers_resized(stateful_set, pod)},
        }
        try:
            await self._kube.merge("Pod", visit.cluster.namespace, meta["name"], wanted, SUBRESOURCE)
        except KubeError as error:
            if not is_of_this_pod(error):
                raise
            await self._note(visit, pod, replace(note, refused=error.message))

    async def _note(self, visit: Visit, pod: Object, note: Note) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "annotations": {names.RESIZE: note.text}}}
        await self._kube.merge("Pod", visit.cluster.namespace, meta["name"], patch)


def is_of_this_pod(error: KubeError) -> bool:
    """Whether a refusal is final for this pod, and says nothing about its successor."""
    if error.status == 403:
        return any(words in error.message for words in _OF_THIS_POD)
    return error.status == 404 or (error.status == 422 and _DENIED not in error.message)
