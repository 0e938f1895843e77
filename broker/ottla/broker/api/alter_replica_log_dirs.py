"""AlterReplicaLogDirs (key 34), versions 1–2: moves replicas to another log directory of this broker."""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithMoves
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    code = NOT_ON_CLUSTER["error_code"]
    return {
        "results": [
            {
                "topic_name": topic.name,
                "partitions": [{"partition_index": index, "error_code": code} for index in topic.partitions],
            }
            for directory in body.dirs
            for topic in directory.topics
        ]
    }


API = Api(
    key=34,
    versions=(1, 2),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    refuse=_refuse,
    gaps=(
        "A directory can't be chosen for a replica that the broker doesn't have yet; Kafka remembers the choice.",
        "A cordoned directory gets no replicas, but a broker whose directories are all cordoned still takes "
        "replicas that are placed on it; Kafka places none there.",
    ),
)


async def handle(broker: WithMoves, request: Request, body: Any) -> dict[str, Any]:
    """Begins the moves of the replicas; answers an error code for each replica."""
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in body.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = ErrorCode.none
                try:
                    broker.moves.begin(topic.name, index, directory.path)
                except KafkaError as error:
                    code = error.code
                results.setdefault(topic.name, []).append({"partition_index": index, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": found} for name, found in results.items()]}
