"""InitProducerId (key 22), versions 0–5: an id for an idempotent producer.

A transactional id is refused at once with a fatal error, so that no client waits for a coordinator that doesn't exist.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api
from ottla.broker.ports import WithProducerIds
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(
    key=22,
    versions=(0, 5),
    needs=(
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        Right(AclOperation.WRITE, ResourceType.TOPIC),
    ),
    gaps=(
        "Transactional ids are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) until Ottla has transactions.",
    ),
)
NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}


async def handle(broker: WithProducerIds, request: Request, body: Any) -> dict[str, Any]:
    """Answers a new id with epoch 0. An idempotent producer that sends its present id gets a new id, too, as in
    Kafka."""
    if body.transactional_id is not None:
        # Fatal in every client's transaction state machine; at a retriable code, a client would ask again forever.
        code = ErrorCode.transactional_id_authorization_failed if body.transactional_id else ErrorCode.invalid_request
        return {"error_code": code, **NO_PRODUCER}
    try:
        return {"producer_id": await broker.producer_ids.next(), "producer_epoch": 0}
    except KafkaError as error:
        return {"error_code": error.code, **NO_PRODUCER}
