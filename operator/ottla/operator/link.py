"""How the operator connects to the brokers of a cluster: by a listener between brokers, plain or encrypted.

The encrypted listener asks for a certificate. The operator's one stands in a Secret, so that a new process has it, too,
and the status of the Cluster says whether every broker has this listener open.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ottla.net.streams import Connect, Stream, connect_tcp
from ottla.net.tls_streams import connect_tls
from ottla.operator.certificates import Identity, decoded
from ottla.operator.objects import Object, Ref
from ottla.operator.plan import broker_tls, names
from ottla.operator.queue import Retry
from ottla.operator.spec.cluster import ENCRYPTED_REPLICATION_PORT, REPLICATION_PORT

CONNECT_S_MAX = 5.0  # a bound, because an address where nothing listens yet may give no answer at all
ENCRYPTED = "encryptedLinks"  # the field of a Cluster's status which says that every broker has that listener open


@dataclass(frozen=True)
class Link:
    """A way to connect to any broker of a cluster. `identity`: what TLS needs; None for the plain listener."""

    identity: Identity | None = None

    @property
    def port(self) -> int:
        """The port of the listener."""
        return REPLICATION_PORT if self.identity is None else ENCRYPTED_REPLICATION_PORT

    async def connect(self, host: str, port: int) -> Stream:
        """Opens a stream, as `Connect` does. Raises OSError, and TimeoutError after CONNECT_S_MAX."""
        async with asyncio.timeout(CONNECT_S_MAX):
            return await self._connect(host, port)

    @cached_property
    def _connect(self) -> Connect:
        if self.identity is None:
            return connect_tcp
        return connect_tls(lambda: self._context, self.identity.server_name)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        assert self.identity is not None
        return self.identity.context()


PLAIN = Link()


def bootstrap_of(namespace: str, cluster: str, link: Link) -> str:
    """The addresses at which the operator reaches a cluster's brokers: a broker that is ready, or else any broker."""
    return ",".join(f"{cluster}-{service}.{namespace}.svc:{link.port}" for service in ("bootstrap", "brokers"))


class Reads(Protocol):
    """Reads objects of Kubernetes, one by one."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where there is none."""


async def link_of(kube: Reads, cluster: Ref, *, encrypted: bool) -> Link:
    """The way to connect to the brokers of a cluster. `encrypted`: whether every broker has the encrypted listener
    open. Raises Retry, KubeError."""
    return Link(await identity_of(kube, cluster)) if encrypted else PLAIN


async def identity_of(kube: Reads, cluster: Ref) -> Identity:
    """What the operator needs to connect to the brokers of a cluster by TLS. Raises Retry, KubeError."""
    secret = names.operator_certificate(cluster.name)
    found = decoded(await kube.get("Secret", cluster.namespace, secret))
    try:
        server = broker_tls.server_name(cluster.namespace, cluster.name)
        return Identity(found["ca.crt"], found["tls.crt"], found["tls.key"], server)
    except KeyError:
        raise Retry(f"the Secret {secret}, by which the operator connects to brokers, isn't made yet") from None
