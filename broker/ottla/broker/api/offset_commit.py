"""OffsetCommit (8), versions 2–10: commits a group's offsets.

Requests have topics' names before version 10, topics' ids from version 10 on (KIP-848). Unknown topics and partitions
are refused one by one, and the other offsets are committed. Requests of versions 2–4 may state a retention time. If a
member names a group that doesn't exist, the answer is GROUP_ID_NOT_FOUND from version 9 on, ILLEGAL_GENERATION before.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.group.shard import OffsetToCommit
from ottla.broker.ports import WithGroups, WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .offsets_to_commit import sort

API = Api(
    key=8,
    versions=(2, 10),
    needs=(Right(AclOperation.READ, ResourceType.GROUP), Right(AclOperation.READ, ResourceType.TOPIC)),
    gaps=("members of KIP-848 groups are unknown, because there are no such groups yet",),
)


class Parts(WithGroups, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each partition once the offsets are committed."""
    found = sort(broker.image, body.topics, by_id=request.api_version >= 10)
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
