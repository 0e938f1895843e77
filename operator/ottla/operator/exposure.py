"""Tells brokers their addresses for clients outside of Kubernetes, once the addresses are known and whenever they
change.

A node port may have to go from one of the Cluster's Services to another, for example when a listener is renamed, or a
broker's id goes to another pool. The old Service is deleted at the end of a reconcile, and the API server frees its
port only after that. So if the port is refused meanwhile, the new Service waits, and nothing has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from ottla.net.admin import BROKER as BROKER_RESOURCE
from ottla.operator.found import Found
from ottla.operator.kafka import admin_of, said
from ottla.operator.kube import Kube, KubeError
from ottla.operator.link import Link
from ottla.operator.objects import Object, Ref, ref_of
from ottla.operator.plan import external, names, services
from ottla.operator.plan.external import (
    address,
    external_services,
    node_address,
    node_ports,
    service_of,
    told,
)
from ottla.operator.plan.observed import address as pod_address
from ottla.operator.plan.observed import is_ready
from ottla.operator.queue import Tell
from ottla.operator.refusals import Awaited, Refusals
from ottla.operator.spec.cluster import Cluster
from ottla.operator.visit import Visit
from ottla.protocol.errors import KafkaError

ADDRESSES = "ottla.listener.addresses"
FREED_S_MAX = 10.0  # after a Service is gone, its node ports are free within this time


class Exposure:
    """Keeps the Services and addresses of the external listeners of any cluster."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._told: dict[Ref, tuple[str, str]] = {}  # pod → its uid, and the addresses that its broker has
        # Cluster → node port → when one of the Cluster's Services was last seen to have it
        self._seen: dict[Ref, dict[int, datetime]] = {}

    def forget(self, key: Ref) -> None:
        """Drops what is known about the Services of a Cluster that is gone."""
        self._seen.pop(key, None)

    def wanted(self, visit: Visit) -> list[Object]:
        """The Services of external listeners, for every existing broker: a broker that is being drained may still lead
        partitions, and keeps its Service."""
        cluster, pods = visit.cluster, _reachable(visit)
        known = node_ports(cluster, pods, _services(visit.found), visit.findings.node_ports)
        return external_services(cluster, pods, known)

    async def keep(self, visit: Visit) -> None:
        """Applies the Services, and notes the node ports that brokers have or had. Raises Retry with the first
        refusal."""
        refusals = Refusals()
        wanted = self.wanted(visit)
        to_be_freed = self._to_be_freed(visit, wanted)
        for each in wanted:
            with refusals.gathered():
                await self._make(visit.cluster, visit.found, each, to_be_freed)
        present, noted = _services(visit.found), visit.findings.node_ports
        visit.findings.node_ports = node_ports(visit.cluster, _reachable(visit), present, noted)
        refusals.told()

    async def look(self, visit: Visit) -> None:
        """Notes the brokers' external addresses, and those by which clients bootstrap, as far as they are known."""
        cluster, found = visit.cluster, visit.found
        visit.addresses = await self.addresses(cluster, found, visit.broker_pods())
        staying = {broker: each for broker, each in visit.addresses.items() if broker in cluster.broker_ids}
        outside = self.bootstrap(cluster, found, staying)
        visit.findings.bootstrap = {**services.bootstrap_servers(cluster), **outside}

    def _to_be_freed(self, visit: Visit, wanted: Collection[Object]) -> set[int]:
        """The node ports that the Cluster's own Services have, or had until just now, and that at most one of the
        `wanted` Services is to have."""
        key, now = visit.cluster.ref, visit.now
        own = [service for service in visit.found.all("Service") if visit.found.owns(service)]
        seen = {port: at for port, at in self._seen.get(key, {}).items() if (now - at).total_seconds() <= FREED_S_MAX}
        self._seen[key] = seen | dict.fromkeys(_ports(own), now)
        contested = {port for port, count in Counter(_ports(wanted)).items() if count > 1}
        return self._seen[key].keys() - contested

    async def _make(self, cluster: Cluster, found: Found, wanted: Object, to_be_freed: Collection[int]) -> None:
        """Applies a Service. Raises Awaited if another Service of the Cluster gives up its node port only later. If the
        Service was deleted, and a Service of another owner has got its node port since, the Service is made again with
        any free node port, unless the spec asks for that port."""
        port = wanted["spec"]["ports"][0]
        asked_for = any(
            each.first_node_port is not None or wanted["metadata"]["name"] == names.bootstrap_service(cluster, each)
            for each in cluster.listeners
            if each.name == port["name"]
        )
        try:
            await found.apply(wanted)
        except KubeError as error:
            name = wanted["metadata"]["name"]
            if error.status == 422 and (number := port.get("nodePort")) in to_be_freed:
                waits_for = f"the node port {number}, which another of the Cluster's Services has or had"
                raise Awaited(f"the Service {name} waits for {waits_for}") from error
            new = found.get("Service", name) is None
            if error.status != 422 or not new or "nodePort" not in port or asked_for:
                raise
            del port["nodePort"]
            await found.apply(wanted)

    async def addresses(self, cluster: Cluster, found: Found, pods: Mapping[int, Object]) -> dict[int, dict[str, str]]:
        """The brokers' external addresses: broker → listener → host:port, empty while the address isn't known."""
        hosts = await self._node_hosts(cluster, pods)
        return {
            broker: {
                listener.name: address(
                    listener,
                    broker,
                    found.get("Service", service_of(cluster, pod["metadata"]["name"], listener)),
                    hosts.get(broker, ""),
                )
                for listener in cluster.listeners
                if listener.external
            }
            for broker, pod in pods.items()
        }

    async def tell(
        self, pods: Mapping[int, Object], addresses: Mapping[int, Mapping[str, str]], link: Link, event: Tell
    ) -> str:
        """Tells each broker its changed addresses. Returns a sentence about the first broker that has no address yet or
        refuses its addresses; empty where all brokers have been told.

        `pods` may be newer than `addresses`, because pods are read again before a restart.
        """
        addresses = {broker: listeners for broker, listeners in addresses.items() if broker in pods}
        for broker, listeners in sorted(addresses.items()):
            wanted, pod, uid = told(listeners), ref_of(pods[broker]), pods[broker]["metadata"]["uid"]
            if not listeners or not is_ready(pods[broker]) or self._told.get(pod) == (uid, wanted):
                continue
            # Only the broker itself accepts settings for that broker alone.
            admin = admin_of(pod_address(pods[broker]), link)
            try:
                present = (await admin.settings(BROKER_RESOURCE, str(broker))).get(ADDRESSES, "")
                if present != wanted:
                    given, reset = ({ADDRESSES: wanted}, ()) if wanted else ({}, (ADDRESSES,))
                    await admin.configure_brokers(given, reset, broker=str(broker))
                    await event("AddressesTold", f"broker {broker} is reached at {wanted or 'no address outside'}")
                self._told[pod] = (uid, wanted)
            except KafkaError as error:
                return f"broker {broker} refuses its addresses: {said(error)}"
            finally:
                admin.close()
        for broker, listeners in sorted(addresses.items()):
            for name, where in listeners.items():
                if not where:
                    return f"listener {name}: broker {broker} has no address yet"
        return ""

    def bootstrap(self, cluster: Cluster, found: Found, addresses: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
        """The bootstrap servers for clients outside, by listener; listeners without a known address are missing."""
        servers = {}
        for listener in cluster.listeners:
            if not listener.external:
                continue
            own = ""
            if listener.type == "LoadBalancer":
                item = found.get("Service", names.bootstrap_service(cluster, listener))
                own = address(listener, None, item, "")
            every = [own] if own else [each.get(listener.name, "") for _, each in sorted(addresses.items())]
            if known := external.bootstrap_servers(every):
                servers[listener.name] = known
        return servers

    async def _node_hosts(self, cluster: Cluster, pods: Mapping[int, Object]) -> dict[int, str]:
        if not any(listener.type == "NodePort" for listener in cluster.listeners):
            return {}
        nodes: dict[str, str] = {}
        hosts = {}
        for broker, pod in pods.items():
            name = pod["spec"].get("nodeName", "")
            if name and name not in nodes:
                nodes[name] = await self._node_host(name)
            hosts[broker] = nodes.get(name) or (pod.get("status") or {}).get("hostIP", "")
        return hosts

    async def _node_host(self, name: str) -> str:
        try:
            node = await self._kube.get("Node", "", name)
        except KubeError as error:
            if error.status == 403:
                return ""  # the operator may not read nodes: the pod's status has its node's internal address
            raise
        return "" if node is None else node_address(node)


def _reachable(visit: Visit) -> Mapping[int, str]:
    """The pod names of the brokers that need a Service, by broker id.

    A broker that this reconcile removes is among them. Its pod may exist though no list has it: the pods may have been
    listed before Kubernetes made it. The next reconcile lists the pods again, and only then the Service may go.
    """
    return {**visit.existed, **visit.pod_names()}


def _ports(services: Collection[Object]) -> list[int]:
    """The node ports of Services."""
    return [
        each["nodePort"] for service in services for each in service["spec"].get("ports") or () if "nodePort" in each
    ]


def _services(found: Found) -> dict[str, Object]:
    return {service["metadata"]["name"]: service for service in found.all("Service")}
