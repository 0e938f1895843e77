"""FindCoordinator (10), versions 0–6: which broker coordinates a group, or, from version 4 on, each of several groups.

A group's coordinator is the leader of its partition of `__consumer_offsets`. The first request begins the creation of
that topic, and is answered COORDINATOR_NOT_AVAILABLE, after which clients ask again. If the coordinator has just died,
the answer waits for the election of the next one (`awaited_elections.py`).

There are no transactions yet. `handle` answers a transactional id with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: this is
the only code that is fatal to Java's producer, to librdkafka and to franz-go. At most other codes, librdkafka asks
again. `handle_transactional` (see `transaction_handlers.py`) names the leader of the id's partition of
`__transaction_state`. Share groups (key type 2) and unknown key types are answered INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.ports import WithAwaitedElections, WithImage, WithInternalTopics
from ottla.broker.request import Request
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.java_hash import partition_of
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(
    key=10,
    versions=(0, 6),
    needs=(
        Right(AclOperation.DESCRIBE, ResourceType.GROUP),
        Right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    ),
    gaps=(
        "transactional ids (key type 1) are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: no transactions yet",
        "share groups (key type 2) are refused with INVALID_REQUEST",
    ),
)

GROUP, TRANSACTION = 0, 1

_NOWHERE: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
_MESSAGES = {
    ErrorCode.transactional_id_authorization_failed: "This cluster has no transactions yet.",
    ErrorCode.invalid_request: "Coordinators of this type don't exist here.",
    ErrorCode.coordinator_not_available: "The coordinator is not available.",
}


class Parts(WithAwaitedElections, WithImage, WithInternalTopics, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers each coordinator's address on the listener of the client's connection."""
    return await _handle(broker, request, body, {GROUP: OFFSETS_TOPIC})


async def handle_transactional(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """The same, also for transactional ids."""
    return await _handle(broker, request, body, {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC})


async def _handle(broker: Parts, request: Request, body: Any, topics: Mapping[int, str]) -> dict[str, Any]:
    several = request.api_version >= 4
    asked = body.coordinator_keys if several else [body.key]
    name = topics.get(body.key_type)
    topic = None if name is None else broker.image.topics.get(name)
    if topic is not None:
        indexes = {partition_of(key, len(topic.partitions)) for key in asked}
        await broker.awaited_elections.settled({topic.id: indexes}, request.pending)
    found = [_coordinator(broker, request, body.key_type, name, key) for key in asked]
    if several:
        return {"coordinators": [{"key": key, **each} for key, each in zip(asked, found, strict=True)]}
    return found[0]


def _coordinator(broker: Parts, request: Request, key_type: int, name: str | None, key: str) -> dict[str, Any]:
    """The coordinator of `key`, whose state is in a partition of the internal topic `name`."""
    if name is None:
        unserved = ErrorCode.transactional_id_authorization_failed
        return _refused(unserved if key_type == TRANSACTION else ErrorCode.invalid_request)
    image = broker.image
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


def _refused(error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "error_message": _MESSAGES[error], **_NOWHERE}
