"""Whether an etcd that the operator runs has TLS. Pure.

That is decided when etcd is formed, and never changes: pods are restarted one after the other, and members and clients
with and without TLS can't reach each other. Where the spec says nothing, a new etcd has TLS if the links between
brokers are encrypted. Its volumes have a label for that, because they may outlive everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.etcd_pods import ENCRYPTED_CLIENTS, ETCD
from ottla.operator.spec.cluster import Cluster, Etcd
from ottla.operator.spec.security import Links


def with_etcd_tls(
    cluster: Cluster, sets: Sequence[Object], pods: Sequence[Object], claims: Sequence[Object]
) -> tuple[Cluster, str]:
    """The Cluster with the TLS that its etcd has or is to have, and what the spec wrongly asks for instead; empty where
    the spec can be followed. The objects are all of the Cluster's."""
    etcd = cluster.metadata
    if not isinstance(etcd, Etcd):
        return cluster, ""
    running = _of_etcd(sets) or _of_etcd(pods)
    marked = any(_marked(claim) for claim in _claims(_of_etcd(sets)) or _of_etcd(claims))
    said, problem = etcd.tls_said, ""
    if running:
        tls = any(map(_encrypted, running))
        if said is not None and said != tls:
            formed = "with" if tls else "without"
            problem = f"metadata.etcd.tls can't change: this etcd was formed {formed} TLS, and stays so"
    elif said is not None:
        tls = said
    elif _of_etcd(claims):
        tls = marked
    else:
        tls = marked = cluster.links is Links.ENCRYPTED
    return replace(cluster, metadata=replace(etcd, tls=tls, tls_marked=marked)), problem


def _of_etcd(items: Sequence[Object]) -> list[Object]:
    return [item for item in items if item["metadata"]["labels"].get(names.COMPONENT) == ETCD]


def _claims(sets: Sequence[Object]) -> list[Object]:
    return [claim for item in sets for claim in item["spec"].get("volumeClaimTemplates") or ()]


def _marked(claim: Object) -> bool:
    return (claim["metadata"].get("labels") or {}).get(names.ETCD_TLS) == "true"


def _encrypted(item: Object) -> bool:
    """Whether a StatefulSet or a pod of etcd was made for clients that use TLS."""
    pod = item["spec"].get("template", item)
    return any(
        argument.startswith(ENCRYPTED_CLIENTS)
        for container in pod["spec"]["containers"]
        for argument in container.get("args") or ()
    )
