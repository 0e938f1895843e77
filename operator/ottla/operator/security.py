"""The parts of a reconcile that keep a Cluster's authorities and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from ottla.operator import authorities, certificates, succession
from ottla.operator.authorities import READ_WITHIN, Duties
from ottla.operator.broker_certificates import (
    awaited_keys,
    brokers_kept,
    lacks_links_key,
    operators_kept,
    trusted_for,
)
from ottla.operator.certificates import Issued, Secret
from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object, annotation
from ottla.operator.plan import broker_tls, names
from ottla.operator.plan.broker_pods import CONTROLLER
from ottla.operator.plan.broker_tls import CLIENTS_CA_FILE, CLUSTER_CA_FILE
from ottla.operator.plan.links import stage_of
from ottla.operator.plan.observed import address, addresses, is_ready
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import ENCRYPTED_REPLICATION_PORT
from ottla.operator.spec.security import Authentication
from ottla.operator.trust_probe import TrustProbe
from ottla.operator.visit import Visit

FORGOTTEN_AFTER = timedelta(days=1)  # clients get other certificates within this time
ASKED_FOR = timedelta(minutes=15)  # brokers that lack keys get them then, also while others don't trust them


class Security:
    """Keeps the authorities and certificates of any cluster."""

    def __init__(self, kube: Kube, probe: TrustProbe) -> None:
        self._kube = kube
        self._probe = probe

    async def keep(self, visit: Visit) -> None:
        """Takes the next step of each authority, and keeps the certificates that they sign. A Cluster without encrypted
        listeners has none. Raises Retry with the first refusal."""
        cluster = visit.cluster
        if not broker_tls.uses_tls(cluster) and not visit.encrypted_somewhere:
            return
        found = await self._kube.get("Secret", cluster.namespace, names.broker_certificates(cluster.name))
        with suppress(KubeError):  # the part BrokerConfig reports such an error; nothing is restarted meanwhile
            visit.awaited_keys = awaited_keys(visit, certificates.decoded(found))
        cluster_ca = await authorities.kept(self._kube, visit, self._of_cluster(visit, found))
        visit.trust = succession.trusted(cluster_ca)
        clients_ca: Secret = {}
        if broker_tls.knows_certificates_of_clients(cluster):
            clients_ca = await authorities.kept(self._kube, visit, self._of_clients(visit))
        cut_off = await self._cut_off(visit, found, cluster_ca)
        refusals = Refusals()
        with refusals.gathered():
            await operators_kept(self._kube, visit, cluster_ca, cut_off=cut_off)
        with refusals.gathered():
            await brokers_kept(self._kube, visit, found, cluster_ca, clients_ca, cut_off=cut_off)
        refusals.told()

    def _of_cluster(self, visit: Visit, found: Object | None) -> Duties:
        cluster = visit.cluster
        links = [ENCRYPTED_REPLICATION_PORT] if visit.findings.encrypted_links else []
        changing = visit.encrypted_somewhere and not links

        async def read(authority: Secret) -> bool:
            trusted = trusted_for(visit, found, authority["next.crt"])
            if visit.found.all("Pod", CONTROLLER) and trusted < READ_WITHIN:
                return False
            pair = _probing(visit, succession.successor(authority))
            if lacks_links_key(cluster, found) and not succession.signs(authority):
                return trusted >= ASKED_FOR or await self._accepted_without_keys(visit, pair, trusted)
            return not changing and await self._accepted(visit, links, pair)

        async def replaced(authority: Secret) -> bool:
            if changing or not _since(visit, authority["tls.crt"], FORGOTTEN_AFTER):
                return False
            pair = _probing(visit, authority)
            signed = [each.port for each in cluster.listeners if each.tls and each.certificate_secret is None]
            shown = [
                await self._probe.shown(_hosts(visit), port, pair, authority["tls.crt"]) for port in (*links, *signed)
            ]
            return all(shown)

        grace = timedelta(days=cluster.cluster_ca.renewal_days) / 2
        name = names.cluster_ca(cluster.name)
        trust = (
            (names.broker_certificates(cluster.name), CLUSTER_CA_FILE),
            (names.operator_certificate(cluster.name), "ca.crt"),
        )
        return Duties(name, "the brokers' certificates", trust, cluster.cluster_ca, grace, read, replaced)

    def _of_clients(self, visit: Visit) -> Duties:
        cluster = visit.cluster
        ports = [each.port for each in cluster.listeners if each.authentication is Authentication.TLS]

        async def read(authority: Secret) -> bool:
            return await self._accepted(visit, ports, _probing(visit, succession.successor(authority)))

        async def replaced(authority: Secret) -> bool:
            return visit.now >= certificates.made_at(authority["tls.crt"]) + FORGOTTEN_AFTER

        name = names.clients_ca(cluster.name)
        trust = ((names.broker_certificates(cluster.name), CLIENTS_CA_FILE),)
        return Duties(name, "clients' certificates", trust, cluster.clients_ca, timedelta(), read, replaced)

    async def _accepted(self, visit: Visit, ports: Sequence[int], pair: Issued) -> bool:
        """Whether each broker accepts this certificate at these ports. A broker that doesn't run reads its files when
        it starts."""
        return all([await self._probe.accepted(_hosts(visit), port, pair) for port in ports])

    async def _accepted_without_keys(self, visit: Visit, pair: Issued, trusted: timedelta) -> bool:
        """The same for the links between brokers while their key and the authority's key are lost: a broker that starts
        has to wait for a key, so not every broker can accept the certificate. `trusted`: for how long the brokers'
        Secret has had the authority.

        A broker that doesn't serve may wait for its key, or it has just started with the former files, which its pod
        has until its kubelet looks again. A broker with the former files would never take over a key of an authority
        that it doesn't trust yet, and the others wouldn't accept it any more once they forget its authority. So brokers
        that don't serve have the time in which all kubelets look.
        """
        late = trusted >= READ_WITHIN
        pods = [pod for pod in visit.broker_pods().values() if stage_of(pod["metadata"]).encrypted_open]
        hosts = [address(pod) for pod in pods if is_ready(pod) or not late]
        return all(hosts) and await self._probe.accepted(hosts, ENCRYPTED_REPLICATION_PORT, pair)

    async def _cut_off(self, visit: Visit, found: Object | None, authority: Secret) -> bool:
        """Whether brokers may run that don't trust the authority, though it signs the keys of the others. Notes these
        brokers, and what lost keys wait for.

        Brokers of older releases don't read what they are to trust while the file of their key is missing, and later
        they take over no key that the others don't trust yet. So after a time the authority signs without their word.
        They are cut off from the brokers that have its keys, and have to be restarted, one at a time.
        """
        trusted = trusted_for(visit, found, succession.trusted(authority))
        if lacks_links_key(visit.cluster, found):
            unasked = trusted >= ASKED_FOR
            if not succession.signs(authority):
                until = visit.now - trusted + ASKED_FOR
                visit.findings.keys_wait_for = (
                    "the keys of brokers and their authority are lost; a new authority signs once every broker that "
                    f"serves accepts its certificates, at the latest at {until:%H:%M} UTC"
                )
            elif unasked:
                visit.findings.keys_wait_for = (
                    "the keys of brokers and their authority were lost; a new authority signs from now on, though "
                    "perhaps not every broker accepts its certificates"
                )
            return succession.signs(authority) and unasked
        if not annotation(found or {"metadata": {}}, names.CUT_OFF):
            return False
        pods = visit.broker_pods()
        pair = _probing(visit, authority)
        serving = {
            broker: address(pod)
            for broker, pod in pods.items()
            if is_ready(pod) and stage_of(pod["metadata"]).encrypted_open
        }
        visit.cut_off = frozenset(
            [
                broker
                for broker, host in serving.items()
                if not await self._probe.accepted([host], ENCRYPTED_REPLICATION_PORT, pair)
            ]
        )
        names_of = [pods[broker]["metadata"]["name"] for broker in sorted(visit.cut_off)]
        if names_of:
            visit.findings.cut_off = (
                f"{', '.join(names_of)} can't accept the others' certificates, because the keys of brokers and their "
                "authority were lost; restarted one at a time, also if partitions become unavailable meanwhile"
            )
            visit.busy = True
        return bool(visit.cut_off) or len(serving) < len(pods)


def _hosts(visit: Visit) -> list[str]:
    """The addresses of the brokers that run."""
    return list(addresses(visit.broker_pods()).values())


def _probing(visit: Visit, authority: Secret) -> Issued:
    """A certificate to try out whether brokers accept those of an authority."""
    return certificates.issued(authority, f"{visit.cluster.name}-probe", visit.now, days=1)


def _since(visit: Visit, certificate: bytes, time: timedelta) -> bool:
    """Whether controllers with pods of their own have had so much time since a certificate was made: they have no
    listener at which they could be asked. True where there are none."""
    return not visit.found.all("Pod", CONTROLLER) or visit.now >= certificates.made_at(certificate) + time
