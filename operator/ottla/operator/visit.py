"""A visit: the state that the parts of one reconcile of a Cluster share, and pass on to later parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ottla.operator.certificates import Identity
from ottla.operator.found import Found
from ottla.operator.kafka import KafkaAdmin
from ottla.operator.link import PLAIN, Link
from ottla.operator.objects import Object
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.cluster_status import Findings
from ottla.operator.plan.etcd_members import Member
from ottla.operator.plan.observed import broker_names, existing
from ottla.operator.plan.roll import Decision
from ottla.operator.plan.turns import on_its_way
from ottla.operator.queue import Tell
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import Cluster


@dataclass
class Visit:
    """The state of one reconcile of a Cluster, shared by the functions (parts) that the reconcile consists of."""

    resource: Object
    cluster: Cluster
    spec: Object  # the spec that `cluster` was read from
    found: Found
    findings: Findings
    now: datetime
    tell: Tell
    leaving: frozenset[int] = frozenset()  # brokers that exist and aren't wanted
    existed: Mapping[int, str] = field(default_factory=dict)  # broker → its pod's name, at the reconcile's beginning
    busy: bool = False  # whether the Cluster has to be reconciled again soon
    current: bool = True  # whether it is known which pods are outdated
    resizes: Refusals = field(default_factory=Refusals)  # errors of reading or requesting resizes
    listener_certificates: Refusals = field(default_factory=Refusals)  # of listeners whose present ones are kept
    followed: Object | None = None  # the ConfigMap with the spec that was followed before
    absent_since: Mapping[str, datetime] = field(default_factory=dict)  # since when wanted pods are missing, by name
    hold: str = ""  # what restarts of pods for changes have to wait for
    patient: bool = False  # `hold` may take long, and its end causes a new reconcile
    restarted: str = ""  # the pod that this reconcile has restarted
    members: list[Member] | None = None  # etcd's list of members; None where no majority answers
    addresses: dict[int, dict[str, str]] = field(default_factory=dict)  # broker → external listener → host:port
    own_settings: Mapping[int, Mapping[str, str]] | None = None  # broker → its dynamic settings before changes
    trust: bytes = b""  # the certificates (PEM) by which clients trust the brokers; empty where nothing is encrypted
    files: str = ""  # a digest of the data of the brokers' Secret; empty where there is none
    files_changed: str = ""  # when these data have changed last, as Kubernetes writes times
    awaited_keys: str = ""  # what a broker that started now would have to wait for: its keys; empty if it has all
    cut_off: frozenset[int] = frozenset()  # brokers that run and don't trust the authority of the others' certificates
    encrypted_somewhere: bool = False  # a broker has the encrypted listener for other brokers open, or will have
    identity: Identity | None = None  # what the operator needs to read encrypted pages, once one had to be read
    link: Link = PLAIN  # the way to connect to brokers
    admin: KafkaAdmin | None = None  # the client of the brokers, once one of them has answered

    @property
    def draining(self) -> frozenset[int]:
        """The ids of brokers that are being drained to be removed. A broker that the spec doesn't want, but that can't
        be drained yet, isn't among them: it works, is rolled and gets new replicas like any other."""
        return self.leaving & self.findings.scaling.draining

    @property
    def window_open(self) -> bool:
        """Whether a maintenance window is open, or the spec has none: pods may be restarted for changes."""
        return not self.cluster.windows or any(window.open_at(self.now) for window in self.cluster.windows)

    def waits_for_others(self, *components: str) -> str:
        """What restarts for changes have to wait for: the reason in `hold`, or a pod of these components; else
        empty."""
        return self.hold or self.waits_for_pods(*components)

    def waits_for_pods(self, *components: str) -> str:
        """What has to be waited for: a pod that this reconcile has restarted, or a pod of these components that should
        serve soon; else empty."""
        if self.restarted:
            return f"{self.restarted} to be ready"
        found = self.found
        each = (
            on_its_way(found.all("StatefulSet", one), found.all("Pod", one), self.absent_since, self.now)
            for one in components
        )
        return next(filter(None, each), "")

    def rolls(self, decision: Decision) -> None:
        """Has the Cluster reconciled again soon if pods still have to be restarted (`decision`), unless the restarts
        wait for a maintenance window or another Cluster's turn. Resizes of pods need no early reconcile, because
        watches report their progress."""
        self.busy |= decision.rolling and self.window_open and not self.patient

    @property
    def asked(self) -> KafkaAdmin:
        """The admin client of the brokers. The part KafkaAnswers of a reconcile opens it, so only the parts that are
        declared to need KafkaAnswers may use it."""
        assert self.admin is not None
        return self.admin

    def broker_pods(self) -> dict[int, Object]:
        """The brokers' pods, by broker id."""
        return {ordinal(pod): pod for pod in self.found.all("Pod", BROKER)}

    def pod_names(self) -> Mapping[int, str]:
        """The pod names of the wanted brokers and of the existing ones, by broker id."""
        return broker_names(self.cluster, self.found.all("StatefulSet", BROKER), self.found.all("Pod", BROKER))


def leaving(cluster: Cluster, found: Found) -> frozenset[int]:
    """The ids of brokers that exist and that the spec doesn't want."""
    present = existing(found.all("StatefulSet", BROKER), found.all("Pod", BROKER))
    return frozenset(broker for broker, _ in present) - cluster.broker_ids


def ordinal(pod: Object) -> int:
    """The ordinal at the end of a broker pod's name, which is the broker's id."""
    return int(pod["metadata"]["name"].rpartition("-")[2])
