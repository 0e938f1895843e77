"""DeleteRecords (key 21), versions 0–2: moves a log's start forward. Offset −1 means up to the high watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.registry import Api, RequestContext
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.node import Broker

API = Api(key=21, versions=(0, 2))


async def handle(broker: Broker, context: RequestContext, request: Any) -> dict[str, Any]:
    """Each partition's new low watermark, or its error."""
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = {"partition_index": asked.partition_index, "low_watermark": -1}
            try:
                partition = broker.partitions.find(topic.name, asked.partition_index)
                partition.check_leader_epoch(-1)
                answer["low_watermark"] = partition.delete_records(asked.offset)
            except KafkaError as error:
                answer["error_code"] = error.code
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}
