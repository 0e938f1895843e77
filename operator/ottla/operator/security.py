"""The parts of a reconcile that keep a Cluster's authorities and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ottla.operator import authorities, certificates, succession
from ottla.operator.authorities import READ_WITHIN, Duties
from ottla.operator.broker_certificates import brokers_kept, lacks_keys, operators_kept
from ottla.operator.certificates import Issued, Secret
from ottla.operator.kube import Kube
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
        visit.lacks_keys = await lacks_keys(self._kube, cluster)
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
            if not _since(visit, authority["next.crt"], READ_WITHIN):
                return False
            pair = _probing(visit, succession.successor(authority))
            if visit.lacks_keys:
                return await self._accepted_without_keys(visit, pair, certificates.made_at(authority["next.crt"]))
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

    async def _accepted_without_keys(self, visit: Visit, pair: Issued, made: datetime) -> bool:
        """The same for the links between brokers while the keys of all of them are lost: a broker that starts has to
        wait for a key, so not every broker can accept the certificate. `made`: when the authority was made.

        A broker that doesn't serve may wait for its key, or it has just started with the former files, which its pod
        has until its kubelet looks again. A broker with the former files would never take over a key of an authority
        that it doesn't trust yet, and the others wouldn't accept it any more once they forget its authority. So brokers
        that don't serve have the time in which all kubelets look.
        """
        late = visit.now >= made + READ_WITHIN
        pods = [pod for pod in visit.broker_pods().values() if stage_of(pod["metadata"]).encrypted_open]
        hosts = [address(pod) for pod in pods if is_ready(pod) or not late]
        return all(hosts) and await self._probe.accepted(hosts, ENCRYPTED_REPLICATION_PORT, pair)


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
