"""CreatePartitions (key 37), versions 0–3.

An error of one topic doesn't affect the others. The answer comes when the image of every live broker shows the
partitions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.authorizer import allowed_names
from ottla.broker.bounded import gather_bounded
from ottla.broker.ports import WithAuthorizer, WithImage, WithIntents
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(key=37, versions=(0, 3), needs=(Right(AclOperation.ALTER, ResourceType.TOPIC),), changes_metadata=True)
FIRST_STRICT_VERSION = 3  # the first version that is refused when the client's quota of changes is used up


class Parts(WithAuthorizer, WithImage, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    counts = Counter(topic.name for topic in body.topics)
    timeout_s = milliseconds(body.timeout) / 1000
    once = [topic for topic in body.topics if counts[topic.name] == 1]
    names = [topic.name for topic in once]
    alterable = allowed_names(broker.authorizer, request, AclOperation.ALTER, ResourceType.TOPIC, names)
    refusals = [
        {"name": name, "error_code": ErrorCode.topic_authorization_failed} for name in names if name not in alterable
    ]
    once = [topic for topic in once if topic.name in alterable]
    results = await gather_bounded(lambda topic: _grow(broker, request, topic, timeout_s, body.validate_only), once)
    duplicates = [
        {"name": name, "error_code": ErrorCode.invalid_request, "error_message": "Duplicate topic name."}
        for name, count in counts.items()
        if count > 1
    ]
    return {"results": [*duplicates, *refusals, *results]}


async def _grow(broker: Parts, request: Request, topic: Any, timeout_s: float, validate_only: bool) -> dict[str, Any]:
    assignments = None if topic.assignments is None else [assigned.broker_ids for assigned in topic.assignments]
    try:
        if request.charge is not None:  # only a request that could be carried out is charged
            await broker.intents.create_partitions(topic.name, topic.count, assignments, timeout_s, validate_only=True)
            known = broker.image.topics.get(topic.name)
            added = topic.count - len(known.partitions) if known is not None else topic.count
            request.charge.mutates(max(added, 0), strict=request.api_version >= FIRST_STRICT_VERSION)
        await broker.intents.create_partitions(
            topic.name, topic.count, assignments, timeout_s, validate_only=validate_only
        )
    except KafkaError as error:
        return {"name": topic.name, "error_code": error.code, "error_message": error.message or None}
    return {"name": topic.name, "error_code": ErrorCode.none}
