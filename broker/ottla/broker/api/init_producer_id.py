"""InitProducerId (key 22), versions 0–5: an id for an idempotent producer, or the next epoch of a transactional id.

A client that goes on after an error states its present producer id and epoch, from version 3 on (KIP-360). Clients
before version 4 don't know the error PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.api.older_producers import known_to
from ottla.broker.ports import WithAuthorizer, WithProducerIds, WithTransactions
from ottla.broker.request import Request
from ottla.broker.transaction.initialization import Init, Producer
from ottla.broker.transaction.metadata import NO_EPOCH, NO_PRODUCER_ID
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

API = Api(
    key=22,
    versions=(0, 5),
    needs=(
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        Right(AclOperation.WRITE, ResourceType.TOPIC),
    ),
)
NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}


class Parts(WithAuthorizer, WithProducerIds, WithTransactions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers a new id with epoch 0; for a transactional id its producer's id with the next epoch. An idempotent
    producer that sends its present id gets a new id, too, as in Kafka."""
    if (refusal := _refusal(broker, request, body.transactional_id)) is not ErrorCode.none:
        return {"error_code": refusal, **NO_PRODUCER}
    if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_EPOCH):
        return {"error_code": ErrorCode.invalid_request, **NO_PRODUCER}
    if body.transactional_id is None:
        try:
            return {"producer_id": await broker.producer_ids.next(), "producer_epoch": 0}
        except KafkaError as error:
            return {"error_code": error.code, **NO_PRODUCER}
    present = None if body.producer_id == NO_PRODUCER_ID else Producer(body.producer_id, body.producer_epoch)
    init = Init(milliseconds(body.transaction_timeout), present)
    try:
        answer = await broker.transactions.init_producer_id(body.transactional_id, init)
    except KafkaError as error:
        return {"error_code": error.code, **NO_PRODUCER}
    return {
        "error_code": known_to(request, answer.error, 4),
        "producer_id": answer.producer_id,
        "producer_epoch": answer.epoch,
    }


def _refusal(broker: Parts, request: Request, transactional_id: str | None) -> ErrorCode:
    """The error for a client without the right; NONE for other clients. An idempotent producer needs the right to write
    to some topic, or the older right IDEMPOTENT_WRITE (KIP-679)."""
    authorizer, write = broker.authorizer, AclOperation.WRITE
    if transactional_id is not None:
        allowed = authorizer.allows(request, write, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return ErrorCode.none if allowed else ErrorCode.transactional_id_authorization_failed
    older = AclOperation.IDEMPOTENT_WRITE
    if authorizer.allows(request, older, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True) or authorizer.allows_on_some(
        request, write, ResourceType.TOPIC
    ):
        return ErrorCode.none
    return ErrorCode.cluster_authorization_failed
