"""DescribeTransactions (65), version 0: the states of transactional ids, as their coordinator has committed them.

An id that doesn't exist is answered TRANSACTIONAL_ID_NOT_FOUND, an empty id INVALID_REQUEST. Topics that the client may
not describe are left out of a transaction's topics.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithTransactions
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(
    key=65,
    versions=(0, 0),
    needs=(
        Right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        Right(AclOperation.DESCRIBE, ResourceType.TOPIC),
    ),
)


class Parts(WithAuthorizer, WithTransactions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers each id's description, with an error code of its own."""
    return {"transaction_states": [_described(broker, request, name) for name in body.transactional_ids]}


def _described(broker: Parts, request: Request, name: str) -> dict[str, Any]:
    kind = ResourceType.TRANSACTIONAL_ID
    if not broker.authorizer.allows(request, AclOperation.DESCRIBE, kind, name):
        code = ErrorCode.transactional_id_authorization_failed
        return {"transactional_id": name, "error_code": code, "transaction_start_time": 0}  # as Kafka
    try:
        found = broker.transactions.described(name)
    except KafkaError as error:
        return {"transactional_id": name, "error_code": error.code, "transaction_start_time": 0}  # as Kafka
    topics = {each.topic for each in found.partitions}
    shown = allowed_names(broker.authorizer, request, AclOperation.DESCRIBE, ResourceType.TOPIC, topics)
    return {
        "transactional_id": name,
        "error_code": ErrorCode.none,
        "transaction_state": found.state.label,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": [
            {"topic": topic, "partitions": [each.partition for each in group]}
            for topic, group in groupby(sorted(found.partitions), attrgetter("topic"))
            if topic in shown
        ],
    }
