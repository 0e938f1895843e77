"""Kafka's errors for clients that lack a right."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import ResourceType

CODES = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
"""The error code for a missing right, by the type of the resource."""

MESSAGES = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}
"""Kafka's messages of these errors."""

NOT_ON_CLUSTER = {
    "error_code": CODES[ResourceType.CLUSTER],
    "error_message": MESSAGES[ResourceType.CLUSTER],
}
"""The fields of an answer, or of a part of it, that say that the client lacks a right on the cluster."""


def refused(resource_type: ResourceType) -> KafkaError:
    """The error for a missing right on a resource of the type, with Kafka's message."""
    return KafkaError(CODES[resource_type], MESSAGES[resource_type])
