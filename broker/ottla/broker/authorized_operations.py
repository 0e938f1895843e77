"""The authorized operations in responses to clients, as bit sets over the codes of Kafka's AclOperation (KIP-430)."""

from __future__ import annotations

from ottla.broker.authorizer import Authorizer
from ottla.broker.request import Request
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType

NOT_ASKED = -(2**31)
"""The value in a response to a request that doesn't ask for the operations, and for a topic or group that the client
may not describe."""


def on_cluster(authorizer: Authorizer, request: Request) -> int:
    """The operations that the client may do on the cluster; none, as in Kafka, where it may not describe the
    cluster."""
    if not authorizer.allows(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return authorizer.authorized_operations(request, ResourceType.CLUSTER, CLUSTER_NAME)
