"""DeleteRecords (key 21), versions 0–2: moves a log's start forward. Offset −1 means up to the high watermark.

Answered when all replicas in sync have followed (Kafka: all that are alive), or the request's time is over.

Internal topics are refused (INVALID_TOPIC_EXCEPTION): what a coordinator knows stands nowhere else. So are topics that
are only compacted (POLICY_VIOLATION): of each of their keys the last record stays.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ottla.broker.api.registry import Api
from ottla.broker.request import Request
from ottla.metadata.image import INTERNAL_TOPICS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.broker.node import Broker
    from ottla.broker.partition import Partition

API = Api(key=21, versions=(0, 2), needs=(Right(AclOperation.DELETE, ResourceType.TOPIC),))
_PARTITIONS_PER_TURN = 20


async def handle(broker: Broker, request: Request, body: Any) -> dict[str, Any]:
    """Each partition's new low watermark, or its error."""
    topics = []
    waiting: list[tuple[dict[str, int], Partition, asyncio.Future[None]]] = []
    for topic in body.topics:
        answers = []
        for count, asked in enumerate(topic.partitions):
            if count % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)  # each writes where its leader epochs begin
            answer = {"partition_index": asked.partition_index, "low_watermark": -1}
            try:
                partition = _find(broker, topic.name, asked.partition_index)
                waiting.append((answer, partition, partition.deleted(partition.delete_records(asked.offset))))
            except KafkaError as error:
                answer["error_code"] = error.code
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    if waiting:
        await asyncio.wait([future for _, _, future in waiting], timeout=milliseconds(body.timeout) / 1000)
    for answer, partition, future in waiting:
        problem = future.exception() if future.done() else KafkaError(ErrorCode.request_timed_out)
        if isinstance(problem, KafkaError):
            answer["error_code"] = problem.code
        elif partition.leading is None:  # done, but others were waited for, and it leads no longer
            answer["error_code"] = ErrorCode.not_leader_or_follower
        else:
            answer["low_watermark"] = partition.low_watermark
    return {"topics": topics}


def _find(broker: Broker, topic: str, index: int) -> Partition:
    """The partition, which this broker leads. Raises KafkaError: whoever leads it, one of an internal topic is
    refused."""
    if topic in INTERNAL_TOPICS:
        known = broker.image.topics.get(topic)
        if known is not None and 0 <= index < len(known.partitions):
            raise KafkaError(ErrorCode.invalid_topic_exception)
    partition = broker.partitions.find(topic, index)
    partition.check_leader_epoch(-1)
    return partition
