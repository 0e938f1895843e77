"""SyncGroup (14), versions 0–5: the group's leader sends all assignments, and each member gets its own.

The other members' requests wait for the leader's. From version 5 on a request must state the group's protocol type and
protocol (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.group.effects import Sync
from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .at_once import at_once
from .declaration import Api, Response

if TYPE_CHECKING:
    import asyncio

API = Api(key=14, versions=(0, 5), needs=(Right(AclOperation.READ, ResourceType.GROUP),))


class Parts(WithAuthorizer, WithGroups, Protocol): ...


def handle(broker: Parts, request: Request, body: Any) -> asyncio.Future[Response]:
    """Answers when the assignments are committed."""
    if not broker.authorizer.allows(request, AclOperation.READ, ResourceType.GROUP, body.group_id):
        return at_once({"error_code": ErrorCode.group_authorization_failed})
    if request.api_version >= 5 and (body.protocol_type is None or body.protocol_name is None):
        return at_once({"error_code": ErrorCode.inconsistent_group_protocol})
    sync = Sync(
        ticket=broker.groups.ticket(),
        member_id=body.member_id,
        generation=body.generation_id,
        assignments={part.member_id: part.assignment for part in body.assignments},
        instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocol=body.protocol_name,
    )
    try:
        return broker.groups.sync(body.group_id, sync)
    except KafkaError as error:
        return at_once({"error_code": error.code})
