"""The status of a Cluster: one line that says what the Cluster waits for, counts, and conditions. Pure.

The same findings always give the same document, but for the times of conditions that flip. The status is written only
when it differs, so it must not differ without a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ottla.operator.objects import Object, condition, holds, seconds_since
from ottla.operator.plan.balance import Balancing
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.external import NodePorts, ports_noted
from ottla.operator.plan.overrides import NO_SUCH_BROKER, Standing, noted, standings
from ottla.operator.plan.pods import found_by
from ottla.operator.plan.pool_ids import HeldBack
from ottla.operator.plan.roll import Decision, Pod, named
from ottla.operator.plan.scale import Scaling
from ottla.operator.plan.storage import REASONS, Storage
from ottla.operator.plan.turns import Release, release_noted
from ottla.operator.spec.balance import Mode
from ottla.operator.spec.cluster import Cluster, Etcd, Pool
from ottla.operator.status import INVALID, Condition, Trouble, conditions
from ottla.wording import abridged, counted, first_named

MESSAGE_MAX = 1024
UNANSWERED_S_MAX = 20.0  # a Cluster that was Ready stays Ready for so long while no broker answers
PASSING = (
    "Paused",
    "TopicsHeld",
    "ListenersReady",
    "SnapshotsTaken",
    "OverridesApplied",
    "PodsOwned",
    "LinksChanging",
    "KeysLost",
)  # the types of conditions that the status leaves out while they don't apply
_RECONCILED = "Reconciled"


@dataclass
class Findings:
    """What a reconcile has learnt. A reconcile may end early, so each field has a value for "not known"."""

    pods: list[Pod] | None = None  # None if the pods weren't read
    version: str = ""
    cluster_id: str = ""
    encrypted_links: bool = False  # every broker has the encrypted listener for other brokers open
    links_change: str = ""  # what brokers do so that the links between them become as the spec wants them
    keys_wait_for: str = ""  # what has to happen before brokers get keys, which are lost; empty if they have them
    cut_off: str = ""  # which brokers don't trust the keys that the others have got, as a sentence
    decision: Decision | None = None
    metadata_waits_for: str | None = None  # None if etcd wasn't asked; empty if all members answer
    metadata_serves: bool = True  # a majority of etcd's members answers
    etcd_roll: Decision | None = None
    controller_roll: Decision | None = None
    operator: Release = field(default_factory=Release)  # the operator's release that made the pods
    metadata_full: str = ""  # etcd takes no writes until a person has done what this sentence says
    last_snapshot: str = ""
    snapshots_wait_for: str | None = None  # None if the spec asks for no snapshots; empty if none is overdue
    config_waits_for: str | None = None  # None if no broker was asked; empty if the settings are applied
    overrides_wait_for: Mapping[int, str] | None = None  # broker → why its own settings aren't in force
    balancing: Balancing | None = None  # None if the spec asks for no balance, or loads weren't asked for
    scaling: Scaling = field(default_factory=Scaling)
    held_back: HeldBack = field(default_factory=HeldBack)
    bootstrap: dict[str, str] = field(default_factory=dict)
    node_ports: NodePorts = field(default_factory=dict)
    listeners_wait_for: str | None = None  # None if no broker was told its addresses; empty if all were
    storage: Storage | None = None  # None if the claims weren't read
    racks_wait_for: str = ""
    strays: tuple[str, ...] = ()  # pods with the labels of the Cluster's own pods, which something else made
    brokers_wait_for: str = ""  # why a request to the brokers got no answer
    answers: bool | None = None  # whether a broker answered by Kafka's protocol; None if none was asked
    refusal: str = ""  # why the spec can't be followed, so that an earlier one is
    troubles: list[Trouble] = field(default_factory=list)  # the parts of the reconcile that weren't done
    topics_held: Condition | None = None

    def storage_is(self, storage: Storage) -> None:
        """Notes the state of volumes. If a worse state was noted before, that state stays."""
        if self.storage is None or REASONS.index(storage.reason) < REASONS.index(self.storage.reason):
            self.storage = storage

    @property
    def failed(self) -> Trouble | None:
        """The failed part of the reconcile that the status names first: a part that only a change of the spec can mend,
        otherwise the first that failed. None if no part failed."""
        failed = [trouble for trouble in self.troubles if trouble.failed]
        return min(failed, key=lambda trouble: trouble.reason != INVALID, default=None)

    @property
    def failure(self) -> str:
        """Why this part failed; empty if no part failed."""
        return self.failed.message if self.failed is not None else ""

    @property
    def awaited(self) -> str:
        """What the first part that can't be done yet waits for; empty if no part waits."""
        return next((trouble.message for trouble in self.troubles if not trouble.failed), "")


def part_condition(part: str) -> str:
    """The type of the condition that the status has while a part of the reconcile isn't done."""
    return part + _RECONCILED


def refused(resource: Object, why: str, now: datetime) -> Object:
    """The status of a Cluster whose spec can't be carried out: Ready is False, and the rest stays as it was."""
    status = _unready(resource, "InvalidSpec", why, now)
    return {**status, "observedGeneration": resource["metadata"].get("generation", 0)}


def not_looked_at(resource: Object, why: str, now: datetime) -> Object:
    """The status of a Cluster whose objects couldn't be read: nothing was done, and the rest stays as it was."""
    return _unready(resource, "NotApplied", why, now)


def _unready(resource: Object, reason: str, why: str, now: datetime) -> Object:
    before = resource.get("status") or {}
    generation = resource["metadata"].get("generation", 0)
    found = [Condition("Ready", False, reason, why)]
    return {
        **before,
        "message": abridged(why, MESSAGE_MAX),
        "conditions": conditions(before.get("conditions") or (), found, generation, now),
    }


def cluster_status(cluster: Cluster, findings: Findings, before: Mapping[str, Any], now: datetime) -> Object:
    """The whole status after a reconcile. `before` is the present status, `now` the time of conditions that flip."""
    seen = findings.pods or []
    pods = [pod for pod in seen if pod.id in cluster.broker_ids]
    ready = sum(pod.ready for pod in pods)
    desired = len(cluster.broker_ids) + sum(findings.held_back.brokers.values())
    message = _message(cluster, findings, ready, len(pods))
    silent = findings.answers is not True and not _may_be_a_moment(before, now)
    status: Object = {
        "observedGeneration": cluster.generation,
        "message": abridged(message, MESSAGE_MAX),
        "brokers": {
            "desired": desired,
            "ready": ready,
            "replicas": sum(bool(pod.uid) for pod in seen),
            "summary": f"{ready}/{desired}",
            "selector": ",".join(f"{name}={value}" for name, value in sorted(found_by(cluster, BROKER).items())),
        },
        "pools": [_pool(pool, findings.held_back.brokers.get(pool.name, 0), seen) for pool in cluster.pools],
        "listeners": _listeners(findings.bootstrap) or before.get("listeners") or [],
        "conditions": _written(_conditions(cluster, findings, message, ready, silent), before, cluster.generation, now),
    }
    if findings.pods is None:  # the pods weren't looked at: the last known numbers stay
        status |= {name: before[name] for name in ("brokers", "pools", "version") if name in before}
    if findings.version:
        status["version"] = findings.version
    if cluster_id := findings.cluster_id or before.get("clusterId"):
        status["clusterId"] = cluster_id
    if (unled := _without_leader(findings)) is not None:
        status["underReplicatedPartitions"] = sum(pod.report.under_replicated for pod in seen if pod.report)
        status["offlinePartitions"] = len(unled)
    if findings.pods is None and "configOverrides" in before and cluster.overrides:
        status["configOverrides"] = before["configOverrides"]
    elif cluster.overrides:
        status["configOverrides"] = [noted(each) for each in _standings(cluster, findings)]
    if findings.encrypted_links:
        status["encryptedLinks"] = True
    if operator := release_noted(findings.operator):
        status["operator"] = operator
    if findings.node_ports:
        status["nodePorts"] = ports_noted(findings.node_ports)
    if findings.last_snapshot:
        status["lastSnapshotTime"] = findings.last_snapshot
    if cluster.balance.mode is not Mode.OFF:
        status["balance"] = _balance(findings.balancing) or {"summary": "not known now"}
    scaling = findings.scaling
    if not scaling.new:
        status["settled"] = sorted(scaling.settled)
    if scaling.draining:
        status["draining"] = sorted(scaling.draining)
    if scaling.reason:
        status["reassignment"] = {"reason": abridged(scaling.reason, 256), "remaining": scaling.remaining}
    return status


def _written(found: list[Condition], before: Mapping[str, Any], generation: int, now: datetime) -> list[Object]:
    meant = {condition.type for condition in found}
    written = conditions(before.get("conditions") or (), found, generation, now)
    return [condition for condition in written if condition["type"] in meant or not _passes(condition["type"])]


def _passes(kind: str) -> bool:
    return kind in PASSING or kind.endswith(_RECONCILED)


def _balance(balancing: Balancing | None) -> Object:
    if balancing is None:
        return {}
    said: Object = {"summary": abridged(balancing.summary, 256)}
    if balancing.out_of_balance:
        said["outOfBalance"] = list(balancing.out_of_balance)
    if balancing.moves:
        said["moves"] = balancing.moves
    if balancing.bytes_to_copy:
        said["bytesToCopy"] = balancing.bytes_to_copy
    return said


def _without_leader(findings: Findings) -> tuple[str, ...] | None:
    """The partitions without a leader, by the report of the broker with the newest metadata.

    None where no reporting broker is connected to the metadata store. Then all reports are by older metadata, and
    leaders may have died since.
    """
    reports = [pod.report for pod in findings.pods or () if pod.report and pod.report.metadata_connected]
    return max(reports, key=lambda report: report.revision).without_leader if reports else None


def _listeners(bootstrap: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "bootstrap": servers} for name, servers in sorted(bootstrap.items())]


def _message(cluster: Cluster, findings: Findings, ready: int, known: int) -> str:
    """The status's message: the most important fact, in one line. If there is a trouble during a roll, the line has the
    progress of the roll and the trouble."""
    if cluster.paused:
        return "paused: nothing is changed"
    trouble = findings.refusal or findings.failure or findings.awaited
    if not trouble and findings.metadata_waits_for:
        trouble = f"waiting for etcd: {findings.metadata_waits_for}"
    elif not trouble and findings.metadata_full:
        trouble = f"etcd: {findings.metadata_full}"
    decision = findings.decision
    if rolls := _rolls(findings):
        aside = "; ".join(filter(None, (trouble, findings.links_change)))
        return f"{rolls[0]} ({aside})" if aside else rolls[0]
    if trouble:
        return trouble
    if findings.links_change:
        return f"links between brokers: {findings.links_change}"
    if scales := _scaling(findings, f": {counted(findings.scaling.remaining, 'partition')} to go"):
        return scales
    if waits_for := (findings.storage.message if findings.storage else "") or findings.racks_wait_for:
        return waits_for
    if decision is not None and decision.message:
        return f"waiting for {decision.message}"
    if findings.brokers_wait_for:
        return f"waiting for an answer: {findings.brokers_wait_for}"
    if unled := _without_leader(findings):
        return f"{named(unled)} without a leader"
    for text in (findings.listeners_wait_for, findings.config_waits_for, findings.snapshots_wait_for):
        if text:
            return text
    if waiting := _waiting(_standings(cluster, findings)):
        return f"configOverrides: {waiting[0].message}"
    serve = f"{ready} of {known} brokers serve"
    if findings.topics_held is not None:
        serve += "; topics without their Topics are kept: see the condition TopicsHeld"
    if findings.strays:
        serve += "; pods of another owner have the labels of the Cluster's pods: see the condition PodsOwned"
    return serve


def _conditions(cluster: Cluster, findings: Findings, message: str, ready: int, silent: bool) -> list[Condition]:
    """All conditions that apply. A condition that can't be known now is Unknown, whatever it was before."""
    found = [_ready(cluster, findings, message, ready, silent)]
    busy = bool(
        (findings.decision and findings.decision.waits_for)
        or _rolls(findings)
        or findings.links_change
        or findings.scaling.goes_on
        or findings.scaling.needs_person
        or findings.held_back.waits_for
        or findings.metadata_waits_for
        or findings.failure
        or findings.awaited
        or findings.brokers_wait_for
        or (findings.storage and findings.storage.reason in ("Held", "Emptying", "Growing"))
    )
    how = "Changing" if busy else "InvalidSpec" if findings.refusal else "AsWanted"
    found.append(Condition("Progressing", busy and not cluster.paused, how, message))
    found.append(_led(findings))
    found.append(_answers(findings))
    if isinstance(cluster.metadata, Etcd):
        found.append(_metadata(findings))
    if (late := findings.snapshots_wait_for) is not None:
        found.append(Condition("SnapshotsTaken", not late, "SnapshotLate" if late else "OnTime", late))
    found.append(_rolling(cluster, findings))
    scaling = findings.scaling
    said = _scaling(findings)
    reason = "ReplicasMove" if scaling.progress else "Waiting" if said else "InPlace"
    found.append(Condition("Reassigning", bool(scaling.progress), reason, said))
    found.append(_storage(findings.storage))
    found.append(_waits("ConfigApplied", cluster, findings.config_waits_for, "Applied", "Refused"))
    if cluster.overrides:
        found.append(_overrides(cluster, findings))
    if any(listener.external for listener in cluster.listeners):
        # External addresses don't affect Ready: clients inside Kubernetes are served without them, and other systems,
        # such as load balancers, provide them.
        found.append(_waits("ListenersReady", cluster, findings.listeners_wait_for, "Advertised", "NoAddress"))
    if cluster.paused:
        found.append(Condition("Paused", True, "SpecPaused", "spec.paused is true: nothing is changed"))
    if findings.links_change:
        found.append(Condition("LinksChanging", True, cluster.links.name.capitalize(), findings.links_change))
    if lost := findings.keys_wait_for or findings.cut_off:
        found.append(Condition("KeysLost", True, "BrokersCutOff" if findings.cut_off else "KeysAwaited", lost))
    if findings.topics_held is not None:
        found.append(findings.topics_held)
    if findings.strays:
        found.append(Condition("PodsOwned", False, "StrayPods", _strays(findings.strays)))
    for trouble in findings.troubles:
        found.append(Condition(part_condition(trouble.part), False, trouble.reason, trouble.message))
    return found


def _strays(pods: tuple[str, ...]) -> str:
    who, them = ("pods", "them") if len(pods) > 1 else ("pod", "it")
    return (
        f"{who} {first_named(pods, 3)}: labelled as the Cluster's own pods, but somebody else made {them}, and "
        f"Services send clients there, too. Take the labels away, or delete {them}"
    )


def _scaling(findings: Findings, how_far: str = "") -> str:
    """Which replicas are moved, or what scaling waits for, and what a person has to do."""
    scaling = findings.scaling
    progress = scaling.progress + how_far if scaling.progress else ""
    return "; ".join(filter(None, (scaling.waits_for or progress, findings.held_back.waits_for, scaling.needs_person)))


def _overrides(cluster: Cluster, findings: Findings) -> Condition:
    if cluster.paused:
        return Condition("OverridesApplied", None, "NotAsked", "nothing is asked of brokers while spec.paused is true")
    if findings.pods is None:
        return Condition("OverridesApplied", None, "NotAsked", "this reconcile didn't read the brokers' pods")
    waiting = _waiting(_standings(cluster, findings))
    more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    reason, message = (waiting[0].reason, waiting[0].message + more) if waiting else ("Applied", "")
    return Condition("OverridesApplied", not waiting, reason, message)


def _standings(cluster: Cluster, findings: Findings) -> list[Standing]:
    return standings(cluster, findings.pods or (), findings.overrides_wait_for)


def _waiting(found: list[Standing]) -> list[Standing]:
    """The brokers' own settings that aren't in force; first those for brokers that don't exist."""
    return sorted((each for each in found if each.reason), key=lambda each: each.reason != NO_SUCH_BROKER)


def _led(findings: Findings) -> Condition:
    unled = _without_leader(findings)
    if unled is None:
        if any(pod.report for pod in findings.pods or ()):
            away = "no broker reaches the metadata store, so it isn't known which partitions have a leader now"
            return Condition("PartitionsLed", None, "MetadataAway", away)
        return Condition("PartitionsLed", None, "NotAsked", "no broker says which partitions have a leader")
    message = f"{named(unled)} without a leader" if unled else ""
    return Condition("PartitionsLed", not unled, "NoLeader" if unled else "AllLed", message)


def _answers(findings: Findings) -> Condition:
    if findings.answers is None:
        return Condition("KafkaAnswers", False, "NoBrokerReady", "no broker is ready to be asked")
    reason = "Answers" if findings.answers else "NoAnswer"
    return Condition("KafkaAnswers", findings.answers, reason, "" if findings.answers else findings.brokers_wait_for)


def _storage(storage: Storage | None) -> Condition:
    if storage is None:
        return Condition("StorageReady", None, "NotAsked", "this reconcile didn't read the volumes")
    return Condition("StorageReady", not storage.message, *storage)


def _metadata(findings: Findings) -> Condition:
    if findings.metadata_waits_for is None:
        return Condition("MetadataReady", None, "NotAsked", "etcd wasn't looked at")
    if findings.metadata_waits_for:
        return Condition("MetadataReady", False, "EtcdAway", findings.metadata_waits_for)
    full = findings.metadata_full
    return Condition("MetadataReady", not full, "EtcdFull" if full else "EtcdAnswers", full)


def _rolling(cluster: Cluster, findings: Findings) -> Condition:
    if cluster.paused:
        pods = findings.pods or ()
        outdated, resizes = sum(bool(pod.outdated) for pod in pods), sum(pod.resize is not None for pod in pods)
        others = "changes of the spec may make more pods outdated"
        are, get = "is" if outdated == 1 else "are", "gets" if resizes == 1 else "get"
        old, resized = counted(outdated, "pod"), counted(resizes, "pod")
        later = [f"{old} {are} outdated, and {are} restarted after the pause; {others}"] if outdated else []
        later += [f"{resized} {get} other resources after the pause"] if resizes else []
        return Condition("Rolling", False, "SpecPaused", "; ".join(later))
    if rolls := _rolls(findings):
        decisions = (findings.decision, findings.controller_roll, findings.etcd_roll)
        restarts = any(decision is not None and decision.restart is not None for decision in decisions)
        rolling = any(decision is not None and decision.rolling for decision in decisions)
        waits = any(decision is not None and decision.rolling and decision.waits_for for decision in decisions)
        reason = "Resizing" if not rolling else "Waiting" if waits and not restarts else "Rolling"
        return Condition("Rolling", True, reason, "; ".join([*rolls, *_not_in_place(findings)]))
    if findings.decision is None:
        return Condition("Rolling", None, "NotAsked", "this reconcile didn't decide about the brokers' pods")
    return Condition("Rolling", False, "UpToDate")


def _rolls(findings: Findings) -> list[str]:
    """A line for each kind of pods that are being restarted or resized for a change, brokers first."""
    rolls = []
    if findings.decision is not None and (findings.decision.rolling or findings.decision.resizing):
        rolls.append(findings.decision.message)
    for what, decision in (("etcd", findings.etcd_roll), ("controllers", findings.controller_roll)):
        if decision is not None and decision.rolling:
            rolls.append(decision.message.replace("Rolling ", f"Rolling {what} ", 1))
    return rolls


def _not_in_place(findings: Findings) -> list[str]:
    """A line about the first pod that can get other resources only by a restart, with the reason. The status has this
    line because the restart may be a long time away."""
    return [f"{pod.name}: {pod.outdated}" for pod in findings.pods or () if pod.not_in_place and pod.outdated][:1]


def _waits(kind: str, cluster: Cluster, waits_for: str | None, done: str, refused: str) -> Condition:
    """A condition that depends on the brokers' answers. If `waits_for` is None, no broker was asked, and the condition
    is Unknown; if `waits_for` is empty, the condition is True."""
    if waits_for is None:
        why = "nothing is asked of brokers while spec.paused is true" if cluster.paused else "no broker was asked"
        return Condition(kind, None, "NotAsked", why)
    return Condition(kind, not waits_for, refused if waits_for else done, waits_for)


def _may_be_a_moment(before: Mapping[str, Any], now: datetime) -> bool:
    """Whether the brokers' silence may last for a moment only. For example, the broker that was asked may have stopped,
    so that another one has to be asked."""
    if not holds(before, "Ready"):
        return False
    answered = condition(before, "KafkaAnswers")
    return answered.get("status") != "False" or seconds_since(answered["lastTransitionTime"], now) < UNANSWERED_S_MAX


def _ready(cluster: Cluster, findings: Findings, message: str, ready: int, silent: bool) -> Condition:
    if findings.refusal:
        return Condition("Ready", False, "InvalidSpec", findings.refusal)
    if findings.failed is not None:
        reason = INVALID if findings.failed.reason == INVALID else "NotApplied"
        return Condition("Ready", False, reason, findings.failure)
    if not findings.metadata_serves:
        return Condition("Ready", False, "MetadataNotReady", message)
    if findings.held_back.brokers or ready < len(cluster.broker_ids):
        return Condition("Ready", False, "BrokersNotReady", message)
    if silent:
        return Condition("Ready", False, "KafkaDoesNotAnswer", findings.brokers_wait_for)
    if findings.config_waits_for:
        return Condition("Ready", False, "ConfigNotApplied", findings.config_waits_for)
    return Condition("Ready", True, "BrokersServe", "")


def _pool(pool: Pool, held_back: int, pods: list[Pod]) -> Object:
    mine = [pod for pod in pods if pod.id in pool.ids]
    return {
        "name": pool.name,
        "firstId": pool.first_id,
        "desired": len(pool.ids) + held_back,
        "ready": sum(pod.ready for pod in mine),
        "outdated": sum(pod.is_old for pod in mine),
    }
