"""SyncGroup (14), versions 0–5: the leader brings the assignment, everybody gets their part of it.

From version 5 on the protocol's type and name must be there and be the group's (KIP-559). Followers wait for the
leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.group.effects import Sync
from ottla.protocol.errors import ErrorCode, KafkaError

from .at_once import at_once
from .registry import Api, RequestContext, Response

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.node import Broker

API = Api(key=14, versions=(0, 5))


def handle(broker: Broker, context: RequestContext, request: Any) -> asyncio.Future[Response]:
    """Answers when the assignment is stored."""
    if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return at_once({"error_code": ErrorCode.inconsistent_group_protocol})
    sync = Sync(
        ticket=broker.groups.ticket(),
        member_id=request.member_id,
        generation=request.generation_id,
        assignments={part.member_id: part.assignment for part in request.assignments},
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
    )
    try:
        return broker.groups.sync(request.group_id, sync)
    except KafkaError as error:
        return at_once({"error_code": error.code})
