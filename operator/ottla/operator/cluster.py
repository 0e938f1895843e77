"""Brings a cluster to what its resource says: one reconcile is a row of small steps, each level-triggered.

The order, and why: (1) what pods need before they start (Services, files); (2) etcd, without which a broker can't
start; (3) volumes, before the StatefulSets that name them; (4) the StatefulSets; (5) what the brokers say, from which
follow the budget for evictions, which must be there before (6) the one pod that may be restarted; (7) settings that
change while brokers run. Whatever stops a step is in the status, and the next reconcile begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ottla.operator.brokers import BrokerPages
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.etcd_secrets import with_secrets
from ottla.operator.exposure import Exposure
from ottla.operator.followed import followed_spec, last_followed
from ottla.operator.found import Found
from ottla.operator.kafka import KafkaAdmin, KafkaAdmins, Unreachable, said
from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object, Ref, condition, going, ref_of
from ottla.operator.plan import broker_pods, disruption, names, network, services
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.cluster_status import Findings, cluster_status, refused
from ottla.operator.plan.external import noted_ports
from ottla.operator.plan.lost import only_there, waits_for_its_volume
from ottla.operator.plan.observed import addresses, broker_names, broker_pod, broker_sets, is_current, versions
from ottla.operator.plan.roll import Pod, decide
from ottla.operator.plan.snapshots import last_snapshot, late
from ottla.operator.plan.storage import claims_of
from ottla.operator.queue import Result, Retry, Tell
from ottla.operator.racks import tell_racks
from ottla.operator.scaling import noted, scale
from ottla.operator.settings import apply_settings
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, Pool, SpecError, parse_cluster
from ottla.operator.status import Condition
from ottla.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

SOON_S = 3.0
WARNED = ("InvalidSpec", "NotApplied", "ConfigNotApplied")  # reasons of Ready that somebody has to look at
QUIET_S = 30.0  # what brokers say makes no event: so often they are asked whether a pod may be evicted


@dataclass
class _Visit:
    """One reconcile of one cluster."""

    resource: Object
    cluster: Cluster
    spec: Object  # that the cluster was read from
    found: Found
    findings: Findings
    now: datetime
    busy: bool = False  # look again soon
    current: bool = True  # which pods are outdated is known
    addresses: dict[int, dict[str, str]] = field(default_factory=dict)  # broker → external listener → host:port
    wanted: set[tuple[str, str]] = field(default_factory=set)  # kinds and names

    @property
    def window_open(self) -> bool:
        """Whether pods may be restarted for changes now."""
        return not self.cluster.windows or any(window.open_at(self.now) for window in self.cluster.windows)

    def want(self, *objects: Object) -> None:
        """What of its kind isn't named here by the end of a reconcile goes."""
        self.wanted.update((item["kind"], item["metadata"]["name"]) for item in objects)


class ClusterReconciler:
    """Reconciles Clusters."""

    def __init__(
        self,
        kube: Kube,
        pages: BrokerPages,
        etcd: EtcdKeeper,
        defaults: Defaults,
        *,
        topics_held: Callable[[Ref], Condition | None] = lambda _: None,
        ours: Callable[[Ref], bool] = lambda _: True,
        read: Callable[[Ref, str], None] = lambda key, version: None,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`topics_held`: what the reconciler of Topics has to say in the Cluster's status; `ours`: whether a Cluster is
        this operator's to look after; `read` is told each version of a resource that was read."""
        self._ours = ours
        self._kube = kube
        self._pages = pages
        self._etcd = etcd
        self._exposure = Exposure(kube)
        self._defaults = defaults
        self._topics_held = topics_held
        self._read = read
        self._utc = utc
        self._admins = KafkaAdmins()
        self.conditions: dict[Ref, dict[str, bool]] = {}  # of each Cluster, as its status has them

    def close(self) -> None:
        """Ends all connections to brokers."""
        self._admins.close()

    async def reconcile(self, key: Ref) -> Result:
        """One step nearer, and the status that says where it stands."""
        resource = await self._kube.get("Cluster", *key) if self._ours(key) else None
        if resource is None or going(resource):
            await self._etcd.forget(key)
            self._read(key, "")
            self.conditions.pop(key, None)
            self._admins.forget(key)  # what it owns goes with it, by its owner references: nothing here has to be alive
            return Result(gone=True)
        self._read(key, resource["metadata"]["resourceVersion"])
        now = self._utc()
        cluster, spec, refusal = await self._meant(resource)
        if cluster is None:
            await self._write(resource, refused(resource, refusal, now))
            return Result()
        found = await Found.look(self._kube, cluster)
        scaling = noted(cluster, resource.get("status") or {})
        ports = noted_ports(resource.get("status") or {})
        findings = Findings(refusal=refusal, topics_held=self._topics_held(key), scaling=scaling, node_ports=ports)
        visit = _Visit(resource, cluster, spec, found, findings, now)
        try:
            await self._steps(key, visit)
        except Retry as error:
            visit.findings.failure = str(error)
            if not visit.findings.pods:
                await self._look_at_brokers(visit)  # the status goes on counting
            raise
        finally:
            for reason, message in found.told():
                await self._tell(visit, reason, message)
            await self._write(resource, cluster_status(cluster, visit.findings, resource.get("status") or {}, now))
        return Result(SOON_S if visit.busy else QUIET_S)

    async def _meant(self, resource: Object) -> tuple[Cluster | None, Object, str]:
        """The Cluster and its spec, or, where that can't be followed, the one before; and why it can't.

        So a mistake in a spec doesn't keep what is broken from being mended.
        """
        spec = resource.get("spec") or {}
        try:
            return parse_cluster(resource, self._defaults), spec, ""
        except SpecError as error:
            before = None if spec.get("paused") else await last_followed(self._kube, resource, self._defaults)
            return (*before, str(error)) if before is not None else (None, spec, str(error))

    async def _steps(self, key: Ref, visit: _Visit) -> None:
        if visit.cluster.paused:
            await self._look_at_brokers(visit)
            return
        leaving = self._leaving(visit)
        visit.cluster = replace(visit.cluster, leaving=len(leaving))
        await self._certify(visit)
        await self._prepare(visit)
        if not await self._keep_etcd(visit):
            visit.busy = True
            return
        cluster, found = visit.cluster, visit.found
        for pool in cluster.pools:
            wanted = broker_pods.broker_set(cluster, pool, max(pool.replicas, _there(found, cluster, pool)))
            made, trouble = await found.apply_set(wanted)
            visit.busy |= not made
            visit.findings.storage_waits_for = visit.findings.storage_waits_for or trouble
        if cluster.controllers.replicas:
            controllers = broker_pods.controller_set(cluster, window_open=visit.window_open)
            for each in (controllers, disruption.controllers(cluster)):
                await found.apply(each)
                visit.want(each)
        visit.findings.racks_wait_for = await tell_racks(self._kube, cluster, found)
        await self._look_at_brokers(visit)
        await self._restart_one(visit, leaving)
        await self._retire_controllers(visit)
        if any(pod.ready for pod in visit.findings.pods):
            bootstrap = services.bootstrap_servers(cluster)[cluster.internal.name]
            await self._administer(visit, self._admins.get(key, bootstrap), leaving)
        await found.prune(visit.wanted)

    async def _administer(self, visit: _Visit, admin: KafkaAdmin, leaving: frozenset[int]) -> None:
        """What is asked of the brokers. One that stops closes its connections: that is no failure of the cluster."""
        try:
            visit.findings.cluster_id = await admin.cluster_id()
            visit.findings.config_waits_for = await apply_settings(admin, visit.cluster, self._teller(visit))
            await self._expose(visit)
            await self._scale(visit, admin, leaving)
            await self._replace_lost(visit, admin)
        except Unreachable as error:
            visit.findings.brokers_wait_for = str(error)
            visit.busy = True

    async def _prepare(self, visit: _Visit) -> None:
        """What pods need before they start, and what tells clients where they are."""
        cluster, found = visit.cluster, visit.found
        pods = broker_names(cluster, found.all("StatefulSet", BROKER), found.all("Pod", BROKER))
        outside, visit.findings.node_ports = await self._exposure.services(
            cluster, found, pods, visit.findings.node_ports
        )
        visit.addresses = await self._exposure.addresses(
            cluster, found, {_ordinal(pod): pod for pod in found.all("Pod", BROKER)}
        )
        staying = {broker: each for broker, each in visit.addresses.items() if broker in cluster.broker_ids}
        servers = self._exposure.bootstrap(cluster, found, staying)
        visit.findings.bootstrap = {**services.bootstrap_servers(cluster), **servers}
        wanted = [
            followed_spec(cluster, visit.spec),
            services.brokers(cluster),
            services.bootstrap(cluster),
            broker_pods.config_map(cluster),
            services.client_config(cluster, servers),
            *(network.policies(cluster, cluster.network_rules) if cluster.network_rules is not None else []),
        ]
        for each in wanted:
            await found.apply(each)
        visit.want(*wanted, *outside)

    async def _expose(self, visit: _Visit) -> None:
        """Tells brokers their addresses outside; those that come later are told by the watch of Services."""
        pods = {_ordinal(pod): pod for pod in visit.found.all("Pod", BROKER)}
        visit.findings.listeners_wait_for = await self._exposure.tell(pods, visit.addresses, self._teller(visit))

    async def _certify(self, visit: _Visit) -> None:
        """What etcd and the brokers prove who they are with: pods mount it."""
        if isinstance(etcd := visit.cluster.metadata, Etcd):
            visit.cluster = await self._etcd.certify(visit.cluster, etcd, visit.found, self._teller(visit))
        else:
            visit.cluster = await with_secrets(self._kube, visit.cluster, etcd)

    async def _keep_etcd(self, visit: _Visit) -> bool:
        """Whether brokers can be started."""
        cluster, etcd, tell = visit.cluster, visit.cluster.metadata, self._teller(visit)
        if not isinstance(etcd, Etcd):
            return True
        kept = await self._etcd.keep(cluster, etcd, visit.found, tell, window_open=visit.window_open)
        visit.want(*self._etcd.wanted(cluster, etcd))
        visit.findings.metadata_serves = kept.serves
        visit.findings.metadata_waits_for = kept.waits_for
        visit.findings.metadata_roll_waits_for = kept.roll_waits_for
        visit.findings.storage_waits_for = kept.storage_waits_for
        if etcd.snapshots is not None:
            job = visit.found.get("CronJob", names.snapshots(cluster))
            visit.findings.last_snapshot = last_snapshot(job)
            visit.findings.snapshots_wait_for = late(job, etcd.snapshots.schedule, visit.now)
        visit.busy |= bool(kept.waits_for)
        if kept.formed and not kept.waits_for:
            visit.findings.metadata_full = await self._etcd.upkeep(cluster, etcd, visit.found, tell)
        return kept.formed

    async def _look_at_brokers(self, visit: _Visit) -> None:
        """The pods, and what the brokers in them say."""
        cluster, found = visit.cluster, visit.found
        pods = {_ordinal(pod): pod for pod in found.all("Pod", BROKER)}
        reports = await self._pages.reports(addresses(pods))
        claims = {claim["metadata"]["name"]: claim for claim in found.all("PersistentVolumeClaim", BROKER)}
        seen: list[Pod] = []
        for pool in cluster.pools:
            name = names.broker_set(cluster, pool)
            stateful_set = found.get("StatefulSet", name)
            for broker in _ids(pool, name, pods):
                pod = pods.get(broker)
                report = reports.get(broker)
                seen.append(broker_pod(broker, f"{name}-{broker}", stateful_set, pod, report, claims, visit.now))
            visit.current &= stateful_set is not None and is_current(stateful_set)
        for broker in sorted(pods.keys() - {pod.id for pod in seen}):  # of a pool that isn't in the spec any more
            name = pods[broker]["metadata"]["name"]
            stateful_set = found.get("StatefulSet", name.rpartition("-")[0])
            seen.append(broker_pod(broker, name, stateful_set, pods[broker], reports.get(broker), claims, visit.now))
        visit.findings.pods = seen
        visit.findings.version = versions(pods.values())

    async def _retire_controllers(self, visit: _Visit) -> None:
        """Controllers with pods of their own go once every broker's process stands for controller."""
        cluster, decision = visit.cluster, visit.findings.decision
        name = names.controller_set(cluster)
        if cluster.controllers.replicas or decision is None or decision.rolling or not decision.evictable:
            return
        if visit.found.get("StatefulSet", name) is not None:
            await self._tell(visit, "ControllersRetired", f"{name} is deleted: every broker stands for controller")
            await self._kube.delete("StatefulSet", cluster.namespace, name)

    def _leaving(self, visit: _Visit) -> frozenset[int]:
        """The brokers that are there and aren't wanted."""
        sets = broker_sets(visit.found.all("StatefulSet", BROKER)).values()
        present = {broker for ids in sets for broker in ids}
        present |= {_ordinal(pod) for pod in visit.found.all("Pod", BROKER)}
        return frozenset(present - visit.cluster.broker_ids)

    async def _scale(self, visit: _Visit, admin: KafkaAdmin, leaving: frozenset[int]) -> None:
        """Drains, then takes pods away; or gives new brokers their share."""
        cluster, findings = visit.cluster, visit.findings
        before = findings.scaling
        try:
            scaling = findings.scaling = await scale(admin, cluster, before, leaving)
        except KafkaError as error:
            raise Retry(f"replicas can't be moved: {said(error)}") from error
        if stay := (before.draining - scaling.draining) & cluster.broker_ids:
            await self._tell(visit, "DrainEnded", f"broker {', '.join(map(str, sorted(stay)))} stays after all")
        if scaling.reason and scaling.reason != before.reason:
            await self._tell(visit, "MovingReplicas", scaling.reason)
        visit.busy |= bool(leaving or scaling.reason or scaling.waits_for)
        if leaving and scaling.drained:
            await self._shrink(visit, leaving)

    async def _replace_lost(self, visit: _Visit, admin: KafkaAdmin) -> None:
        """A broker whose volume is lost begins anew, one at a time, if others have all that it had."""
        cluster, after_s = visit.cluster, visit.cluster.lost_after_s
        lost = [
            pod
            for pod in visit.found.all("Pod", BROKER)
            if after_s is not None and waits_for_its_volume(pod, after_s, visit.now)
        ]
        if not lost:
            return
        pod, name = lost[0], lost[0]["metadata"]["name"]
        if left := only_there(await admin.look(internal=True), _ordinal(pod)):
            visit.findings.storage_waits_for = f"the volume of {name} is lost, and partition {left[0]} is nowhere else"
            return
        await self._tell(visit, "LostVolumeReplaced", f"{name} begins anew: its volume's node is gone")
        for claim in claims_of(pod):
            await self._kube.delete("PersistentVolumeClaim", cluster.namespace, claim)
        await self._kube.delete("Pod", cluster.namespace, name, uid=pod["metadata"]["uid"])

    async def _shrink(self, visit: _Visit, leaving: frozenset[int]) -> None:
        """Takes the pods of drained brokers away; a pool that isn't in the spec any more goes with its last one."""
        cluster, found = visit.cluster, visit.found
        pools = {names.broker_set(cluster, pool): pool for pool in cluster.pools}
        for item in found.all("StatefulSet", BROKER):
            name = item["metadata"]["name"]
            pool, (ids,) = pools.get(name), broker_sets([item]).values()
            if pool is not None and len(ids) > pool.replicas:
                await self._tell(visit, "ScalingDown", f"{name} goes from {len(ids)} to {pool.replicas} brokers")
                await found.apply_set(broker_pods.broker_set(cluster, pool, pool.replicas))
            elif pool is None and not going(item):
                await self._tell(visit, "ScalingDown", f"{name} is deleted: its pool isn't wanted any more")
                uid = item["metadata"]["uid"]
                # It goes after its pods: without it they would be nobody's, and drained no longer while they run.
                await self._kube.delete("StatefulSet", cluster.namespace, name, uid=uid, propagation="Foreground")

    async def _restart_one(self, visit: _Visit, leaving: frozenset[int]) -> None:
        """The budget for evictions, and the pod whose turn it is."""
        cluster, findings = visit.cluster, visit.findings
        held = leaving & findings.scaling.draining  # one that can't go yet is rolled like any other
        decision = findings.decision = decide(findings.pods, window_open=visit.window_open, held=held)
        if not visit.current:
            waits_for = decision.waits_for or "Kubernetes to take note of the change"
            decision = findings.decision = replace(decision, restart=None, waits_for=waits_for, evictable=False)
        budget = disruption.brokers(cluster, evictable=decision.evictable)
        await visit.found.apply(budget)
        visit.want(budget)
        visit.busy |= decision.rolling or not decision.evictable
        if (restart := decision.restart) is not None:
            await self._tell(visit, restart.reason, restart.message)
            await self._kube.delete("Pod", cluster.namespace, restart.pod.name, uid=restart.pod.uid)

    # ---- what is told

    def _teller(self, visit: _Visit) -> Tell:
        async def tell(reason: str, message: str) -> None:
            await self._tell(visit, reason, message)

        return tell

    async def _tell(self, visit: _Visit, reason: str, message: str) -> None:
        logger.info("cluster %s: %s: %s", visit.cluster.ref, reason, message)
        await self._kube.event(visit.resource, reason, message, visit.now)

    async def _write(self, resource: Object, status: Object) -> None:
        """Only on a difference: a status that is written for nothing would make the next event."""
        self.conditions[ref_of(resource)] = {each["type"]: each["status"] == "True" for each in status["conditions"]}
        if status == (resource.get("status") or {}):
            return
        try:
            await self._kube.write_status(resource, status)
        except KubeError as error:
            if error.status != 404:  # it was deleted meanwhile
                raise
        said, before = (condition(each, "Ready") for each in (status, resource.get("status")))
        news = any(said[part] != before.get(part) for part in ("reason", "message"))
        if news and said["reason"] in WARNED:
            await self._kube.event(resource, said["reason"], said["message"], self._utc(), warning=True)


def _ordinal(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _there(found: Found, cluster: Cluster, pool: Pool) -> int:
    """How many brokers a pool has, those that are to go included: they stay until nothing is left on them."""
    name = names.broker_set(cluster, pool)
    if (present := found.get("StatefulSet", name)) is not None:
        return len(broker_sets([present])[name])
    # It is being made again around its pods.
    pods = [_ordinal(pod) for pod in found.all("Pod", BROKER) if pod["metadata"]["name"].rpartition("-")[0] == name]
    return max(pods, default=pool.first_id - 1) + 1 - pool.first_id


def _ids(pool: Pool, name: str, pods: dict[int, Object]) -> list[int]:
    """The ids that a pool wants, and those of pods that it still has."""
    present = {broker for broker, pod in pods.items() if pod["metadata"]["name"] == f"{name}-{broker}"}
    return sorted(present | set(pool.ids))
