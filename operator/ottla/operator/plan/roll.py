"""Which broker's pod may be restarted now, why none may, and whether a pod may be evicted. Pure: times are inputs.

A pod is restarted only if the brokers' own reports allow it: `/v1/restart-risk` of the broker that is to stop, and
`/v1/caught-up` of the brokers that have started. Nothing is remembered between two decisions. So a roll goes on after a
restart of the operator, and a second change during a roll becomes part of that roll.

1. A pod that is stuck (its image can't be pulled, no node can run it, it crashes) serves no clients. If it is outdated,
   it is replaced immediately. If it isn't outdated, its successor would be stuck, too. So it isn't replaced, and no
   other pod is restarted either.
2. Otherwise, before a pod is restarted, all pods have to be ready, and caught up unless they are outdated themselves.
3. A pod that only needs other resources gets these in place (`resize.py`), before any pod is restarted. That is no
   restart, so it needs no maintenance window and no report. If Kubernetes doesn't accept a resize, or it isn't known
   whether a resize is enough, other pods are restarted all the same.
4. Of the outdated pods, the first whose risks are all unavoidable is restarted; the active controller's pod is last.
5. If the Cluster allows several pods to be away at the same time, another pod may be restarted while some are away, if
   - all pods that are away are in this pod's rack: so a cluster that survives the loss of a rack survives the roll;
   - the risks of this pod's restart are unavoidable, even with all of those pods away at the same time;
   - an up-to-date pod of the same StatefulSet has become ready, with the file of settings that this pod would get: so
     an image or a setting with which no broker starts costs only one pod;
   - no pod is being resized, and this pod isn't the active controller's.
6. Kubernetes goes through a StatefulSet's pods in the order of their numbers, and makes no pod after one that lacks a
   volume which was added since that pod was made. So pods that lack a volume are restarted in that order, the active
   controller's, too. If a pod with a higher number is missing all the same, it stays missing until the pods before it
   have the volume. So the first pod that lacks the volume is restarted, even if that makes partitions unavailable. Pods
   are restarted in this way one at a time. No pod is restarted in this way if records would be lost, if its broker
   doesn't reach the metadata, or while a pod of etcd or of the controllers is away.

7. A broker that doesn't trust the authority of the others' certificates can't catch up with them, nor they with it. So
   it is restarted as soon as all other pods are ready, even if that makes partitions unavailable, but not if records
   would be lost, or if it doesn't reach the metadata.

A risk is unavoidable if waiting can't remove it: the partition has one replica, or no more replicas than its minimal
ISR. Two brokers that have replicas of such a partition are restarted one after the other.

Kubernetes evicts pods without regard to racks. So one pod at a time may be evicted, and none while any pod is away.

Idea: Strimzi's KafkaRoller (order, stuck pods), Redpanda's probes (the broker decides).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.operator.plan import names
from ottla.operator.plan.resize import Resize
from ottla.wording import first_named

UNAVOIDABLE = frozenset({"only_copy", "too_few_replicas"})
SILENT_S_MAX = 300.0  # a pod that isn't ready for so long, and whose broker doesn't answer, counts as stuck
ABSENT_S_MAX = 10.0  # Kubernetes makes a missing pod within seconds, unless something prevents it
NAMES_SHOWN = 1

_WHAT = {
    "offline": "has no other in-sync replica",
    "loses_records": "would lose records, because unclean elections are on",
    "below_min_isr": "would fall below its min.insync.replicas",
}


@dataclass(frozen=True)
class Report:
    """A broker's reports: what would happen to partitions if it stopped, and what it hasn't caught up with."""

    risks: dict[str, tuple[str, ...]] = field(default_factory=dict)  # kind → partitions
    metadata_connected: bool = True
    controls: bool = False
    missing: tuple[str, ...] = ()  # replicas that aren't in sync
    offline: tuple[str, ...] = ()  # replicas that can't be opened
    not_ready_because: str = ""
    under_replicated: int = 0  # how many of the partitions that it leads are under-replicated
    revision: int = 0  # the revision of the metadata that the report is by
    without_leader: tuple[str, ...] = ()  # partitions of the whole cluster
    file_checksum: str = ""  # of the settings at the broker's start; empty if the broker doesn't report it
    brokers: frozenset[int] = frozenset()  # the risks are those of a stop of all of these; empty: of this broker

    @property
    def blocking(self) -> dict[str, tuple[str, ...]]:
        """The risks that may disappear if the restart waits."""
        return {kind: names for kind, names in self.risks.items() if names and kind not in UNAVOIDABLE}


@dataclass(frozen=True)
class Pod:
    """A broker's pod, and its broker's report. An empty `uid`: the pod is missing."""

    id: int
    name: str
    uid: str = ""
    outdated: str = ""  # why the pod has to be restarted
    resize: Resize | None = None  # the pod has to get other resources, without a restart
    not_in_place: bool = False  # it is outdated because it can't get other resources without a restart
    ready: bool = False
    leaving: bool = False  # it is being deleted already
    stuck: str = ""  # why it can't become ready by itself
    not_ready_s: float = 0.0  # for how long it hasn't been ready, or has been missing
    lacks_volume: bool = False  # its StatefulSet would give a new pod a volume that this pod doesn't have
    rack: str = ""  # empty where it has none, or none is known
    file: str = ""  # the checksum of the settings that a broker started now would get; empty if not known
    file_is_current: bool | None = None  # whether its broker was started with these settings; None if not known
    report: Report | None = None

    @property
    def stateful_set(self) -> str:
        """The name of the pod's StatefulSet, whose pods are all made by one template."""
        return names.set_of(self.name)

    @property
    def is_old(self) -> bool:
        """Whether the pod differs from what its StatefulSet would make now."""
        return bool(self.outdated) or self.resize is not None


@dataclass(frozen=True)
class Restart:
    """The step: delete a pod, so that Kubernetes makes it anew."""

    pod: Pod
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """The next step of a roll, or what this step waits for; the progress of the roll; and whether one pod may be
    evicted."""

    restart: Restart | None = None
    resize: Pod | None = None  # this pod may get its new resources now
    waits_for: str = ""
    rolling: bool = False  # whether any pod has to be restarted
    resizing: int = 0  # how many pods have to get other resources
    updated: int = 0
    total: int = 0
    evictable: bool = False

    @property
    def message(self) -> str:
        """One line for the status."""
        if not self.rolling and not self.resizing:
            return self.waits_for
        progress = f"Rolling {self.updated}/{self.total}"
        if not self.rolling:
            progress = f"Resizing {self.total - self.resizing}/{self.total}"
        if self.restart is not None:
            return f"{progress}: restarting {self.restart.pod.name}"
        if self.waits_for:
            return f"{progress}: waiting for {self.waits_for}"
        return f"{progress}: resizing {self.resize.name}" if self.resize is not None else progress


NOBODY: Mapping[int, Report] = {}


def joining(pods: Sequence[Pod], limit: int, held: Collection[int] = ()) -> tuple[list[Pod], list[Pod]]:
    """The pods that are away, and those that may be away at the same time if their brokers' reports allow it.

    `held` as in `decide`; at most `limit` pods are away at the same time.
    """
    staying = [pod for pod in pods if pod.id not in held]
    away = [pod for pod in staying if _away(pod)]
    racks = {pod.rack for pod in away}
    resizing = any(pod.resize is not None and pod.resize.asked for pod in staying)
    if not away or len(away) >= limit or len(racks) > 1 or "" in racks or resizing:
        return away, []
    up = [pod for pod in staying if not pod.is_old and pod.file_is_current is not False and not _away(pod)]
    able = [
        pod
        for pod in staying
        if pod.outdated and not _away(pod) and pod.rack in racks and not _controls(pod)
        if _first_lacking(pod, staying) is None and any(_proves(each, pod) for each in up)
    ]
    return away, able


def decide(
    pods: Sequence[Pod],
    *,
    window_open: bool = True,
    hold: str = "",
    others: str = "",
    held: Collection[int] = (),
    limit: int = 1,
    together: Mapping[int, Report] = NOBODY,
    cut_off: Collection[int] = (),
) -> Decision:
    """Decides which pod is restarted or resized next, if any.

    `held`: the ids of brokers that are removed for good. Their pods are neither restarted nor waited for. Exception:
    the first two rules hold for them. A broker to be removed that is stuck can't be drained of the partitions that it
    alone has; and the image that it can't start with would cost other brokers, too. The reports of such brokers count
    for evictions: these brokers may have records that no other broker has yet. `hold`: a condition that has to come
    true before pods are restarted for changes. `others`: a pod of etcd or of the controllers that has to be back before
    any broker's pod is restarted. `limit`: how many pods may be away at the same time. `together`: reports of brokers
    whose pods may join those that are away, each about a stop of its broker together with these pods. `cut_off`:
    brokers that don't trust the authority of the others' certificates.
    """
    staying = [pod for pod in pods if pod.id not in held]
    outdated = [pod for pod in staying if pod.outdated]
    total = len(staying)
    resizes = [pod for pod in staying if pod.resize is not None and not pod.outdated]
    so_far = Decision(rolling=bool(outdated), resizing=len(resizes), updated=total - len(outdated), total=total)

    def decision(restart: Restart | None, waits_for: str) -> Decision:
        return replace(so_far, restart=restart, waits_for=waits_for)

    for pod in pods:
        if pod.outdated and pod.uid and not pod.leaving and not pod.ready and (why := _stuck(pod)):
            reason = f"{pod.name} is stuck ({why}) and outdated ({pod.outdated})"
            return decision(Restart(pod, "ReplacedStuckPod", reason), "")
    for pod in pods:
        if not pod.ready and pod.stuck and not pod.outdated:
            return decision(None, f"{pod.name}, which is stuck: {pod.stuck}")
    for pod in staying:
        first = _first_lacking(pod, staying)
        if not pod.uid and pod.not_ready_s > ABSENT_S_MAX and first is not None and not _absent(first):
            if any(_away(each) and _first_lacking(each, staying) is None for each in staying):
                break  # another pod is away already, and becomes ready without this restart
            if others:
                return decision(None, others)
            if first.report is None or not first.report.metadata_connected:
                return decision(None, _blocked(first, first.report))
            if first.report.blocking.get("loses_records"):
                return decision(None, _blocked(first, first.report))
            return decision(
                Restart(first, "RollingRestart", f"{first.name} is restarted: {pod.name} waits for this restart"), ""
            )
    if alone := [pod for pod in staying if pod.id in cut_off]:
        if first_away := others or next(filter(None, map(_absent, staying)), ""):
            return decision(None, first_away)
        for pod in sorted(alone, key=lambda pod: (_controls(pod), bool(_blocked(pod, pod.report)), pod.id)):
            if _keeps_records(pod):
                said = f"{pod.name} is restarted: it doesn't trust the authority of the other brokers' certificates"
                return decision(Restart(pod, "RollingRestart", said), "")
        return decision(None, _blocked(alone[0], alone[0].report))
    away, able = joining(staying, limit)
    if away:
        for pod in able if window_open and not hold else ():
            if not _blocked(pod, together.get(pod.id)):
                meanwhile = f"{first_named([each.name for each in away], NAMES_SHOWN)} is away"
                return decision(
                    Restart(pod, "RollingRestart", f"{pod.name} is restarted: {pod.outdated}; {meanwhile}"), ""
                )
        return decision(None, next(filter(None, map(_absent, away)), "") or _behind(away[0]))
    serving = replace(so_far, evictable=not any(_blocked(pod, pod.report) for pod in pods if pod.ready))
    if asked := [pod for pod in resizes if pod.resize is not None and pod.resize.asked]:
        return replace(serving, waits_for=_resources_of(asked[0]))
    if (first := None if hold else _asked_for_next(resizes)) is not None:
        so_far, serving = replace(so_far, resize=first), replace(serving, resize=first)
        if first.resize is not None and not first.resize.begun:
            return serving
    if outdated and not window_open:
        hold = "the next maintenance window"
    if not outdated or hold:  # a hold may last for days: evictions stay possible meanwhile
        return replace(serving, waits_for=hold or (_resources_of(first or resizes[0]) if resizes else ""))
    blocks = ""
    outdated = [pod for pod in outdated if _first_lacking(pod, staying) is None]
    for pod in sorted(outdated, key=lambda pod: (_controls(pod), pod.id)):
        blocked = _blocked(pod, pod.report)
        if not blocked:
            return decision(Restart(pod, "RollingRestart", f"{pod.name} is restarted: {pod.outdated}"), "")
        blocks = blocks or blocked
    return decision(None, blocks)


def _asked_for_next(resizes: Sequence[Pod]) -> Pod | None:
    """Chooses the pod to resize next. A pod comes first if a resize is noted on it and Kubernetes hasn't accepted the
    request yet."""
    known = [pod for pod in resizes if pod.resize is not None and not pod.resize.unknown]
    return min(known, key=lambda pod: pod.resize is None or not pod.resize.begun, default=None)


def _resources_of(pod: Pod) -> str:
    says = f" ({pod.resize.waits_for})" if pod.resize is not None and pod.resize.waits_for else ""
    return f"{pod.name} to have its new resources{says}"


def _first_lacking(pod: Pod, pods: Sequence[Pod]) -> Pod | None:
    """The first pod of the same StatefulSet that lacks a volume and has a lower number than this pod, if any."""
    before = [each for each in pods if each.lacks_volume and each.stateful_set == pod.stateful_set and each.id < pod.id]
    return min(before, key=lambda each: each.id, default=None)


def _keeps_records(pod: Pod) -> bool:
    """Whether a broker that doesn't trust the others may stop: no records are lost, though partitions may be
    unavailable."""
    report = pod.report
    return report is not None and report.metadata_connected and "loses_records" not in report.blocking


def _away(pod: Pod) -> bool:
    """Whether a pod isn't ready, or its broker hasn't answered or caught up since its restart."""
    return bool(_absent(pod) or _behind(pod))


def _behind(pod: Pod) -> str:
    """What the broker of a pod that isn't outdated has to catch up with; empty where it has caught up."""
    if pod.outdated or pod.report is None or not pod.report.missing:
        return ""
    return f"{pod.name} to catch up: {named(pod.report.missing)}"


def _controls(pod: Pod) -> bool:
    return pod.report is not None and pod.report.controls


def _proves(up: Pod, pod: Pod) -> bool:
    """Whether the pod `up`, which has come up, shows that `pod` will come up, too.

    Both pods have to be of one StatefulSet. If `pod` would be started with another file than before, `up` must have
    been started with that file: settings of single brokers make files differ within a StatefulSet.
    """
    if pod.file_is_current is False and (up.report is None or up.report.file_checksum != pod.file):
        return False
    return up.stateful_set == pod.stateful_set


def _stuck(pod: Pod) -> str:
    if pod.stuck:
        return pod.stuck
    silent = pod.report is None and pod.not_ready_s > SILENT_S_MAX
    return f"it hasn't been ready for {pod.not_ready_s:.0f} s, and its broker doesn't answer" if silent else ""


def _absent(pod: Pod) -> str:
    if not pod.uid:
        return f"{pod.name} to be created"
    if pod.leaving:
        return f"{pod.name} to stop"
    if not pod.ready:
        because = f" ({pod.report.not_ready_because})" if pod.report and pod.report.not_ready_because else ""
        return f"{pod.name} to be ready{because}"
    if pod.report is None:
        return f"{pod.name} to answer"
    return ""


def _blocked(pod: Pod, report: Report | None) -> str:
    """Why this broker may not stop now, by its report; empty where it may."""
    if report is None:
        return f"{pod.name} to answer"
    if not report.metadata_connected:
        return f"{pod.name}, which doesn't reach the metadata store: no new leaders could be elected"
    for kind, partitions in report.blocking.items():
        what = _WHAT.get(kind, kind)
        return f"{pod.name}: {named(partitions)} {what}"
    return ""


def named(partitions: Sequence[str]) -> str:
    """The first partition's name, and how many more there are."""
    return f"partition {first_named(partitions, NAMES_SHOWN)}"
