"""OffsetCommit (8), versions 2–10: commits a group's offsets.

Requests have topics' names before version 10, topics' ids from version 10 on (KIP-848). Unknown topics and partitions
are refused one by one, and the other offsets are committed. Requests of versions 2–4 may state a retention time. If a
member names a group that doesn't exist, the answer is GROUP_ID_NOT_FOUND from version 9 on, ILLEGAL_GENERATION before.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.group.shard import OffsetToCommit
from ottla.broker.ports import WithAuthorizer, WithGroups, WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .offsets_to_commit import names, refuse_all, sort

API = Api(
    key=8,
    versions=(2, 10),
    needs=(Right(AclOperation.READ, ResourceType.GROUP), Right(AclOperation.READ, ResourceType.TOPIC)),
    gaps=("members of KIP-848 groups are unknown, because there are no such groups yet",),
)


class Parts(WithAuthorizer, WithGroups, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each partition once the offsets are committed."""
    by_id, read = request.api_version >= 10, AclOperation.READ
    if not broker.authorizer.allows(request, read, ResourceType.GROUP, body.group_id):
        return refuse_all(body.topics, ErrorCode.group_authorization_failed, by_id=by_id)
    wanted = names(broker.image, body.topics, by_id=by_id)
    readable = allowed_names(broker.authorizer, request, read, ResourceType.TOPIC, wanted)
    found = sort(broker.image, body.topics, readable, by_id=by_id)
    return found.answered(await _commit(broker, request, body, found.offsets) if found.offsets else ())


async def _commit(broker: Parts, request: Request, body: Any, offsets: list[OffsetToCommit]) -> list[ErrorCode]:
    retention_ms = milliseconds(body.retention_time) if request.api_version <= 4 else -1
    try:
        return await broker.groups.commit(
            body.group_id,
            body.member_id,
            body.generation_id_or_member_epoch,
            body.group_instance_id,
            offsets,
            retention_ms,
        )
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.group_id_not_found and request.api_version < 9:
            code = ErrorCode.illegal_generation
        return [code] * len(offsets)
