"""Runs the etcd of a cluster: it is formed once, and members that lost their data are replaced.

Each public method that takes a `Visit` is a part of a Cluster's reconcile. The list of members changes one step at a
time. `plan/etcd_members.py` decides each step from the present answers of etcd and Kubernetes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

from ottla.net.names import Address
from ottla.operator.certificates import Identity
from ottla.operator.etcd_certificates import certified
from ottla.operator.etcd_client import EtcdClient, EtcdUnreachable
from ottla.operator.found import Found
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, Ref, going
from ottla.operator.parts import NotYet
from ottla.operator.plan import etcd_pods, names
from ottla.operator.plan.broker_file import ETCD_PORT
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.plan.etcd_members import (
    Add,
    Member,
    Remove,
    Seen,
    StartNow,
    left_behind,
    next_step,
    replicas,
    start_rules,
)
from ottla.operator.plan.etcd_upkeep import to_defragment, too_full
from ottla.operator.plan.lost import waits_for_its_volume
from ottla.operator.plan.observed import address, is_current, outdated, stuck
from ottla.operator.plan.observed import etcd_pods as seen_pods
from ottla.operator.plan.roll import Decision, Pod, Restart
from ottla.operator.plan.snapshots import last_snapshot, late
from ottla.operator.plan.storage import Storage
from ottla.operator.queue import Tell
from ottla.operator.restarts import restart_chosen
from ottla.operator.spec.cluster import Cluster, Etcd
from ottla.operator.visit import Visit, ordinal
from ottla.operator.volumes import begin_anew

logger = logging.getLogger(__name__)

UPKEEP_S = 300.0


class EtcdKeeper:
    """Runs the etcd of any cluster."""

    def __init__(
        self,
        kube: Kube,
        client: Callable[[Identity | None], EtcdClient] = EtcdClient,
        clock: Callable[[], float] = monotonic,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`client` makes an etcd client from an identity for TLS, or from None if etcd has no TLS."""
        self._kube = kube
        self._make_client = client
        self._clock = clock
        self._utc = utc
        self._clients: dict[Ref, tuple[str, EtcdClient]] = {}  # Cluster → its certificates' digest, the client
        self._next_upkeep: dict[Ref, float] = {}

    async def close(self) -> None:
        """Ends all connections."""
        for _, client in self._clients.values():
            await client.close()

    async def forget(self, cluster: Ref) -> None:
        """Ends the connection to the etcd of a cluster that is gone: another cluster may get its name."""
        self._next_upkeep.pop(cluster, None)
        if (known := self._clients.pop(cluster, None)) is not None:
            await known[1].close()

    async def certify(self, visit: Visit, etcd: Etcd) -> None:
        """Makes and renews the certificates of members and clients, which pods mount. `visit.cluster` gets digests of
        the certificates that pods read at their start."""
        key = visit.cluster.ref
        etcd = _as_formed(visit.cluster, etcd, visit.found)
        visit.cluster = replace(visit.cluster, metadata=etcd)
        if not etcd.tls:
            if key not in self._clients:
                self._clients[key] = ("", self._make_client(None))
            return
        visit.cluster, identity = await certified(self._kube, visit.cluster, etcd, visit.found, visit.tell, self._utc())
        before = self._clients.get(key)
        if before is None or before[0] != visit.cluster.certificates:
            self._clients[key] = (visit.cluster.certificates, self._make_client(identity))
            if before is not None:
                await before[1].close()

    def _client(self, cluster: Cluster) -> EtcdClient:
        return self._clients[cluster.ref][1]

    async def look(self, visit: Visit, etcd: Etcd) -> None:
        """Notes how many members' pods are ready. A pod is ready only while its member reaches a majority."""
        pods = visit.found.all("Pod", etcd_pods.ETCD)
        answer = sum(pod.ready for pod in seen_pods(pods))
        troubles = [f"{pod['metadata']['name']}: {why}" for pod in pods if (why := stuck(pod))]
        waits_for = "" if answer >= etcd.members else f"{answer} of {etcd.members} members answer"
        if waits_for and troubles:
            waits_for += f" ({troubles[0]})"
        visit.findings.metadata_serves = answer > etcd.members // 2
        visit.findings.metadata_waits_for = waits_for
        visit.busy |= bool(waits_for)

    async def configure(self, visit: Visit, etcd: Etcd) -> None:
        """Asks etcd for its list of members, and applies the ConfigMap that says what a member may do at its start."""
        cluster, found = visit.cluster, visit.found
        members = visit.members = await self._members(cluster, found.all("Pod", etcd_pods.ETCD))
        formed = self.formed(visit)
        present = found.get("ConfigMap", names.etcd_set(cluster))
        if members is None and formed and present is not None:
            rules = {name: value for name, value in (present.get("data") or {}).items() if name != "start.sh"}
        else:
            rules = start_rules(cluster, etcd, members, formed=formed)
        await found.apply(etcd_pods.config_map(cluster, rules))

    async def keep_set(self, visit: Visit, etcd: Etcd) -> None:
        """Applies the StatefulSet: a member keeps its pod until it was removed from etcd's list of members."""
        cluster, found = visit.cluster, visit.found
        present = found.get("StatefulSet", names.etcd_set(cluster))
        there = 0 if present is None else present["spec"].get("replicas", 0)
        count = replicas(cluster, etcd, visit.members, max(there, len(found.all("Pod", etcd_pods.ETCD))))
        _, trouble = await found.apply_set(etcd_pods.member_set(cluster, etcd, count))
        if trouble:
            visit.findings.storage_is(Storage("Refused", trouble))

    async def form(self, visit: Visit, etcd: Etcd) -> None:
        """Raises NotYet while etcd was never formed: until then no broker can start."""
        if not self.formed(visit):
            visit.busy = True
            raise NotYet("etcd to be formed")

    async def mend(self, visit: Visit, etcd: Etcd) -> None:
        """Makes at most one change of etcd's list of members, and replaces the lost volume of one member."""
        if visit.members is None:
            return
        pods = visit.found.all("Pod", etcd_pods.ETCD)
        seen = seen_pods(pods)
        ready = {pod.name for pod in seen if pod.ready}
        answering = [_endpoint(pod) for pod in pods if pod["metadata"]["name"] in ready]
        await self._step(visit, etcd, visit.members, seen, answering)
        await self._replace_lost(visit, etcd)

    async def tidy(self, visit: Visit, etcd: Etcd) -> None:
        """Deletes the volumes of members that were removed, once their pods are gone."""
        cluster, found = visit.cluster, visit.found
        claims = {item["metadata"]["name"]: item for item in found.all("PersistentVolumeClaim", etcd_pods.ETCD)}
        if not (left := left_behind(cluster, etcd, visit.members, claims)):
            return
        await found.look_again()
        pods = {pod["metadata"]["name"] for pod in found.all("Pod", etcd_pods.ETCD)}
        for claim in left:
            if claim.removeprefix("data-") not in pods:
                await visit.tell("EtcdVolumeDeleted", f"volume {claim} was of a member that isn't wanted any more")
                uid = claims[claim]["metadata"]["uid"]
                await self._kube.delete("PersistentVolumeClaim", cluster.namespace, claim, uid=uid)

    async def roll(self, visit: Visit, etcd: Etcd) -> None:
        """Restarts an outdated member that is stuck or, while all members answer, any outdated one. Just before the
        restart, a second decision has to choose the same member."""
        decision = await self._decide(visit, etcd)
        decision = await restart_chosen(self._kube, visit, decision, lambda: self._decide(visit, etcd))
        visit.findings.etcd_roll = decision
        visit.rolls(decision)

    async def _decide(self, visit: Visit, etcd: Etcd) -> Decision:
        """Which member is to be restarted now, or what the restart waits for."""
        cluster, found = visit.cluster, visit.found
        stateful_set = found.get("StatefulSet", names.etcd_set(cluster))
        if stateful_set is None or not is_current(stateful_set):
            return Decision()
        pods = found.all("Pod", etcd_pods.ETCD)
        ready = {pod.name for pod in seen_pods(pods) if pod.ready}
        old = {
            pod["metadata"]["name"]: (pod, why)
            for pod in pods
            if not going(pod) and (why := outdated(stateful_set, pod))
        }

        def decision(name: str = "", waits_for: str = "") -> Decision:
            turn = None
            if name:
                pod, why = old[name]
                seen = Pod(ordinal(pod), name, uid=pod["metadata"]["uid"], outdated=why)
                turn = Restart(seen, "RollingRestart", f"{name} is restarted: {why}")
            updated, total = len(pods) - len(old), len(pods)
            return Decision(turn, waits_for=waits_for, rolling=bool(old), updated=updated, total=total)

        if not old:
            return decision()
        first = min(old)
        if idle := [name for name in old if name not in ready and stuck(old[name][0])]:
            return decision(idle[0])
        if len(ready) < etcd.members:
            return decision(waits_for="all members to answer")
        if not visit.window_open:
            return decision(waits_for=f"the next maintenance window, to restart {first}")
        if hold := visit.waits_for_others(BROKER, CONTROLLER):
            return decision(waits_for=hold)
        leaders: list[str] = []
        for pod in pods:
            name = pod["metadata"]["name"]
            try:
                if (await self._client(cluster).status(_endpoint(pod))).leads:
                    leaders.append(name)
            except EtcdUnreachable:
                return decision(waits_for=f"{name} to answer")
        # etcd's leader is restarted last, because its stop causes an election.
        return decision(min(old, key=lambda name: (name in leaders, name)))

    async def look_at_snapshots(self, visit: Visit, etcd: Etcd) -> None:
        """Notes when the last snapshot was taken, and whether a snapshot is overdue."""
        if etcd.snapshots is not None:
            job = visit.found.get("CronJob", names.snapshots(visit.cluster))
            visit.findings.last_snapshot = last_snapshot(job)
            visit.findings.snapshots_wait_for = late(job, etcd.snapshots.schedule, visit.now)

    async def upkeep(self, visit: Visit, etcd: Etcd) -> None:
        """Defragments a member's database if much of it is free space, and then disarms the alarm of a full
        database."""
        if self.formed(visit) and not visit.findings.metadata_waits_for:
            visit.findings.metadata_full = await self._upkeep(visit.cluster, etcd, visit.found, visit.tell)

    async def _upkeep(self, cluster: Cluster, etcd: Etcd, found: Found, tell: Tell) -> str:
        """One step of the upkeep. Returns what a person has to do if the database is full of used pages; else empty."""
        key = cluster.ref
        if self._clock() < self._next_upkeep.get(key, 0.0):
            return ""
        pods = found.all("Pod", etcd_pods.ETCD)
        ready = {pod.name for pod in seen_pods(pods) if pod.ready}
        addresses = {pod["metadata"]["name"]: _endpoint(pod) for pod in pods if pod["metadata"]["name"] in ready}
        if len(addresses) < etcd.members:
            return ""
        client = self._client(cluster)
        try:
            everywhere = list(addresses.values())
            alarms = [alarm for alarm in await client.alarms(everywhere) if alarm.get("alarm") == "NOSPACE"]
            statuses = {name: await client.status(where) for name, where in addresses.items()}
            if alarms:
                await client.compact(everywhere, max(status.revision for status in statuses.values()))
                statuses = {name: await client.status(where) for name, where in addresses.items()}
            name = to_defragment(statuses, etcd.members, full=bool(alarms))
            if name is not None:
                await tell("EtcdDefragmented", f"the database of {name} is defragmented")
                await client.defragment(addresses[name])
            elif not alarms:
                self._next_upkeep[key] = self._clock() + UPKEEP_S
            elif trouble := too_full(statuses, etcd_pods.quota_bytes(etcd.volume)):
                return trouble
            else:
                for alarm in alarms:
                    await client.disarm(everywhere, alarm)
                await tell("EtcdAlarmDisarmed", "etcd takes writes again: there is room below its quota")
        except EtcdUnreachable as error:
            logger.warning("etcd of %s: no upkeep: %s", cluster.ref, error)
        return ""

    async def _members(self, cluster: Cluster, pods: list[Object]) -> list[Member] | None:
        """etcd's list of members; None where no majority answers."""
        addresses = [_endpoint(pod) for pod in pods if address(pod)]
        if not addresses:
            return None
        try:
            return await self._client(cluster).members(addresses)
        except EtcdUnreachable:
            return None

    def formed(self, visit: Visit) -> bool:
        """Whether etcd was ever formed: it has members, its ConfigMap says so, or there are brokers.

        If etcd is lost for good, a person scales the brokers to 0 and deletes the ConfigMap, to form a new etcd.
        """
        found = visit.found
        rules = found.get("ConfigMap", names.etcd_set(visit.cluster))
        noted = rules is not None and (rules.get("data") or {}).get("state") == "existing"
        wanted = any(item["spec"].get("replicas") for item in found.all("StatefulSet", BROKER))
        return bool(visit.members) or noted or wanted or bool(found.all("Pod", BROKER))

    async def _step(
        self, visit: Visit, etcd: Etcd, members: list[Member], seen: list[Seen], addresses: list[str]
    ) -> None:
        cluster, tell = visit.cluster, visit.tell
        step = next_step(cluster, etcd, members, seen)
        if isinstance(step, Remove):
            await tell("EtcdMemberRemoved", step.why)
            await self._client(cluster).remove(addresses, step.member)
        elif isinstance(step, Add):
            await tell("EtcdMemberAdded", f"{step.name} joins etcd")
            await self._client(cluster).add(addresses, step.peer_url)
        elif isinstance(step, StartNow):
            pod = visit.found.get("Pod", step.name)
            assert pod is not None
            version = pod["metadata"]["resourceVersion"]  # a pod that has changed isn't deleted
            if await self._kube.delete("Pod", cluster.namespace, step.name, uid=step.uid, version=version):
                await tell("EtcdMemberRestarted", f"{step.name} may start now: it is in etcd's list of members")

    async def _replace_lost(self, visit: Visit, etcd: Etcd) -> None:
        """Replaces a member's volume that was lost with its node, while the ready members are a majority."""

        def safe() -> bool:
            seen = seen_pods(visit.found.all("Pod", etcd_pods.ETCD))
            return sum(pod.ready for pod in seen) > etcd.members // 2

        after_s = etcd.lost_after_s
        if after_s is None or not safe():
            return
        for pod in visit.found.all("Pod", etcd_pods.ETCD):
            if waits_for_its_volume(pod, after_s, visit.now):
                await begin_anew(self._kube, visit, pod, after_s, safe)
                return


def _as_formed(cluster: Cluster, etcd: Etcd, found: Found) -> Etcd:
    """The spec, with the scheme (http or https) that members have used among themselves since etcd was formed.

    The scheme never changes. If it did, members that are restarted one after the other couldn't reach each other.
    """
    rules = found.get("ConfigMap", names.etcd_set(cluster))
    plain = rules is not None and "=http://" in (rules.get("data") or {}).get("initial-cluster", "")
    return replace(etcd, plain_peers=plain)


def _endpoint(pod: Object) -> str:
    """The host:port at which clients reach a member."""
    return str(Address(address(pod), ETCD_PORT))
