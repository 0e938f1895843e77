"""AlterPartitionReassignments (key 45), versions 0–1: moves replicas to other brokers, or cancels moves.

KIP-455. A partition whose `replicas` are null has its move cancelled. An error of one partition doesn't affect the
others. The answer comes when the controller has begun the moves; ListPartitionReassignments shows the moves that aren't
finished.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.bounded import gather_bounded
from ottla.broker.ports import WithIntents
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    topics = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": asked.partition_index, **NOT_ON_CLUSTER} for asked in topic.partitions],
        }
        for topic in body.topics
    ]
    return {**NOT_ON_CLUSTER, "responses": topics}


API = Api(
    key=45,
    versions=(0, 1),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    gaps=("A broker that isn't running and has no replica anywhere is unknown: INVALID_REPLICA_ASSIGNMENT.",),
    changes_metadata=True,
    refuse=_refuse,
)


async def handle(broker: WithIntents, request: Request, body: Any) -> dict[str, Any]:
    timeout_s = milliseconds(body.timeout) / 1000
    another_factor = body.allow_replication_factor_change

    async def move(name: str, asked: Any) -> dict[str, Any]:
        try:
            await broker.intents.reassign(name, asked.partition_index, asked.replicas, another_factor, timeout_s)
        except KafkaError as error:
            return {
                "partition_index": asked.partition_index,
                "error_code": error.code,
                "error_message": error.message or None,
            }
        return {"partition_index": asked.partition_index, "error_code": ErrorCode.none}

    all_asked = [(topic.name, asked) for topic in body.topics for asked in topic.partitions]
    results = iter(await gather_bounded(lambda one: move(*one), all_asked))
    responses = [{"name": topic.name, "partitions": [next(results) for _ in topic.partitions]} for topic in body.topics]
    return {
        "allow_replication_factor_change": another_factor,
        "error_message": None if responses else "",  # as Kafka
        "responses": responses,
    }
