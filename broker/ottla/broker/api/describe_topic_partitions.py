"""DescribeTopicPartitions (key 75), version 0: topics in the order of their names, up to a limit of partitions.

KIP-966. If the limit cuts an answer off, its cursor names the partition with which the next answer begins. If the
request names no topics, all topics are described. If the topic in a request's cursor was deleted meanwhile, the answer
begins with the first partition of the next topic.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ottla.broker import authorized_operations
from ottla.broker.api.declaration import Api
from ottla.broker.ports import WithAuthorizer, WithConfig, WithImage
from ottla.broker.request import Request
from ottla.broker.topic_descriptions import describe_partition
from ottla.metadata.naming import check_topic_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(key=75, versions=(0, 0), needs=(Right(AclOperation.DESCRIBE, ResourceType.TOPIC),))


TOPICS_PER_TURN = 200  # about which the authorizer decides in one turn of the event loop


class Parts(WithAuthorizer, WithConfig, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    image = broker.image
    cursor = body.cursor
    first_name = "" if cursor is None else cursor.topic_name
    named = {topic.name for topic in body.topics}
    names = sorted(name for name in named or image.topics if name >= first_name)
    if cursor is not None and (cursor.partition_index < 0 or (named and cursor.topic_name not in named)):
        return {"topics": [_failed(topic.name, ErrorCode.invalid_request) for topic in body.topics]}
    left = max(1, min(body.response_partition_limit, broker.config.get_int("max.request.partition.size.limit")))
    topics: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []  # the topics that the client names and may not describe, existing or not
    for number, name in enumerate(names, 1):
        if broker.authorizer.enforced and not number % TOPICS_PER_TURN:
            await asyncio.sleep(0)
        if not broker.authorizer.allows(request, AclOperation.DESCRIBE, ResourceType.TOPIC, name, quiet=not named):
            if named:
                refused.append(_failed(name, ErrorCode.topic_authorization_failed))
            continue
        if left == 0:
            cursor_behind = {"topic_name": name, "partition_index": 0}
            return {"topics": topics + refused, "next_cursor": cursor_behind}
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_unknown(broker, request, name))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        last = min(len(topic.partitions), first + left)
        partitions = []
        for index in range(first, last):
            partition = topic.partitions[index]
            described = describe_partition(partition, image.brokers, request.listener)
            described["eligible_leader_replicas"] = partition.elr
            described["last_known_elr"] = partition.last_known_elr
            partitions.append(described)
        left -= len(partitions)
        topics.append(
            {
                "name": name,
                "topic_id": topic.id,
                "is_internal": topic.internal,
                "partitions": partitions,
                "topic_authorized_operations": _operations(broker, request, name),
            }
        )
        if last < len(topic.partitions) and first <= last:
            return {"topics": topics + refused, "next_cursor": {"topic_name": name, "partition_index": last}}
    return {"topics": topics + refused, "next_cursor": None}


def _operations(broker: Parts, request: Request, topic: str) -> int:
    return broker.authorizer.authorized_operations(request, ResourceType.TOPIC, topic)


def _unknown(broker: Parts, request: Request, name: str) -> dict[str, Any]:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return _failed(name, error.code)
    answer = _failed(name, ErrorCode.unknown_topic_or_partition)
    return answer | {"topic_authorized_operations": _operations(broker, request, name)}


def _failed(name: str, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "partitions": [],
        "topic_authorized_operations": authorized_operations.NOT_ASKED,
    }
