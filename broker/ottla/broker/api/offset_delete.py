"""OffsetDelete (47), version 0: deletes a group's committed offsets of some partitions (KIP-496).

Offsets of a topic to which a member of the group subscribes aren't deleted. The whole request is refused if the group
has members that aren't consumers.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithGroups, WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(
    key=47,
    versions=(0, 0),
    needs=(Right(AclOperation.DELETE, ResourceType.GROUP), Right(AclOperation.READ, ResourceType.TOPIC)),
)


class Parts(WithAuthorizer, WithGroups, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each partition, or one error code for the whole request."""
    if not broker.authorizer.allows(request, AclOperation.DELETE, ResourceType.GROUP, body.group_id):
        return {"error_code": ErrorCode.group_authorization_failed}
    names = (asked.name for asked in body.topics)
    readable = allowed_names(broker.authorizer, request, AclOperation.READ, ResourceType.TOPIC, names)
    topics: dict[str, dict[str, Any]] = {}
    wanted: list[tuple[str, int]] = []
    slots: list[dict[str, Any]] = []
    for asked in body.topics:
        topic = broker.image.topics.get(asked.name) if asked.name in readable else None
        error = ErrorCode.unknown_topic_or_partition
        if asked.name not in readable:
            error = ErrorCode.topic_authorization_failed
        answer = topics.setdefault(asked.name, {"name": asked.name, "partitions": []})
        for part in asked.partitions:
            slot = {"partition_index": part.partition_index, "error_code": error}
            answer["partitions"].append(slot)
            if topic is not None and part.partition_index in topic.partitions:
                wanted.append((asked.name, part.partition_index))
                slots.append(slot)
    try:
        codes = await broker.groups.delete_offsets(body.group_id, wanted)
    except KafkaError as error:
        return {"error_code": error.code}
    for slot, code in zip(slots, codes, strict=True):
        slot["error_code"] = code
    return {"error_code": ErrorCode.none, "topics": list(topics.values())}
