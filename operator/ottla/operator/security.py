"""The parts of a reconcile that keep a Cluster's authorities and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ottla.operator import authorities, certificates, succession
from ottla.operator.authorities import READ_WITHIN, Duties
from ottla.operator.broker_certificates import brokers_kept, operators_kept
from ottla.operator.certificates import Issued, Secret
from ottla.operator.kube import Kube
from ottla.operator.plan import broker_tls, names
from ottla.operator.plan.broker_pods import CONTROLLER
from ottla.operator.plan.broker_tls import CLIENTS_CA_FILE, CLUSTER_CA_FILE
from ottla.operator.plan.observed import addresses
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import ENCRYPTED_REPLICATION_PORT
from ottla.operator.spec.security import Authentication
from ottla.operator.trust_probe import TrustProbe
from ottla.operator.visit import Visit

FORGOTTEN_AFTER = timedelta(days=1)  # clients get other certificates within this time


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
        cluster_ca = await authorities.kept(self._kube, visit, self._of_cluster(visit))
        visit.trust = succession.trusted(cluster_ca)
        clients_ca: Secret = {}
        if broker_tls.asks_for_certificates(cluster):
            clients_ca = await authorities.kept(self._kube, visit, self._of_clients(visit))
        refusals = Refusals()
        with refusals.gathered():
            await operators_kept(self._kube, visit, cluster_ca)
        with refusals.gathered():
            await brokers_kept(self._kube, visit, cluster_ca, clients_ca)
        refusals.told()

    def _of_cluster(self, visit: Visit) -> Duties:
        cluster = visit.cluster
        links = [ENCRYPTED_REPLICATION_PORT] if visit.findings.encrypted_links else []
        changing = visit.encrypted_somewhere and not links

        async def read(authority: Secret) -> bool:
            if changing or not _since(visit, authority["next.crt"], READ_WITHIN):
                return False
            return await self._accepted(visit, links, _probing(visit, succession.successor(authority)))

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
        return Duties(name, "the brokers' certificates", CLUSTER_CA_FILE, cluster.cluster_ca, grace, read, replaced)

    def _of_clients(self, visit: Visit) -> Duties:
        cluster = visit.cluster
        ports = [each.port for each in cluster.listeners if each.authentication is Authentication.TLS]

        async def read(authority: Secret) -> bool:
            return await self._accepted(visit, ports, _probing(visit, succession.successor(authority)))

        async def replaced(authority: Secret) -> bool:
            return visit.now >= certificates.made_at(authority["tls.crt"]) + FORGOTTEN_AFTER

        name = names.clients_ca(cluster.name)
        return Duties(name, "clients' certificates", CLIENTS_CA_FILE, cluster.clients_ca, timedelta(), read, replaced)

    async def _accepted(self, visit: Visit, ports: Sequence[int], pair: Issued) -> bool:
        """Whether each broker accepts this certificate at these ports. A broker that doesn't run reads its files when
        it starts."""
        return all([await self._probe.accepted(_hosts(visit), port, pair) for port in ports])


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
