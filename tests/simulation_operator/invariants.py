"""Invariants of every write of an operator, whatever faults there are. They depend on the present world, and on the
answers that the operator got.

1. A topic is deleted only if a user deleted its Topic under the present Cluster, with the policy Delete. The topic
   isn't deleted if the Topic was created again with the policy Retain, or under an older operator, which gave the topic
   to the new Topic. So a topic is marked as belonging to a Topic under the present Cluster only if that Topic existed
   at the same time as the Cluster.
2. No volume is deleted: no spec here lets volumes be deleted with their Cluster.
3. The operator deletes a serving pod only if each pod that it deleted before is back, or is gone for good. It deletes a
   broker's pod only if the broker's report allows that. It never deletes a pod that no StatefulSet of the Cluster
   created. Several brokers may be away at the same time only if they are in one rack and no more than the Cluster
   allows, and if the broker that is deleted last has reported about the stop of all of them together. Whatever the
   reports say, no partition with several replicas loses its last in-sync replica (`min.insync.replicas` is 1 here).
4. A broker is removed only when it has no replica left. A StatefulSet that is recreated keeps its pods.
5. A broker's Service isn't deleted before the broker's pod.
6. The PodDisruptionBudget allows an eviction only if the brokers' last reports do.
7. Nothing is changed in a Cluster that was read as paused.
8. No broker is started without a volume on which it has replicas. No pod is deleted while a pod of the same StatefulSet
   with a smaller ordinal lacks a volume: Kubernetes creates no pod with a larger ordinal than that pod's. If such a pod
   is missing, the pod that lacks a volume is deleted whatever its broker reports about availability.
9. The event that a pod was resized is sent only once its container has the new resources.
10. Whenever a broker or a controller starts, each broker that runs has a listener open by which it connects to others.
11. Processes with encrypted links, and the operator, accept each other's certificates at any time, whatever Secrets
    people delete.
12. Before a broker is told its address outside, the Secret of brokers has a certificate for this address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ottla.operator.certificates import decoded, hosts_of, pair_in
from ottla.operator.objects import Object, going
from ottla.operator.plan.links import stage_of
from ottla.operator.plan.names import COMPONENT, POD_NAME
from ottla.operator.plan.observed import broker_names
from ottla.operator.plan.roll import Report
from ottla.operator.plan.topic import Delete, KafkaTopic
from ottla.operator.plan.topic_owner import OWNER, read_mark
from ottla.operator.spec.cluster import Defaults, parse_cluster
from ottla.operator.spec.security import Links
from ottla.operator.spec.spec_error import SpecError
from tests.simulation_operator.brokers import Brokers
from tests.simulation_operator.directories import templates, volumes
from tests.simulation_operator.kubernetes import ApiServer

DEFAULTS = Defaults("ottla:1", "etcd:1", "1")
AWAITED_S = 280.0  # the operator waits no longer than this for a pod to be back


class Wishes:
    """Actions of people that permit deletions of topics, or forbid them."""

    def __init__(self) -> None:
        self.deleted: dict[str, str] = {}  # uid of a Topic that a user deleted → uid of the Cluster at that time
        self.retained: set[str] = set()  # uids of Topics whose topics are to stay
        self.given: set[str] = set()  # uids of Topics to which an older operator gave the topic of their name
        self.beside: set[tuple[str, str]] = set()  # (a Topic's uid, a Cluster's uid) that existed at the same time


class Invariants:
    """Collects the violations, each as a sentence."""

    def __init__(self, server: ApiServer, brokers: Brokers, wishes: Wishes, counts: Counter[str]) -> None:
        self.wrong: list[str] = []
        self._counts = counts
        self._server = server
        self._brokers = brokers
        self._wishes = wishes
        self._taken: dict[str, tuple[str, float]] = {}  # pod → uid and time at which the operator deleted it
        self._racks: dict[str, str | None] = {}  # broker's pod → rack
        self._together: Mapping[int, Report] = {}  # the last reports about the stop of several brokers
        self._reports: Mapping[int, Report] = {}
        self._paused = False
        self._asked_for: set[str] = set()  # the names of the brokers' pods that the last valid spec wants
        server.claim_deleted = self._volume_went

    def new_process(self) -> None:
        """A new process of the operator starts: forgets the answers that the former process got."""
        self._reports, self._together, self._paused = {}, {}, False

    # ---- answers to the operator

    def read_cluster(self, found: Object | None) -> None:
        """Notes the Cluster that the operator has read; None if there is none."""
        self._paused = bool(found and (found.get("spec") or {}).get("paused"))
        with suppress(SpecError):  # while the spec is invalid, the operator follows the last valid one
            if found is not None:
                self._asked_for = set(broker_names(parse_cluster(found, DEFAULTS), (), ()).values())

    def reported(self, reports: Mapping[int, Report]) -> None:
        """Notes the reports of brokers that the operator has got."""
        self._reports = dict(reports)

    def reported_together(self, reports: Mapping[int, Report]) -> None:
        """Notes the reports about the stop of several brokers that the operator has got."""
        self._together = dict(reports)

    def serves(self, name: str, pod: Object) -> None:
        """Called when a pod has become ready."""
        if name in self._server.made("broker") and (left := self._brokers.directories.left_out(_broker(name), pod)):
            self._say(f"{name} was started without {', '.join(left[:3])}")
        if name in self._taken and self._taken[name][0] != pod["metadata"]["uid"]:
            del self._taken[name]
        self._links_are_open()

    def _links_are_open(self) -> None:
        processes = {**self._server.made("broker"), **self._server.made("controller")}
        stages = {name: stage_of(pod["metadata"]) for name, pod in processes.items() if self._server.serves(name)}
        for name, stage in stages.items():
            for broker in stages.keys() & self._server.made("broker").keys():
                other = stages[broker]
                if not (other.encrypted_open if stage.by_encrypted else other.plain_open):
                    self._say(f"{name}, at the stage {stage.name}, can't connect to {broker} at {other.name}")
        if stages and set(stages.values()) == {Links.ENCRYPTED}:
            self._counts["links of all brokers encrypted"] += 1

    def told(self, reason: str, message: str) -> None:
        """Called when the operator sends an Event."""
        if "unexpectedly" in message:
            self._say(f"{reason}: {message}")
        pod = self._server.get_now("Pod", message.split()[0]) if reason == "Resized" else None
        if pod is not None:
            wanted = pod["spec"]["containers"][0]["resources"]
            if (has := pod["status"]["containerStatuses"][0].get("resources")) != wanted:
                self._say(f"{reason}: {message}, but it has {has}, not {wanted}")

    def connects(self, strangers: Iterable[str]) -> None:
        """Called after each step of the world. `strangers`: sentences about processes that don't accept each other."""
        for sentence in strangers:
            self._say(sentence)

    def tells_addresses(self, told: str) -> None:
        """Called before a broker is told its addresses outside: the value of the setting."""
        cluster = self._server.get_now("Cluster", "k")
        encrypted = [each["name"] for each in (cluster or {"spec": {}})["spec"].get("listeners", ()) if each.get("tls")]
        files = decoded(self._server.get_now("Secret", "k-brokers-tls"))
        for name, _, address in (each.partition("://") for each in told.split(",")):
            if name.lower() in encrypted:
                self._counts["address told of a listener with TLS"] += 1
                hosts = hosts_of(pair_in(files.get(f"{name.lower()}.pem", b"")).certificate)
                if (host := address.rpartition(":")[0]) not in hosts:
                    self._say(f"a broker is told its address {host}, for which it has no certificate")

    # ---- writes of the operator

    def applies(self, wanted: Object) -> None:
        """Called before an object is applied."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        present = self._server.get_now(kind, name)
        if self._paused:
            self._say(f"{kind} {name} was applied though the Cluster is paused")
        if kind == "StatefulSet" and present is not None and _component(present) == "broker":
            fewer = present["spec"]["replicas"] - wanted["spec"]["replicas"]
            first = present["spec"].get("ordinals", {}).get("start", 0) + wanted["spec"]["replicas"]
            if fewer > 0:
                self._leave(range(first, first + fewer))
        if kind == "PodDisruptionBudget" and _component(wanted) == "broker" and wanted["spec"]["maxUnavailable"]:
            for broker, report in sorted(self._reports.items()):
                if report.blocking:
                    self._say(f"the budget allows an eviction though broker {broker} says {report.blocking}")
            if not self._reports:
                self._say("the budget allows an eviction though no broker had reported")

    def patches(self, kind: str, name: str, subresource: str) -> None:
        """Called before a merge patch."""
        if self._paused and subresource != "status":
            self._say(f"{kind} {name} was patched though the Cluster is paused")

    def asks_brokers(self) -> None:
        """Called before a request that changes something in the brokers."""
        if self._paused:
            self._say("the brokers were asked to change something though the Cluster is paused")

    def deletes(self, kind: str, name: str, propagation: str) -> None:
        """Called before an existing object is deleted."""
        item = self._server.get_now(kind, name)
        assert item is not None
        if self._paused:
            self._say(f"{kind} {name} was deleted though the Cluster is paused")
        if kind == "Pod":
            self._takes(name, item)
        elif kind == "StatefulSet" and propagation != "Orphan":
            if propagation != "Foreground":
                self._say(f"StatefulSet {name} was deleted with its pods")
            if _component(item) == "broker":
                first = item["spec"].get("ordinals", {}).get("start", 0)
                self._leave(range(first, first + item["spec"]["replicas"]))
        elif kind == "Service":
            pod = item["spec"]["selector"].get(POD_NAME, "")
            if pod in self._server.pods("broker"):
                self._say(f"Service {name} was deleted while its broker's pod is there")
        elif kind == "PersistentVolumeClaim":
            self._volume_went(name)

    def deletes_topic(self, topic: KafkaTopic | None, step: Delete) -> None:
        """Called before a topic is deleted."""
        if topic is None or topic.id != step.id:
            return
        owner = read_mark(topic.owner)
        if owner is None:
            self._say(f"topic {topic.name} was deleted, which no Topic owns")
        elif owner.uid not in self._wishes.deleted:
            self._say(f"topic {topic.name} was deleted, and nobody had deleted its Topic")
        elif owner.uid in self._wishes.retained:
            self._say(f"topic {topic.name} was deleted, whose policy is Retain")
        elif self._wishes.deleted[owner.uid] != owner.cluster_uid:
            self._say(f"topic {topic.name} was deleted, whose Topic was deleted under another Cluster")
        elif (successor := self._server.get_now("Topic", topic.name)) is not None:
            if successor["metadata"]["uid"] in self._wishes.retained:
                self._say(f"topic {topic.name} was deleted, whose Topic was made again with the policy Retain")
            if successor["metadata"]["uid"] in self._wishes.given:
                self._say(f"topic {topic.name} was deleted, which an older operator gave to its Topic")

    def marks_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """Called before a topic gets settings."""
        owner = read_mark(settings.get(OWNER, ""))
        if owner is None or not any(
            item["metadata"]["uid"] == owner.cluster_uid for item in self._server.all("Cluster")
        ):
            return
        if (owner.uid, owner.cluster_uid) not in self._wishes.beside:
            self._say(f"topic {name} was marked as owned by a Topic that never existed together with this Cluster")

    def written(self, kind: str, name: str) -> None:
        """Called after a write that changed something."""
        if kind == "Cluster":
            item = self._server.get_now("Cluster", name)
            for each in (item or {}).get("status", {}).get("conditions", ()):
                if each["reason"] == "Unexpected":
                    self._say(f"{each['type']}: {each['message']}")

    # ---- the rules

    def _is_between_sets(self, name: str, item: Object) -> bool:
        """Whether a pod has no owner because its StatefulSet is being recreated: the new StatefulSet hasn't adopted the
        pod yet, or isn't created any more because its pool was removed from the spec.
        """
        meta = item["metadata"]
        sets = {each["metadata"]["name"] for each in self._server.all("StatefulSet")}
        was_made_by_one = meta["labels"].get(POD_NAME) == name
        return not meta.get("ownerReferences") and (was_made_by_one or name.rpartition("-")[0] in sets)

    def _takes(self, name: str, item: Object) -> None:
        made = {pod: its for one in ("broker", "etcd", "controller") for pod, its in self._server.pods(one).items()}
        if name not in made and not self._is_between_sets(name, item):
            self._say(f"pod {name} was deleted, which no StatefulSet of the Cluster made")
            return
        now = self._server.now.timestamp()
        self._taken = {
            pod: (uid, since)
            for pod, (uid, since) in self._taken.items()
            if now - since < AWAITED_S and pod in self._wanted()
        }
        served = self._server.serves(name)
        if _component(item) == "broker" and self._leaves(name):
            if served:  # a broker that doesn't serve is restarted, and drained afterwards
                self._leave(range(_broker(name), _broker(name) + 1))
            return
        if served and (first := self._lacking_before(name)):
            self._say(f"pod {name} was deleted, and Kubernetes makes it again only when {first} has all its volumes")
        waiting = self._missing_behind(name)
        others = sorted(self._taken.keys() - {name} - waiting)
        if served and _component(item) == "broker":
            self._takes_broker(name, others, needed=bool(waiting))
        elif served and others:
            self._say(f"pod {name} was deleted while {', '.join(others)} isn't back")
        if served and not going(item):
            self._taken[name] = (item["metadata"]["uid"], now)

    def _lacking_before(self, name: str) -> str:
        """A pod of the same StatefulSet that lacks a volume and has a smaller ordinal; empty if there is none."""
        of, _, number = name.rpartition("-")
        stateful_set = self._server.get_now("StatefulSet", of)
        if stateful_set is None or _component(stateful_set) != "broker":
            return ""
        before = (f"{of}-{ordinal}" for ordinal in _ordinals(stateful_set) if ordinal < int(number))
        pods = ((each, self._server.get_now("Pod", each)) for each in before)
        given = templates(stateful_set).keys()
        return next((each for each, pod in pods if pod is not None and not given <= volumes(pod)), "")

    def _missing_behind(self, name: str) -> set[str]:
        """The missing pods with larger ordinals, which Kubernetes doesn't create before this pod has its volumes."""
        of, _, number = name.rpartition("-")
        pod, stateful_set = self._server.get_now("Pod", name), self._server.get_now("StatefulSet", of)
        if pod is None or stateful_set is None or _component(stateful_set) != "broker":
            return set()
        if templates(stateful_set).keys() <= volumes(pod):
            return set()
        behind = {f"{of}-{ordinal}" for ordinal in _ordinals(stateful_set) if ordinal > int(number)}
        return {each for each in behind if self._server.get_now("Pod", each) is None}

    def _takes_broker(self, name: str, others: list[str], *, needed: bool) -> None:
        """Checks the deletion of a broker's pod. `others`: the pods that were deleted before and aren't back yet. With
        `needed`, missing pods can be created only after this deletion.
        """
        broker = _broker(name)
        report = self._reports.get(broker)
        if report is None:
            self._say(f"pod {name} was deleted, and its broker hadn't reported on its stop")
        elif report.blocking.keys() - ({"offline", "below_min_isr"} if needed else set()):
            self._say(f"pod {name} was deleted, though its broker says {report.blocking}")
        self._racks[name] = rack = self._brokers.rack(broker)
        if others:
            self._counts["several brokers of a rack away at once"] += 1
            if len(others) >= self._limit():
                self._say(f"pod {name} was deleted while {', '.join(others)} isn't back")
            elif not rack or any(self._racks.get(each) != rack for each in others):
                self._say(f"pod {name} was deleted while {', '.join(others)} of another rack isn't back")
            elif (together := self._together.get(broker)) is None or not {*map(_broker, others)} <= together.brokers:
                self._say(f"pod {name} was deleted while {', '.join(others)} isn't back, and no report was about both")
            elif together.blocking:
                self._say(
                    f"pod {name} was deleted with {', '.join(others)}, though a report on both says {together.blocking}"
                )
        if not needed and (
            lost := self._brokers.lost_by({broker, *(_broker(each) for each in others if each in self._racks)})
        ):
            self._say(f"pod {name} was deleted, and with it the last replica in sync of {', '.join(lost[:3])}")

    def _limit(self) -> int:
        said = (item["spec"].get("rolling", {}).get("maxUnavailable", 1) for item in self._server.all("Cluster"))
        return max(said, default=1)

    def _wanted(self) -> set[str]:
        """The pods that have to come back after a deletion: all but those of brokers that are drained to be removed."""
        return {
            f"{item['metadata']['name']}-{number}"
            for item in self._server.all("StatefulSet")
            for number in _ordinals(item)
            if not (_component(item) == "broker" and self._leaves(f"{item['metadata']['name']}-{number}"))
        }

    def _leaves(self, pod: str) -> bool:
        """Whether a broker, by its pod's name, is drained to be removed. The status still names a broker as drained
        during the first reconcile after the spec asked for that broker again.
        """
        draining = {broker for item in self._server.all("Cluster") for broker in _draining(item)}
        return _broker(pod) in draining and pod not in self._asked_for

    def _leave(self, brokers: range) -> None:
        if left := self._brokers.only_holders(brokers):
            self._say(f"brokers {list(brokers)} are taken away with {', '.join(left[:3])} on them")

    def _volume_went(self, name: str) -> None:
        self._say(f"volume {name} was deleted, which was to be kept")

    def _say(self, sentence: str) -> None:
        self.wrong.append(sentence)


def _broker(pod: str) -> int:
    return int(pod.rpartition("-")[2])


def _draining(cluster: Object) -> list[int]:
    return list((cluster.get("status") or {}).get("draining") or ())


def _ordinals(stateful_set: Object) -> range:
    first = stateful_set["spec"].get("ordinals", {}).get("start", 0)
    return range(first, first + stateful_set["spec"]["replicas"])


def _component(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(COMPONENT, ""))
