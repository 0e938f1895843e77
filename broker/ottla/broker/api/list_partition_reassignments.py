"""ListPartitionReassignments (key 46), version 0: partitions that are being reassigned, with their replicas."""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithImage
from ottla.broker.request import Request
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right. It names the partitions of the request, as in Kafka."""
    topics = [
        {"name": topic.name, "partitions": [{"partition_index": index} for index in topic.partition_indexes]}
        for topic in body.topics or ()
    ]
    return {**NOT_ON_CLUSTER, "topics": topics}


API = Api(key=46, versions=(0, 0), needs=(Right(AclOperation.DESCRIBE, ResourceType.CLUSTER),), refuse=_refuse)


async def handle(broker: WithImage, request: Request, body: Any) -> dict[str, Any]:
    image = broker.image
    if body.topics is None:
        asked = [(topic, topic.partitions) for topic in image.topics.values()]
    else:
        found = [(image.topics.get(wanted.name), wanted.partition_indexes) for wanted in body.topics]
        asked = [(topic, indexes) for topic, indexes in found if topic is not None]
    topics = []
    for topic, indexes in asked:
        moving = [
            {
                "partition_index": index,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding,
                "removing_replicas": partition.removing,
            }
            for index in indexes
            if (partition := topic.partitions.get(index)) is not None and (partition.adding or partition.removing)
        ]
        if moving:
            topics.append({"name": topic.name, "partitions": moving})
    return {"topics": topics}
