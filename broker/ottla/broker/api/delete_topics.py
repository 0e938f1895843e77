"""DeleteTopics (key 20), versions 1–6: deletes topics by name, from version 6 on also by id.

The answer comes when no live broker's image shows the topics any more; by then no live broker serves their partitions.
After the answer, a topic of the same name can be created. The new topic has another id, and shares nothing with the
deleted one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any, Protocol
from uuid import UUID

from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import MESSAGES
from ottla.broker.authorizer import allowed_names
from ottla.broker.bounded import gather_bounded
from ottla.broker.ports import WithAuthorizer, WithConfig, WithImage, WithIntents
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

API = Api(key=20, versions=(1, 6), needs=(Right(AclOperation.DELETE, ResourceType.TOPIC),), changes_metadata=True)
FIRST_VERSION_WITH_OWN_ERROR = 3
FIRST_STRICT_VERSION = 5  # the first version that is refused when the client's quota of changes is used up

Answer = dict[str, Any]


class Parts(WithAuthorizer, WithConfig, WithImage, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    asked = _asked(request.api_version, body)
    if not broker.config.get_bool("delete.topic.enable"):
        old = request.api_version < FIRST_VERSION_WITH_OWN_ERROR
        code = ErrorCode.invalid_request if old else ErrorCode.topic_deletion_disabled
        return {"responses": [_answer(name, topic_id, code) for name, topic_id in asked]}
    answers, topics = _resolved(broker, request, asked)
    timeout_s = milliseconds(body.timeout) / 1000
    answers += await gather_bounded(
        lambda topic: _delete(broker, request, topic[1], topic[0], timeout_s), list(topics.items())
    )
    return {"responses": answers}


def _asked(version: int, body: Any) -> list[tuple[str | None, UUID | None]]:
    if version < 6:
        return [(name, None) for name in body.topic_names]
    return [(topic.name, topic.topic_id or None) for topic in body.topics]


def _resolved(
    broker: Parts, request: Request, asked: list[tuple[str | None, UUID | None]]
) -> tuple[list[Answer], dict[UUID, str]]:
    """The answers for topics that can't be deleted, and the topics (id → name) to be deleted."""
    image = broker.image
    answers: list[Answer] = []
    topics: dict[UUID, str] = {}
    names: Counter[str] = Counter()
    ids: Counter[UUID] = Counter()
    for name, topic_id in asked:
        if name is not None and topic_id is not None:
            message = "You may not specify both topic name and topic id."
            answers.append(_answer(name, topic_id, ErrorCode.invalid_request, message))
        elif name is not None:
            names[name] += 1
        elif topic_id is not None:
            ids[topic_id] += 1
        else:
            message = "Neither topic name nor id were specified."
            answers.append(_answer(None, None, ErrorCode.invalid_request, message))
    known = [topic.name for topic_id in ids if (topic := image.topics_by_id.get(topic_id)) is not None]
    describable, deletable = _allowed(broker, request, [*names, *known])
    for topic_id, count in ids.items():
        topic = image.topics_by_id.get(topic_id)
        if count > 1:
            answers.append(_answer(None, topic_id, ErrorCode.invalid_request, "Duplicate topic id."))
        elif topic is None:
            message = "This server does not host this topic ID."
            answers.append(_answer(None, topic_id, ErrorCode.unknown_topic_id, message))
        elif topic.name not in deletable:
            name = topic.name if topic.name in describable else None
            answers.append(_not_allowed(name, topic_id))
        else:
            topics[topic_id] = topic.name
    for name, count in names.items():
        topic = image.topics.get(name)
        if count > 1:
            answers.append(_answer(name, None, ErrorCode.invalid_request, "Duplicate topic name."))
        elif name not in describable:
            answers.append(_not_allowed(name, None))
        elif topic is None:
            message = "This server does not host this topic-partition."
            answers.append(_answer(name, None, ErrorCode.unknown_topic_or_partition, message))
        elif name not in deletable:
            answers.append(_not_allowed(name, None))
        elif topic.id in topics:
            del topics[topic.id]
            message = "The provided topic name maps to an ID that was already supplied."
            answers.append(_answer(name, topic.id, ErrorCode.invalid_request, message))
        else:
            topics[topic.id] = name
    return answers, topics


def _allowed(broker: Parts, request: Request, names: list[str]) -> tuple[Set[str], Set[str]]:
    """The names of the topics that the client may describe, and of those that the client may delete."""
    authorizer, kind = broker.authorizer, ResourceType.TOPIC
    if authorizer.allows(request, AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True):
        return set(names), set(names)
    describable = allowed_names(authorizer, request, AclOperation.DESCRIBE, kind, names)
    return describable, allowed_names(authorizer, request, AclOperation.DELETE, kind, names)


def _not_allowed(name: str | None, topic_id: UUID | None) -> Answer:
    code, message = ErrorCode.topic_authorization_failed, MESSAGES[ResourceType.TOPIC]
    return _answer(name, topic_id, code, message)


async def _delete(broker: Parts, request: Request, name: str, topic_id: UUID, timeout_s: float) -> Answer:
    try:
        if request.charge is not None and (topic := broker.image.topics_by_id.get(topic_id)) is not None:
            request.charge.mutates(len(topic.partitions), strict=request.api_version >= FIRST_STRICT_VERSION)
        await broker.intents.delete_topic(topic_id, timeout_s)
    except KafkaError as error:
        return _answer(name, topic_id, error.code, error.message or None)
    return _answer(name, topic_id, ErrorCode.none)


def _answer(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None = None) -> Answer:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
