"""One reconcile of one Cluster: what was found, and what its parts learn and leave for those after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ottla.operator.found import Found
from ottla.operator.kafka import KafkaAdmin
from ottla.operator.objects import Object
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.cluster_status import Findings
from ottla.operator.plan.etcd_members import Member
from ottla.operator.plan.observed import broker_names, broker_sets
from ottla.operator.plan.roll import Decision
from ottla.operator.plan.turns import on_its_way
from ottla.operator.queue import Tell
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import Cluster


@dataclass
class Visit:
    """What the parts of a reconcile share."""

    resource: Object
    cluster: Cluster
    spec: Object  # that the cluster was read from
    found: Found
    findings: Findings
    now: datetime
    tell: Tell
    leaving: frozenset[int] = frozenset()  # brokers that are there and aren't wanted
    busy: bool = False  # look again soon
    current: bool = True  # which pods are outdated is known
    resizes: Refusals = field(default_factory=Refusals)  # what of them can't be read or asked for now
    followed: Object | None = None  # the ConfigMap with the spec that was followed before
    absent_since: Mapping[str, datetime] = field(default_factory=dict)  # pods that there are to be and aren't
    hold: str = ""  # what has to come about before pods are restarted for changes
    patient: bool = False  # that may take long, and is told when it has
    restarted: str = ""  # a pod of this Cluster, at this visit
    members: list[Member] | None = None  # of etcd; None where no majority answers
    addresses: dict[int, dict[str, str]] = field(default_factory=dict)  # broker → external listener → host:port
    admin: KafkaAdmin | None = None  # that answers

    @property
    def window_open(self) -> bool:
        """Whether pods may be restarted for changes now."""
        return not self.cluster.windows or any(window.open_at(self.now) for window in self.cluster.windows)

    def waits_for_others(self, *components: str) -> str:
        """What keeps pods from being restarted for changes: whose turn it is, or a pod of these components."""
        return self.hold or self.waits_for_pods(*components)

    def waits_for_pods(self, *components: str) -> str:
        """A pod that was restarted at this visit, or one of these components that is on its way."""
        if self.restarted:
            return f"{self.restarted} to be ready"
        found = self.found
        each = (
            on_its_way(found.all("StatefulSet", one), found.all("Pod", one), self.absent_since, self.now)
            for one in components
        )
        return next(filter(None, each), "")

    def rolls(self, decision: Decision) -> None:
        """A roll is looked at again soon, but not while it waits for a window or for another Cluster's roll. Watches
        tell how far resizes are."""
        self.busy |= decision.rolling and self.window_open and not self.patient

    @property
    def asked(self) -> KafkaAdmin:
        """The brokers, for parts that need their answer."""
        assert self.admin is not None
        return self.admin

    def broker_pods(self) -> dict[int, Object]:
        """The pods of brokers, by their ids."""
        return {ordinal(pod): pod for pod in self.found.all("Pod", BROKER)}

    def pod_names(self) -> Mapping[int, str]:
        """The names of all brokers' pods, of those that are wanted and those that are there."""
        return broker_names(self.cluster, self.found.all("StatefulSet", BROKER), self.found.all("Pod", BROKER))


def leaving(cluster: Cluster, found: Found) -> frozenset[int]:
    """The brokers that are there and aren't wanted."""
    sets = broker_sets(found.all("StatefulSet", BROKER)).values()
    present = {broker for ids in sets for broker in ids}
    present |= {ordinal(pod) for pod in found.all("Pod", BROKER)}
    return frozenset(present - cluster.broker_ids)


def ordinal(pod: Object) -> int:
    """The number of a StatefulSet's pod, which is its broker's id."""
    return int(pod["metadata"]["name"].rpartition("-")[2])
