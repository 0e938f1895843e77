"""Brings a cluster to what its resource says: one reconcile is a row of small steps, each level-triggered.

The order, and why: (1) what pods need before they start (Services, files); (2) etcd, without which a broker can't
start; (3) volumes, before the StatefulSets that name them; (4) the StatefulSets; (5) what the brokers say, from which
follow the budget for evictions, which must be there before (6) the one pod that may be restarted; (7) settings that
change while brokers run. Whatever stops a step is in the status, and the next reconcile begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ottla.operator.brokers import BrokerPages
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.found import Found
from ottla.operator.kafka import KafkaAdmin
from ottla.operator.kube import Kube
from ottla.operator.plan import broker_pods, disruption, names, services
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.cluster_status import Findings, cluster_status, refused
from ottla.operator.plan.observed import addresses, broker_pod, broker_sets, is_current, versions
from ottla.operator.plan.roll import Pod, decide
from ottla.operator.queue import Key, Result, Retry
from ottla.operator.scaling import noted, scale
from ottla.operator.settings import apply_settings
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, Pool, SpecError, parse_cluster
from ottla.operator.status import Condition
from ottla.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

Object = dict[str, Any]

SOON_S = 3.0
QUIET_S = 30.0  # what brokers say makes no event: so often they are asked whether a pod may be evicted


@dataclass
class _Visit:
    """One reconcile of one cluster."""

    resource: Object
    cluster: Cluster
    found: Found
    findings: Findings
    now: datetime
    busy: bool = False  # look again soon


class ClusterReconciler:
    """Reconciles Clusters."""

    def __init__(
        self,
        kube: Kube,
        pages: BrokerPages,
        etcd: EtcdKeeper,
        defaults: Defaults,
        *,
        topics_held: Callable[[Key], Condition | None] = lambda _: None,
        read: Callable[[Key, str], None] = lambda key, version: None,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`topics_held`: what the reconciler of Topics has to say in the Cluster's status; `read` is told each version
        of a resource that was read."""
        self._kube = kube
        self._pages = pages
        self._etcd = etcd
        self._defaults = defaults
        self._topics_held = topics_held
        self._read = read
        self._utc = utc
        self._admins: dict[Key, KafkaAdmin] = {}

    def close(self) -> None:
        """Ends all connections to brokers."""
        for key in list(self._admins):
            self._forget(key)

    async def reconcile(self, key: Key) -> Result:
        """One step nearer, and the status that says where it stands."""
        resource = await self._kube.get("Cluster", *key)
        if resource is None or "deletionTimestamp" in resource["metadata"]:
            self._forget(key)  # what it owns goes with it, by its owner references: nothing here has to be alive
            return Result(gone=True)
        self._read(key, resource["metadata"]["resourceVersion"])
        now = self._utc()
        try:
            cluster = parse_cluster(resource, self._defaults)
        except SpecError as error:
            await self._write(resource, refused(resource, str(error), now))
            return Result()
        found = await Found.look(self._kube, cluster)
        findings = Findings(topics_held=self._topics_held(key), scaling=noted(cluster, resource.get("status") or {}))
        visit = _Visit(resource, cluster, found, findings, now)
        try:
            await self._steps(key, visit)
        except Retry as error:
            visit.findings.failure = str(error)
            raise
        finally:
            await self._write(resource, cluster_status(cluster, visit.findings, resource.get("status") or {}, now))
        return Result(SOON_S if visit.busy else QUIET_S)

    async def _steps(self, key: Key, visit: _Visit) -> None:
        cluster, found = visit.cluster, visit.found
        if cluster.paused:
            await self._look_at_brokers(visit)
            return
        await self._prepare(visit)
        if not await self._keep_etcd(visit):
            visit.busy = True
            return
        for pool in cluster.pools:
            wanted = broker_pods.broker_set(cluster, pool, max(pool.replicas, _there(found, cluster, pool)))
            made, trouble = await found.apply_set(wanted)
            visit.busy |= not made
            visit.findings.storage_waits_for = visit.findings.storage_waits_for or trouble
        if cluster.controllers.replicas:
            await found.apply(broker_pods.controller_set(cluster))
            await found.apply(disruption.controllers(cluster))
        await self._look_at_brokers(visit)
        leaving = self._leaving(visit)
        await self._restart_one(visit, leaving)
        if any(pod.ready for pod in visit.findings.pods):
            admin = self._admin(key, cluster)
            visit.findings.config_waits_for = await apply_settings(admin, cluster)
            await self._scale(visit, admin, leaving)

    async def _prepare(self, visit: _Visit) -> None:
        """What pods need before they start."""
        cluster, found = visit.cluster, visit.found
        visit.findings.bootstrap = services.bootstrap_servers(cluster)
        await found.apply(services.headless(cluster))
        await found.apply(services.bootstrap(cluster))
        await found.apply(broker_pods.config_map(cluster))
        await found.apply(services.client_config(cluster, {}))

    async def _keep_etcd(self, visit: _Visit) -> bool:
        """Whether brokers can be started."""
        if not isinstance(visit.cluster.metadata, Etcd):
            return True

        async def tell(reason: str, message: str) -> None:
            await self._tell(visit, reason, message)

        formed, waits_for = await self._etcd.keep(visit.cluster, visit.cluster.metadata, visit.found, tell)
        visit.findings.metadata_waits_for = waits_for
        visit.busy |= bool(waits_for)
        return formed

    async def _look_at_brokers(self, visit: _Visit) -> None:
        """The pods, and what the brokers in them say."""
        cluster, found = visit.cluster, visit.found
        pods = {_ordinal(pod): pod for pod in found.all("Pod", BROKER)}
        reports = await self._pages.reports(addresses(pods))
        seen: list[Pod] = []
        for pool in cluster.pools:
            name = names.broker_set(cluster, pool)
            stateful_set = found.get("StatefulSet", name)
            for broker in _ids(pool, name, pods):
                pod = pods.get(broker)
                seen.append(broker_pod(broker, f"{name}-{broker}", stateful_set, pod, reports.get(broker), visit.now))
            visit.busy |= stateful_set is not None and not is_current(stateful_set)
        visit.findings.pods = seen
        visit.findings.version = versions(pods.values())

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
            raise Retry(f"replicas can't be moved: {error.message or error.code.name}") from error
        if scaling.reason and scaling.reason != before.reason:
            await self._tell(visit, "MovingReplicas", scaling.reason)
        visit.busy |= bool(leaving or scaling.reason or scaling.waits_for)
        if leaving and scaling.drained:
            await self._shrink(visit, leaving)

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
            elif pool is None:
                await self._tell(visit, "ScalingDown", f"{name} is deleted: its pool isn't wanted any more")
                await self._kube.delete("StatefulSet", cluster.namespace, name, uid=item["metadata"]["uid"])

    async def _restart_one(self, visit: _Visit, leaving: frozenset[int]) -> None:
        """The budget for evictions, and the pod whose turn it is."""
        cluster, findings = visit.cluster, visit.findings
        window_open = not cluster.windows or any(window.open_at(visit.now) for window in cluster.windows)
        decision = findings.decision = decide(findings.pods, window_open=window_open, held=leaving)
        await visit.found.apply(disruption.brokers(cluster, evictable=decision.evictable))
        visit.busy |= decision.rolling or not decision.evictable
        if (restart := decision.restart) is not None:
            await self._tell(visit, restart.reason, restart.message)
            await self._kube.delete("Pod", cluster.namespace, restart.pod.name, uid=restart.pod.uid)

    # ---- what is told

    async def _tell(self, visit: _Visit, reason: str, message: str) -> None:
        logger.info("cluster %s/%s: %s: %s", visit.cluster.namespace, visit.cluster.name, reason, message)
        await self._kube.event(visit.resource, reason, message, visit.now)

    async def _write(self, resource: Object, status: Object) -> None:
        """Only on a difference: a status that is written for nothing would make the next event."""
        if status != (resource.get("status") or {}):
            await self._kube.write_status(resource, status)

    # ---- connections

    def _admin(self, key: Key, cluster: Cluster) -> KafkaAdmin:
        bootstrap = services.bootstrap_servers(cluster)[cluster.internal.name]
        admin = self._admins.get(key)
        if admin is None or admin.bootstrap != bootstrap:
            self._forget(key)
            admin = self._admins[key] = KafkaAdmin(bootstrap)
        return admin

    def _forget(self, key: Key) -> None:
        admin = self._admins.pop(key, None)
        if admin is not None:
            admin.close()


def _ordinal(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _there(found: Found, cluster: Cluster, pool: Pool) -> int:
    """How many brokers a pool has, those that are to go included: they stay until nothing is left on them."""
    name = names.broker_set(cluster, pool)
    ends = [ids.stop for ids in broker_sets(filter(None, [found.get("StatefulSet", name)])).values()]
    ends += [
        _ordinal(pod) + 1 for pod in found.all("Pod", BROKER) if pod["metadata"]["name"].rpartition("-")[0] == name
    ]
    return max(ends, default=pool.first_id) - pool.first_id


def _ids(pool: Pool, name: str, pods: dict[int, Object]) -> list[int]:
    """The ids that a pool wants, and those of pods that it still has."""
    present = {broker for broker, pod in pods.items() if pod["metadata"]["name"] == f"{name}-{broker}"}
    return sorted(present | set(pool.ids))
