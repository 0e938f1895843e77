"""Keeps the Secrets with the certificates of a cluster's etcd, by the steps of `succession.py`.

A pod's annotations have a digest of the certificates that it was started with. By these digests the operator knows when
all pods trust a new authority, and a pod that was started with older certificates is outdated.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ottla.operator import certificates, etcd_pairs, succession
from ottla.operator.certificates import Identity, Secret
from ottla.operator.found import Found
from ottla.operator.kube import Kube
from ottla.operator.objects import annotation
from ottla.operator.plan import etcd_pods, names
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.queue import Tell
from ottla.operator.spec.cluster import Cluster, Etcd


async def certified(
    kube: Kube, cluster: Cluster, etcd: Etcd, found: Found, tell: Tell, now: datetime
) -> tuple[Cluster, Identity]:
    """Takes the next step of the renewal. Returns the Cluster with digests of the certificates that pods read at their
    start, and the operator's own identity."""
    hosts, name = etcd_pods.certified_hosts(cluster), names.etcd_set(cluster)
    names_of = (names.etcd_authority(cluster), names.etcd_certificates(cluster))
    present, mounted = [certificates.decoded(await kube.get("Secret", cluster.namespace, each)) for each in names_of]
    known = mounted.get("ca.crt") == succession.trusted(present) and _everybody_read(found, mounted)
    authority = succession.tended(present, name, now, known=known)
    if authority != present:
        await found.apply(names.secret(cluster, names_of[0], etcd_pods.ETCD, certificates.encoded(authority)))
        if present:
            signs = "is added, and signs once all pods trust it" if "next.crt" in authority else "signs"
            await tell("AuthorityRenewed", f"a new authority for etcd's certificates {signs}")
    pairs = etcd_pairs.pairs(authority, mounted, name, hosts, now)
    if pairs != mounted:
        await found.apply(names.secret(cluster, names_of[1], etcd_pods.ETCD, certificates.encoded(pairs)))
        if pairs["client.crt"] != mounted.get("client.crt"):
            await tell("CertificatesMade", "etcd and its clients have new certificates")
    trust = replace(etcd, trust=_read_by_members(pairs))
    identity = Identity(pairs["ca.crt"], pairs["client.crt"], pairs["client.key"], hosts[0])
    return replace(cluster, certificates=_read_by_clients(pairs), metadata=trust), identity


def _read_by_clients(pairs: Secret) -> str:
    return names.checksum((pairs["ca.crt"] + pairs["client.crt"]).decode())


def _read_by_members(pairs: Secret) -> str:
    """A digest of what members read only at their start: the trusted certificates. Members read their pair of
    certificate and key at each connection."""
    return names.checksum(pairs["ca.crt"].decode())


def _everybody_read(found: Found, pairs: Secret) -> bool:
    """Whether all pods were started with the present data of the Secret, by the digests in their annotations."""
    digests = dict.fromkeys((BROKER, CONTROLLER), _read_by_clients(pairs)) | {etcd_pods.ETCD: _read_by_members(pairs)}
    return all(
        annotation(pod, names.CERTIFICATES_CHECKSUM) == digest
        for component, digest in digests.items()
        for pod in found.all("Pod", component)
    )
