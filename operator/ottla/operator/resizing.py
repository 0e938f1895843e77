"""Gives brokers' pods other resources in place, one pod after the other, by the rules of `plan/resize.py`.

The pod has a note about its resize. The operator writes this note before it requests the resize, and again when
Kubernetes has accepted the request and when the resize is done. So another process of the operator goes on from there.
If a resize is refused, or an admission webhook changes it, the pod is restarted by the rules of every roll. Exception:
if Kubernetes would refuse the pod's successor, too, the pod isn't restarted, because it would be missing afterwards.

No timer is needed: each step changes a pod, whether the operator or the node makes it, and the watch of pods reports
that change.
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
# Reasons that forbid only a resize, or only on this node: a new pod may have these resources. For any other reason (a
# ResourceQuota, a LimitRange, a policy), the pod's successor would be refused as well.
_OF_THIS_POD = ('cannot patch resource "pods/resize"', "node didn't have enough")
_DENIED = "denied the request"  # an admission webhook's refusal: it may refuse new pods, too
_CHANGED = "Kubernetes accepted the request, but an admission webhook or another program changed the resources"


class Resizing:
    """Resizes the brokers' pods of any cluster."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def look(self, visit: Visit, sets: Mapping[str, Object], pods: Mapping[int, Object]) -> dict[int, Resize]:
        """The state of the resize of each pod that differs from its StatefulSet in resources alone, by broker id.

        A pod is in the result, too, if a request failed that would tell whether a resize is enough. The errors of such
        requests are kept, and `carry_on` raises them.
        """
        visit.resizes = refusals = Refusals()
        found: dict[int, Resize] = {}
        for broker, pod in pods.items():
            stateful_set = sets.get(names.set_of(pod["metadata"]["name"]))
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
                refused = "this release of Kubernetes can't resize pods"
                found |= {broker: replace(each, refused=refused) for broker, each in begins.items()}
        return found

    async def carry_on(self, visit: Visit) -> None:
        """Notes the progress of resizes on their pods, and requests the resize that was decided on, if any. Raises
        Retry with the first refusal, errors of `look` included."""
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
        elif not note.since:  # Kubernetes accepted the request, but the operator didn't get the answer
            await self._note(visit, there, replace(note, since=timestamp(visit.now)))

    async def _ask(self, visit: Visit, chosen: Pod) -> None:
        found, set_name = visit.found, names.set_of(chosen.name)
        pod, stateful_set = found.get("Pod", chosen.name), found.get("StatefulSet", set_name)
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


def is_of_this_pod(error: KubeError) -> bool:
    """Whether a refusal of a resize is final for this pod, but wouldn't affect its successor."""
    if error.status == 403:
        return any(words in error.message for words in _OF_THIS_POD)
    return error.status == 404 or (error.status == 422 and _DENIED not in error.message)
