"""Which pod may be restarted now, why none may, and whether anybody else may take one away. Pure: times come in.

Only on the word of the brokers themselves: `/v1/restart-risk` of the one that is to stop, `/v1/caught-up` of those that
have started. Nothing is remembered between two decisions, so a roll goes on wherever it was after the operator's own
death, and a second change during a roll is part of it.

1. A pod that is stuck (its image can't be had, no node takes it, it crashes) serves nobody: if it is outdated it is
   replaced at once. If it isn't, its replacement would be stuck as well, and nothing else is restarted either.
2. Otherwise everybody has to be there: ready, and caught up unless outdated itself.
3. A pod that lacks nothing but resources gets these in place (`resize.py`), before any is restarted. That is no
   restart: it needs no maintenance window and no word of the brokers. One that Kubernetes doesn't take, or of which it
   isn't known whether it can be done, keeps no other pod from its restart.
4. Of the outdated ones the first goes whose risks are all unavoidable; the active controller last.
5. Where the Cluster lets several be away at once, another one may join those that are, if all of them are of its rack
   (so that who survives the loss of a rack survives the roll), if its risks are unavoidable with all of them away at
   once, if a pod of its StatefulSet has come up as it is wanted now and with the file that this one would be started
   with (an image that doesn't start costs one pod, and so do settings), and while none is being resized. The active
   controller joins nobody.
6. Kubernetes looks at a StatefulSet's pods in the order of their numbers, and makes none behind one that lacks a volume
   that was added since. So those that lack one go in that order, the active controller, too. Where one behind them is
   missing all the same, the first that lacks a volume is restarted whatever its broker says of availability: the
   missing one would stay away until then. But not where records would be lost, not without the metadata, not while a
   pod of etcd or of the controllers is away, and only one at a time: the next when it is back.

Unavoidable is what waiting can't change: a partition with one replica, or with no more replicas than its minimal ISR.
Two that such a partition has wait for each other.

Whoever evicts pods knows nothing of racks: evictions are allowed one at a time, and none while anybody is away.

Idea: Strimzi's KafkaRoller (order, stuck pods), Redpanda's probes (the broker decides).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.operator.plan.resize import Resize
from ottla.wording import first_named

UNAVOIDABLE = frozenset({"only_copy", "too_few_replicas"})
SILENT_S_MAX = 300.0  # a pod that isn't ready for so long, and whose broker says nothing, is stuck too
ABSENT_S_MAX = 10.0  # what is made, is made within seconds
NAMES_SHOWN = 1

_WHAT = {
    "offline": "has no other in-sync replica",
    "loses_records": "would lose records, because unclean elections are on",
    "below_min_isr": "would fall below its min.insync.replicas",
}


@dataclass(frozen=True)
class Report:
    """What a broker says about itself."""

    risks: dict[str, tuple[str, ...]] = field(default_factory=dict)  # kind → partitions
    metadata_connected: bool = True
    controls: bool = False
    missing: tuple[str, ...] = ()  # replicas that aren't in sync
    offline: tuple[str, ...] = ()  # replicas that can't be opened
    not_ready_because: str = ""
    under_replicated: int = 0  # of the partitions that it leads
    revision: int = 0  # of the metadata that it says this by
    without_leader: tuple[str, ...] = ()  # partitions of the whole cluster
    file_checksum: str = ""  # of the settings that it was started with; empty where it doesn't say
    brokers: frozenset[int] = frozenset()  # whose end at once the risks are of; empty: it doesn't say, and means itself

    @property
    def blocking(self) -> dict[str, tuple[str, ...]]:
        """The risks that waiting can take away."""
        return {kind: names for kind, names in self.risks.items() if names and kind not in UNAVOIDABLE}


@dataclass(frozen=True)
class Pod:
    """A broker's pod, and what it says. `uid` empty: there is none."""

    id: int
    name: str
    uid: str = ""
    outdated: str = ""  # why it has to be restarted
    resize: Resize | None = None  # it isn't to be restarted, and has to get other resources
    not_in_place: bool = False  # it is outdated because it can't get them without a restart
    ready: bool = False
    leaving: bool = False  # it is being deleted already
    stuck: str = ""  # why it can't come up
    not_ready_s: float = 0.0  # or for how long there has been none
    lacks_volume: bool = False  # one that its StatefulSet would give it
    rack: str = ""  # empty where it has none, or none is known
    file: str = ""  # the checksum of the settings that a start would give it now; empty where that isn't known
    file_is_current: bool | None = None  # whether it was started with these; None: it doesn't say
    report: Report | None = None

    @property
    def is_old(self) -> bool:
        """Whether it isn't yet as its StatefulSet would make it."""
        return bool(self.outdated) or self.resize is not None


@dataclass(frozen=True)
class Restart:
    """Delete this pod."""

    pod: Pod
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What to do, why nothing is done, how far the roll is, and whether one pod may be evicted."""

    restart: Restart | None = None
    resize: Pod | None = None  # it may get its resources now
    waits_for: str = ""
    rolling: bool = False  # pods have to be restarted
    resizing: int = 0  # pods that have to get other resources
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
    """The pods that are away or not back yet, and those that may be restarted beside them if the brokers say so. `held`
    as in `decide`; at most `limit` are away at once."""
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
) -> Decision:
    """The next step. `held` are the ids that go for good: they are neither restarted nor waited for. `hold`: what else
    has to come about before pods are restarted for changes; `others`: a pod of etcd or of the controllers that has to
    be back before any broker's is restarted. `limit`: how many may be away at once; `together`: what
    those that may join say, with all that are away.

    Whether a pod may be evicted is asked of them, too, as long as they serve: they may have what nobody else has yet.
    """
    staying = [pod for pod in pods if pod.id not in held]
    outdated = [pod for pod in staying if pod.outdated]
    total = len(staying)
    resizes = [pod for pod in staying if pod.resize is not None and not pod.outdated]
    so_far = Decision(rolling=bool(outdated), resizing=len(resizes), updated=total - len(outdated), total=total)

    def decision(restart: Restart | None, waits_for: str) -> Decision:
        return replace(so_far, restart=restart, waits_for=waits_for)

    for pod in outdated:
        if pod.uid and not pod.leaving and not pod.ready and (why := _stuck(pod)):
            reason = f"{pod.name} is stuck ({why}) and outdated ({pod.outdated})"
            return decision(Restart(pod, "ReplacedStuckPod", reason), "")
    for pod in staying:
        if not pod.ready and pod.stuck and not pod.outdated:
            return decision(None, f"{pod.name}, which is stuck: {pod.stuck}")
    for pod in staying:
        first = _first_lacking(pod, staying)
        if not pod.uid and pod.not_ready_s > ABSENT_S_MAX and first is not None and not _absent(first):
            if any(_away(each) and _first_lacking(each, staying) is None for each in staying):
                break  # another one is away already, and waits for nobody
            if others:
                return decision(None, others)
            if first.report is None or not first.report.metadata_connected:
                return decision(None, _blocked(first, first.report))
            if first.report.blocking.get("loses_records"):
                return decision(None, _blocked(first, first.report))
            return decision(Restart(first, "RollingRestart", f"{first.name} is restarted: {pod.name} waits for it"), "")
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
    if not outdated or hold:  # which may be days away: nodes are drained meanwhile
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
    """The pod whose resources are asked for next: the one for which Kubernetes didn't take the request, if any."""
    known = [pod for pod in resizes if pod.resize is not None and not pod.resize.unknown]
    return min(known, key=lambda pod: pod.resize is None or not pod.resize.begun, default=None)


def _resources_of(pod: Pod) -> str:
    says = f" ({pod.resize.waits_for})" if pod.resize is not None and pod.resize.waits_for else ""
    return f"{pod.name} to have its new resources{says}"


def _first_lacking(pod: Pod, pods: Sequence[Pod]) -> Pod | None:
    """The first pod of the same StatefulSet that lacks a volume, where Kubernetes comes by it before this one."""
    before = [each for each in pods if each.lacks_volume and _set_of(each) == _set_of(pod) and each.id < pod.id]
    return min(before, key=lambda each: each.id, default=None)


def _away(pod: Pod) -> bool:
    """Whether a pod that is expected to serve isn't back yet."""
    return bool(_absent(pod) or _behind(pod))


def _behind(pod: Pod) -> str:
    """What a pod that was restarted has to catch up with."""
    if pod.outdated or pod.report is None or not pod.report.missing:
        return ""
    return f"{pod.name} to catch up: {named(pod.report.missing)}"


def _controls(pod: Pod) -> bool:
    return pod.report is not None and pod.report.controls


def _proves(up: Pod, pod: Pod) -> bool:
    """Whether one that has come up shows that this one will: it is made alike, and was started with the same file,
    unless this one was, too. Settings of single brokers make files differ within one StatefulSet."""
    if pod.file_is_current is False and (up.report is None or up.report.file_checksum != pod.file):
        return False
    return _set_of(up) == _set_of(pod)


def _set_of(pod: Pod) -> str:
    """The name of its StatefulSet: what pods of one are made of is the same."""
    return pod.name.rpartition("-")[0]


def _stuck(pod: Pod) -> str:
    if pod.stuck:
        return pod.stuck
    silent = pod.report is None and pod.not_ready_s > SILENT_S_MAX
    return f"it isn't ready for {pod.not_ready_s:.0f} s and doesn't answer" if silent else ""


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
    """Why this broker may not stop now, by what it says."""
    if report is None:
        return f"{pod.name} to answer"
    if not report.metadata_connected:
        return f"{pod.name}, which doesn't reach the metadata: nobody could be elected in its place"
    for kind, names in report.blocking.items():
        what = _WHAT.get(kind, kind)
        return f"{pod.name}: {named(names)} {what}"
    return ""


def named(partitions: Sequence[str]) -> str:
    """The first, and how many more."""
    return f"partition {first_named(partitions, NAMES_SHOWN)}"
