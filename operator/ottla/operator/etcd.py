"""Keeps the etcd of a cluster as it is to be: formed once, its members there, replaced when they lost their data.

One step at a time, each decided by `plan/etcd_members.py` from what etcd and Kubernetes say now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import NamedTuple

from ottla.net.names import Address
from ottla.operator.certificates import Identity
from ottla.operator.etcd_certificates import certified
from ottla.operator.etcd_client import EtcdClient, EtcdUnreachable
from ottla.operator.found import Found
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, Ref, going
from ottla.operator.plan import disruption, etcd_pods, names
from ottla.operator.plan.broker_file import ETCD_PORT
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.etcd_members import (
    Add,
    Member,
    Remove,
    Restart,
    Seen,
    left_behind,
    next_step,
    replicas,
    start_rules,
)
from ottla.operator.plan.etcd_upkeep import to_defragment, too_full
from ottla.operator.plan.lost import waits_for_its_volume
from ottla.operator.plan.observed import address, is_current, outdated, stuck
from ottla.operator.plan.observed import etcd_pods as seen_pods
from ottla.operator.plan.snapshots import snapshot_objects
from ottla.operator.plan.storage import claims_of
from ottla.operator.queue import Tell
from ottla.operator.spec.cluster import Cluster, Etcd

logger = logging.getLogger(__name__)

UPKEEP_S = 300.0


class Kept(NamedTuple):
    """How an etcd is, after a look."""

    formed: bool  # brokers can be started on it
    serves: bool  # a majority answers
    waits_for: str  # until all members answer
    storage_waits_for: str  # what can't be done about a volume
    roll_waits_for: str  # what keeps an outdated member from being restarted


class EtcdKeeper:
    """Looks after the etcd of any cluster."""

    def __init__(
        self,
        kube: Kube,
        client: Callable[[Identity | None], EtcdClient] = EtcdClient,
        clock: Callable[[], float] = monotonic,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`client` makes one for an etcd that wants such an identity."""
        self._kube = kube
        self._make_client = client
        self._clock = clock
        self._utc = utc
        self._clients: dict[Ref, tuple[str, EtcdClient]] = {}  # with a digest of their certificates
        self._next_upkeep: dict[Ref, float] = {}

    async def close(self) -> None:
        """Ends all connections."""
        for _, client in self._clients.values():
            await client.close()

    async def forget(self, cluster: Ref) -> None:
        """Ends the connection to the etcd of a cluster that is gone: another one may come under its name."""
        self._next_upkeep.pop(cluster, None)
        if (known := self._clients.pop(cluster, None)) is not None:
            await known[1].close()

    async def certify(self, cluster: Cluster, etcd: Etcd, found: Found, tell: Tell) -> Cluster:
        """Makes and renews what clients and members prove who they are with; the Cluster, with digests of what they
        read."""
        key = cluster.ref
        if not etcd.tls:
            if key not in self._clients:
                self._clients[key] = ("", self._make_client(None))
            return cluster
        cluster, identity = await certified(self._kube, cluster, etcd, found, tell, self._utc())
        before = self._clients.get(key)
        if before is None or before[0] != cluster.certificates:
            self._clients[key] = (cluster.certificates, self._make_client(identity))
            if before is not None:
                await before[1].close()
        return cluster

    def _client(self, cluster: Cluster) -> EtcdClient:
        return self._clients[cluster.ref][1]

    async def keep(self, cluster: Cluster, etcd: Etcd, found: Found, tell: Tell, *, window_open: bool) -> Kept:
        """The next step. `window_open`: members may be restarted for changes."""
        etcd = _as_formed(cluster, etcd, found)
        cluster = replace(cluster, metadata=etcd)
        pods = found.all("Pod", etcd_pods.ETCD)
        seen = seen_pods(pods)
        members = await self._members(cluster, pods)
        formed = self._formed(cluster, found) or (members is not None and len(members) > 0)
        volume_trouble = await self._apply(cluster, etcd, found, members, formed)
        if members is not None:
            ready = {pod.name for pod in seen if pod.ready}
            answering = [_endpoint(pod) for pod in pods if pod["metadata"]["name"] in ready]
            await self._step(cluster, etcd, members, seen, answering, tell)
            await self._replace_lost(cluster, etcd, pods, ready, tell)
        await self._tidy(cluster, etcd, found, members, tell)
        roll_waits_for = await self._roll(cluster, etcd, found, pods, seen, tell, window_open=window_open)
        answer = sum(pod.ready for pod in seen)
        troubles = [f"{pod['metadata']['name']}: {why}" for pod in pods if (why := stuck(pod))]
        waits_for = "" if answer >= etcd.members else f"{answer} of {etcd.members} members answer"
        if waits_for and troubles:
            waits_for += f" ({troubles[0]})"
        return Kept(formed, answer > etcd.members // 2, waits_for, volume_trouble, roll_waits_for)

    def wanted(self, cluster: Cluster, etcd: Etcd) -> list[Object]:
        """What there is to be of it, as far as it has a name."""
        return [
            etcd_pods.config_map(cluster, {}),
            etcd_pods.member_service(cluster),
            disruption.etcd(cluster),
            *snapshot_objects(cluster, etcd),
        ]

    async def upkeep(self, cluster: Cluster, etcd: Etcd, found: Found, tell: Tell) -> str:
        """Makes a member's database smaller where that is worth it, and takes the quota's alarm back afterwards; what a
        person has to do where that doesn't help."""
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
                await tell("EtcdDefragmented", f"{name} gives back what its database doesn't use")
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
        """The list; None where no majority answers."""
        addresses = [_endpoint(pod) for pod in pods if address(pod)]
        if not addresses:
            return None
        try:
            return await self._client(cluster).members(addresses)
        except EtcdUnreachable:
            return None

    def _formed(self, cluster: Cluster, found: Found) -> bool:
        """Whether there was an etcd once: its own ConfigMap says so, or brokers run on it.

        Where it is lost for good, a person scales the brokers to nothing and deletes the ConfigMap, to begin anew.
        """
        rules = found.get("ConfigMap", names.etcd_set(cluster))
        noted = rules is not None and (rules.get("data") or {}).get("state") == "existing"
        wanted = any(item["spec"].get("replicas") for item in found.all("StatefulSet", BROKER))
        return noted or wanted or bool(found.all("Pod", BROKER))

    async def _apply(
        self, cluster: Cluster, etcd: Etcd, found: Found, members: list[Member] | None, formed: bool
    ) -> str:
        """What can't be done about a volume."""
        present = found.get("ConfigMap", names.etcd_set(cluster))
        if members is None and formed and present is not None:
            rules = {name: value for name, value in (present.get("data") or {}).items() if name != "start.sh"}
        else:
            rules = start_rules(cluster, etcd, members, formed=formed)
        await found.apply(etcd_pods.config_map(cluster, rules))
        await found.apply(etcd_pods.member_service(cluster))
        await found.apply(disruption.etcd(cluster))
        present_set = found.get("StatefulSet", names.etcd_set(cluster))
        there = 0 if present_set is None else present_set["spec"].get("replicas", 0)
        count = replicas(cluster, etcd, members, max(there, len(found.all("Pod", etcd_pods.ETCD))))
        for each in snapshot_objects(cluster, etcd):
            await found.apply(each)
        _, trouble = await found.apply_set(etcd_pods.member_set(cluster, etcd, count))
        return trouble

    async def _step(
        self,
        cluster: Cluster,
        etcd: Etcd,
        members: list[Member],
        seen: list[Seen],
        addresses: list[str],
        tell: Tell,
    ) -> None:
        step = next_step(cluster, etcd, members, seen)
        if isinstance(step, Remove):
            await tell("EtcdMemberRemoved", step.why)
            await self._client(cluster).remove(addresses, step.member)
        elif isinstance(step, Add):
            await tell("EtcdMemberAdded", f"{step.name} joins etcd")
            await self._client(cluster).add(addresses, step.peer_url)
        elif isinstance(step, Restart):
            await tell("EtcdMemberRestarted", f"{step.name} may begin now: etcd has let it in")
            await self._kube.delete("Pod", cluster.namespace, step.name)

    async def _replace_lost(
        self, cluster: Cluster, etcd: Etcd, pods: list[Object], ready: Collection[str], tell: Tell
    ) -> None:
        """A member whose volume is lost with its node begins anew, while the others have a majority."""
        if etcd.lost_after_s is None or len(ready) <= etcd.members // 2:
            return
        for pod in pods:
            if waits_for_its_volume(pod, etcd.lost_after_s, self._utc()):
                name = pod["metadata"]["name"]
                await tell("LostVolumeReplaced", f"{name} begins anew: its volume's node is gone")
                for claim in claims_of(pod):
                    await self._kube.delete("PersistentVolumeClaim", cluster.namespace, claim)
                await self._kube.delete("Pod", cluster.namespace, name, uid=pod["metadata"]["uid"])
                return

    async def _tidy(self, cluster: Cluster, etcd: Etcd, found: Found, members: list[Member] | None, tell: Tell) -> None:
        """Takes away the volumes of members that went, once their pods have gone."""
        pods = {pod["metadata"]["name"] for pod in found.all("Pod", etcd_pods.ETCD)}
        claims = [item["metadata"]["name"] for item in found.all("PersistentVolumeClaim", etcd_pods.ETCD)]
        for claim in left_behind(cluster, etcd, members, claims):
            if claim.removeprefix("data-") not in pods:
                await tell("EtcdVolumeDeleted", f"volume {claim} was of a member that isn't wanted any more")
                await self._kube.delete("PersistentVolumeClaim", cluster.namespace, claim)

    async def _roll(
        self,
        cluster: Cluster,
        etcd: Etcd,
        found: Found,
        pods: list[Object],
        seen: list[Seen],
        tell: Tell,
        *,
        window_open: bool,
    ) -> str:
        """Replaces one outdated member while all others answer, or one that is stuck; what is waited for."""
        stateful_set = found.get("StatefulSet", names.etcd_set(cluster))
        if stateful_set is None or not is_current(stateful_set):
            return ""
        ready = {pod.name for pod in seen if pod.ready}
        old = [(pod, why) for pod in pods if not going(pod) and (why := outdated(stateful_set, pod))]
        turn = [(pod, why) for pod, why in old if pod["metadata"]["name"] not in ready and stuck(pod)]
        if not turn and old and len(ready) == etcd.members:
            if not window_open:
                return f"the next maintenance window, to restart {old[0][0]['metadata']['name']}"
            turn = [await self._leader_last(cluster, old)]
        for pod, why in turn[:1]:
            await tell("RollingRestart", f"{pod['metadata']['name']} is restarted: {why}")
            await self._kube.delete("Pod", cluster.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        return ""

    async def _leader_last(self, cluster: Cluster, old: list[tuple[Object, str]]) -> tuple[Object, str]:
        """The first that doesn't lead: a leader that stops costs an election."""
        for pod, why in old[:-1]:
            with suppress(EtcdUnreachable):
                if not (await self._client(cluster).status(_endpoint(pod))).leads:
                    return pod, why
        return old[-1]


def _as_formed(cluster: Cluster, etcd: Etcd, found: Found) -> Etcd:
    """Members can't change the way in which they talk to each other one after the other: it stays."""
    rules = found.get("ConfigMap", names.etcd_set(cluster))
    plain = rules is not None and "=http://" in (rules.get("data") or {}).get("initial-cluster", "")
    return replace(etcd, plain_peers=plain)


def _endpoint(pod: Object) -> str:
    """host:port of a member."""
    return str(Address(address(pod), ETCD_PORT))
