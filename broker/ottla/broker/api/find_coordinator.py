"""FindCoordinator (10), versions 0–6: which broker coordinates a group's or a transactional id's state. From version 4
on a request has several keys.

The coordinator is the leader of the key's partition of an internal topic: `__consumer_offsets` for groups,
`__transaction_state` for transactional ids. The first request begins the creation of that topic, and is answered
COORDINATOR_NOT_AVAILABLE, after which clients ask again. If the coordinator has just died, the answer waits for the
election of the next one (`awaited_elections.py`). Share groups (key type 2) and unknown key types are answered
INVALID_REQUEST.

While the level of the feature `transaction.version` is 0, brokers may register that don't know transactions. So a
transactional id is answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED: this is the only code at which Java's producer,
librdkafka and franz-go give up at once.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.ports import WithAuthorizer, WithAwaitedElections, WithImage, WithInternalTopics
from ottla.broker.request import Request
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.metadata.features import transaction_level
from ottla.protocol.errors import ErrorCode
from ottla.protocol.java_hash import partition_of
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .refusals import CODES, MESSAGES

API = Api(
    key=10,
    versions=(0, 6),
    needs=(
        Right(AclOperation.DESCRIBE, ResourceType.GROUP),
        Right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    ),
    gaps=("share groups (key type 2) are refused with INVALID_REQUEST",),
)

_TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
"""The internal topic that has a key's state, by the key's type: groups and transactional ids."""

_RESOURCES = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}

_NOWHERE: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
_MESSAGES = {
    ErrorCode.transactional_id_authorization_failed: (
        "This cluster has no transactions until an administrator raises the level of the feature transaction.version."
    ),
    ErrorCode.invalid_request: "Coordinators of this type don't exist here.",
    ErrorCode.coordinator_not_available: "The coordinator is not available.",
}


class Parts(WithAuthorizer, WithAwaitedElections, WithImage, WithInternalTopics, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers each coordinator's address on the listener of the client's connection."""
    several = request.api_version >= 4
    asked = body.coordinator_keys if several else [body.key]
    name = _TOPICS.get(body.key_type)
    topic = None if name is None else broker.image.topics.get(name)
    kind = _RESOURCES.get(body.key_type)
    allowed: Set[str] = set(asked)
    if kind is not None:
        allowed = allowed_names(broker.authorizer, request, AclOperation.DESCRIBE, kind, asked)
    if topic is not None:
        indexes = {partition_of(key, len(topic.partitions)) for key in asked if key in allowed}
        await broker.awaited_elections.settled({topic.id: indexes}, request.pending)
    found = [
        _coordinator(broker, request, name, key) if kind is None or key in allowed else _not_allowed(kind)
        for key in asked
    ]
    if several:
        return {"coordinators": [{"key": key, **each} for key, each in zip(asked, found, strict=True)]}
    return found[0]


def _coordinator(broker: Parts, request: Request, name: str | None, key: str) -> dict[str, Any]:
    """The coordinator of `key`, whose state is in a partition of the internal topic `name`."""
    if name is None:
        return _refused(ErrorCode.invalid_request)
    image = broker.image
    if name == TRANSACTIONS_TOPIC and not transaction_level(image):
        return _refused(ErrorCode.transactional_id_authorization_failed)
    topic = image.topics.get(name)
    if topic is None:
        broker.internal_topics.want(name)
        return _refused(ErrorCode.coordinator_not_available)
    partition = topic.partitions[partition_of(key, len(topic.partitions))]
    leader = image.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoints.get(request.listener)
    if endpoint is None:
        return _refused(ErrorCode.coordinator_not_available)
    return {
        "error_code": ErrorCode.none,
        "error_message": "NONE" if request.api_version < 4 else "",  # as Kafka
        "node_id": partition.leader,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _not_allowed(kind: ResourceType) -> dict[str, Any]:
    return {"error_code": CODES[kind], "error_message": MESSAGES[kind], **_NOWHERE}


def _refused(error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "error_message": _MESSAGES[error], **_NOWHERE}
