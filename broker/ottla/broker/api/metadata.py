"""Metadata (key 3), versions 0–13: the topics, and the brokers with their addresses on the client's listener.

In version 0 an empty list asks for all topics, in later versions null does. From version 12 on a request may have topic
ids; its names are then ignored, as in Kafka. Every broker serves administrators' requests, so the answer names the
answering broker as controller.

Topics that the client names may be created (`auto.create.topics.enable`, and the request's flag from version 4 on).
Unlike in Kafka, the answer waits for the creation, so that the client needn't ask again.

When a partition's leader dies, its clients ask at once for the new leader. If the answer still names the dead leader,
they ask again only after a second. So answers about topics that the client names wait for the election
(`awaited_elections.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from ottla.broker import ports
from ottla.broker.api.declaration import Api
from ottla.broker.authorized_operations import NOT_ASKED, on_cluster
from ottla.broker.authorizer import allowed_names
from ottla.broker.bounded import gather_bounded
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.request import Request
from ottla.broker.topic_descriptions import NAMELESS, controller_for_clients, reachable_brokers
from ottla.metadata.image import INTERNAL_TOPICS, Topic
from ottla.metadata.intents.topics import NewTopic
from ottla.metadata.naming import METADATA_TOPIC, check_topic_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

logger = logging.getLogger(__name__)

API = Api(
    key=3,
    versions=(0, 13),
    needs=(
        Right(AclOperation.DESCRIBE, ResourceType.TOPIC),
        Right(AclOperation.CREATE, ResourceType.TOPIC),
        Right(AclOperation.CREATE, ResourceType.CLUSTER),
    ),
)
FIRST_VERSION_BY_ID = 12
OPERATIONS = "topic_authorized_operations"
CREATION_WAIT_SECONDS = 2.0
TOPICS_PER_TURN = 200  # about which the authorizer decides in one turn of the event loop


class Parts(
    ports.WithAppliedRevisions,
    ports.WithAuthorizer,
    ports.WithAwaitedElections,
    ports.WithConfig,
    ports.WithEncodedTopics,
    ports.WithFollower,
    ports.WithId,
    ports.WithImage,
    ports.WithIntents,
    ports.WithInternalTopics,
    Protocol,
): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    asked = body.topics
    if asked and (invalid := _refusal(asked, request.api_version)) is not None:
        return invalid
    refused: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    if asked is None or (request.api_version == 0 and not asked):
        topics = await _visible(broker, request, list(broker.image.topics.values()))
    elif any(topic.topic_id for topic in asked):
        ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id)
        found_by_id = [topic for topic_id in ids if (topic := broker.image.topics_by_id.get(topic_id)) is not None]
        describable = _describable(broker, request, [topic.name for topic in found_by_id])
        topics = [topic for topic in found_by_id if topic.name in describable]
        refused = [_refused(None, topic.id) for topic in found_by_id if topic.name not in describable]
        missing = [_unknown_id(topic_id) for topic_id in ids if topic_id not in broker.image.topics_by_id]
    else:
        names = list(dict.fromkeys(topic.name for topic in asked))
        describable = _describable(broker, request, names)
        refused = [_refused(name, NAMELESS) for name in names if name not in describable]
        names = [name for name in names if name in describable]
        create = body.allow_auto_topic_creation and broker.config.get_bool("auto.create.topics.enable")
        if create:
            kept = _creatable(broker, request, names)
            refused += [_refused(name, NAMELESS) for name in names if name not in kept]
            names = [name for name in names if name in kept]
        found = await _find_all(broker, request, names, create)
        topics = [topic for topic in found if isinstance(topic, Topic)]
        missing = [
            {
                "error_code": code,
                "name": name,
                "is_internal": name in INTERNAL_TOPICS,
                OPERATIONS: _operations(broker, request, body, name),
            }
            for name, code in zip(names, found, strict=True)
            if isinstance(code, ErrorCode)
        ]
    if asked and topics:
        named = {topic.id: range(len(topic.partitions)) for topic in topics}
        await broker.awaited_elections.settled(named, request.pending)
        topics = [broker.image.topics_by_id.get(topic.id, topic) for topic in topics]
    image = broker.image
    encoded: list[Any] = []
    if body.include_topic_authorized_operations:
        for topic in topics:
            operations = _operations(broker, request, body, topic.name)
            encoded += broker.encoded_topics.of([topic], image, request.listener, request.api_version, operations)
    else:
        encoded = broker.encoded_topics.of(topics, image, request.listener, request.api_version, NOT_ASKED)
    return {
        "brokers": reachable_brokers([*image.brokers.values(), *broker.awaited_elections.just_died], request.listener),
        "cluster_id": image.cluster_id,
        "controller_id": controller_for_clients(image, broker.id),
        "topics": [*encoded, *missing, *refused],
        "cluster_authorized_operations": on_cluster(broker.authorizer, request)
        if getattr(body, "include_cluster_authorized_operations", False)
        else NOT_ASKED,
    }


async def _visible(broker: Parts, request: Request, topics: list[Topic]) -> list[Topic]:
    """The topics that the client may describe. Other requests are served in between, because there may be thousands of
    topics about which the authorizer hasn't decided yet."""
    if not broker.authorizer.enforced:
        return topics
    visible: list[Topic] = []
    for start in range(0, len(topics), TOPICS_PER_TURN):
        if start:
            await asyncio.sleep(0)
        some = topics[start : start + TOPICS_PER_TURN]
        names = _describable(broker, request, [topic.name for topic in some], quiet=True)
        visible += [topic for topic in some if topic.name in names]
    return visible


def _describable(broker: Parts, request: Request, names: list[str], *, quiet: bool = False) -> Set[str]:
    return allowed_names(broker.authorizer, request, AclOperation.DESCRIBE, ResourceType.TOPIC, names, quiet=quiet)


def _creatable(broker: Parts, request: Request, names: list[str]) -> Set[str]:
    """The names of topics that exist, and of topics that the client may create."""
    create, authorizer, present = AclOperation.CREATE, broker.authorizer, broker.image.topics
    absent = [name for name in names if name not in present]
    if not absent or authorizer.allows(request, create, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True):
        return set(names)
    refused = set(absent) - allowed_names(authorizer, request, create, ResourceType.TOPIC, absent)
    return set(names) - refused


def _operations(broker: Parts, request: Request, body: Any, topic: str) -> int:
    """The operations that the client may do on the topic, if the request asks for them."""
    if not body.include_topic_authorized_operations:
        return NOT_ASKED
    return broker.authorizer.authorized_operations(request, ResourceType.TOPIC, topic)


def _refused(name: str | None, topic_id: UUID) -> dict[str, Any]:
    """The answer for a topic that the client may not describe or create: it doesn't say whether the topic exists. A
    topic that the client names by its id has no name in the answer."""
    return {
        "error_code": ErrorCode.topic_authorization_failed,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        OPERATIONS: NOT_ASKED,
    }


def _unknown_id(topic_id: UUID) -> dict[str, Any]:
    return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, OPERATIONS: NOT_ASKED}


def _refusal(asked: Any, version: int) -> dict[str, Any] | None:
    """The answer to an invalid request, with an error for each topic; None for a valid request. A request is invalid if
    a topic has neither a name nor an id, or has an id before version 12."""
    if version < FIRST_VERSION_BY_ID:
        broken, code = any(topic.topic_id or topic.name is None for topic in asked), ErrorCode.invalid_request
    else:
        broken = any(topic.name is None and not topic.topic_id for topic in asked)
        code = ErrorCode.unknown_server_error
    if not broken:
        return None
    topics = [
        {"error_code": code, "name": t.name or "", "topic_id": t.topic_id or NAMELESS, OPERATIONS: NOT_ASKED}
        for t in asked
    ]
    return {"brokers": [], "topics": topics, "cluster_authorized_operations": NOT_ASKED}


async def _find_all(broker: Parts, request: Request, names: list[str], create: bool) -> list[Topic | ErrorCode]:
    unknown = [name for name in names if name not in broker.image.topics]
    deadline = asyncio.get_running_loop().time() + CREATION_WAIT_SECONDS
    made = dict(
        zip(unknown, await gather_bounded(partial(_find, broker, request, create, deadline), unknown), strict=True)
    )
    if any(isinstance(topic, Topic) for topic in made.values()):
        await broker.applied_revisions.everywhere()  # the client's next requests go to the new topics' leaders
    return [broker.image.topics.get(name) or made.get(name, ErrorCode.unknown_topic_or_partition) for name in names]


async def _find(broker: Parts, request: Request, create: bool, deadline: float, name: str) -> Topic | ErrorCode:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    if not create or name == METADATA_TOPIC:
        return ErrorCode.unknown_topic_or_partition
    if name == OFFSETS_TOPIC:
        broker.internal_topics.want(name)  # with the partition count and replication factor for this topic
    elif name in INTERNAL_TOPICS or not await _create(broker, request, name, deadline):
        return ErrorCode.unknown_topic_or_partition
    try:
        return await broker.follower.wait(lambda image: image.topics.get(name), _left(deadline))
    except TimeoutError:
        return ErrorCode.unknown_topic_or_partition


def _left(deadline: float) -> float:
    return max(0.0, deadline - asyncio.get_running_loop().time())


async def _create(broker: Parts, request: Request, name: str, deadline: float) -> bool:
    """Creates a topic. Returns whether it exists or will exist, as far as this broker knows."""
    count, factor = broker.config.get_int("num.partitions"), broker.config.get_int("default.replication.factor")
    topic = NewTopic(name, count, factor)
    try:
        if request.charge is not None:
            await broker.intents.create_topic(topic, _left(deadline), validate_only=True)
            if not request.charge.affords(count):
                return False
        await broker.intents.create_topic(topic, _left(deadline))
    except KafkaError as error:
        if error.code is ErrorCode.topic_already_exists:
            return True
        logger.warning("%s can't be created automatically: %s", name, error)
        return False
    return True
