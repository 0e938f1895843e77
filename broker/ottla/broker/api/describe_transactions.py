"""DescribeTransactions (65), version 0: the states of transactional ids, as their coordinator has committed them.

An id that doesn't exist is answered TRANSACTIONAL_ID_NOT_FOUND, an empty id INVALID_REQUEST.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from ottla.broker.ports import WithTransactions
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


async def handle(broker: WithTransactions, request: Request, body: Any) -> dict[str, Any]:
    """Answers each id's description, with an error code of its own."""
    return {"transaction_states": [_described(broker, name) for name in body.transactional_ids]}


def _described(broker: WithTransactions, name: str) -> dict[str, Any]:
    try:
        found = broker.transactions.described(name)
    except KafkaError as error:
        return {"transactional_id": name, "error_code": error.code, "transaction_start_time": 0}  # as Kafka
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
        ],
    }
