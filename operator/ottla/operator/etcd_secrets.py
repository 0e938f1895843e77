"""Reads the Secrets that a Cluster names, by which brokers authenticate to an etcd that the operator doesn't run.

Brokers read these Secrets at their start, so a pod with another digest of their data is outdated. When a certificate or
a password in them is renewed, the brokers are restarted, one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.operator.certificates import decoded
from ottla.operator.kube import Kube
from ottla.operator.plan import names
from ottla.operator.queue import Retry
from ottla.operator.spec.cluster import Cluster, ExternalEtcd


class SecretIncomplete(Retry):
    """A Secret that a Cluster names doesn't exist, or lacks a key that brokers need."""


async def with_secrets(kube: Kube, cluster: Cluster, etcd: ExternalEtcd) -> Cluster:
    """The Cluster with a digest of the data of its Secrets. Raises SecretIncomplete, KubeError."""
    held: dict[str, bytes] = {}
    for field, name, needed in (
        ("tlsSecret", etcd.tls_secret, ("ca.crt",)),
        ("credentialsSecret", etcd.credentials_secret, ("username", "password")),
    ):
        if name is None:
            continue
        whose = f"metadata.external.{field}: the Secret {name}"
        secret = await kube.get("Secret", cluster.namespace, name)
        if secret is None:
            raise SecretIncomplete(f"{whose} doesn't exist: create it")
        parts = decoded(secret)
        if missing := [part for part in needed if part not in parts]:
            raise SecretIncomplete(f"{whose} has no {missing[0]}: add it")
        if ("tls.crt" in parts) != ("tls.key" in parts):
            raise SecretIncomplete(f"{whose} has only one of tls.crt and tls.key: add the other one")
        held |= {f"{field}/{part}": content for part, content in parts.items()}
    if not held:
        return cluster
    digest = names.checksum("".join(f"{part}:{content.hex()}\n" for part, content in sorted(held.items())))
    client = "tlsSecret/tls.crt" in held
    return replace(cluster, certificates=digest, metadata=replace(etcd, client_certificate=client))
