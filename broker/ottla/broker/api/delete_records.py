"""DeleteRecords (key 21), versions 0–2: raises the log start offset. Offset −1 means up to the high watermark.

The answer comes when all in-sync replicas (in Kafka, all live replicas) have raised their log start offsets, or the
request's time-out is over.

Internal topics are refused (INVALID_TOPIC_EXCEPTION), because a coordinator's state is stored nowhere else. Topics that
are only compacted are refused, too (POLICY_VIOLATION), because compaction keeps the last record of each key.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import refused
from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithImage, WithPartitions
from ottla.broker.request import Request
from ottla.metadata.image import INTERNAL_TOPICS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

API = Api(key=21, versions=(0, 2), needs=(Right(AclOperation.DELETE, ResourceType.TOPIC),))
_PARTITIONS_PER_TURN = 20


class Parts(WithAuthorizer, WithImage, WithPartitions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers each partition's new low watermark, or its error."""
    topics = []
    waiting: list[tuple[dict[str, int], Partition, asyncio.Future[None]]] = []
    names = (topic.name for topic in body.topics)
    deletable = allowed_names(broker.authorizer, request, AclOperation.DELETE, ResourceType.TOPIC, names)
    for topic in body.topics:
        answers = []
        for count, asked in enumerate(topic.partitions):
            if count % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)  # each deletion wakes the partition's waiting fetches
            answer = {"partition_index": asked.partition_index, "low_watermark": -1}
            try:
                if topic.name not in deletable:
                    raise refused(ResourceType.TOPIC)
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
        elif partition.leading is None:  # this broker lost the leadership while the request waited for other partitions
            answer["error_code"] = ErrorCode.not_leader_or_follower
        else:
            answer["low_watermark"] = partition.low_watermark
    return {"topics": topics}


def _find(broker: Parts, topic: str, index: int) -> Partition:
    """The partition, if this broker leads it. Raises KafkaError, also for each partition of an internal topic,
    whichever broker leads it."""
    if topic in INTERNAL_TOPICS:
        known = broker.image.topics.get(topic)
        if known is not None and 0 <= index < len(known.partitions):
            raise KafkaError(ErrorCode.invalid_topic_exception)
    partition = broker.partitions.find(topic, index)
    partition.check_leader_epoch(-1)
    return partition
