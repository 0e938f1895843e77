"""Heartbeat (12), versions 0–4: a group member shows that it is alive, and learns whether it must join again.

While the coordinator loads the group, every heartbeat is answered without an error, so that members don't leave.
Source: Kafka's GroupCoordinatorService.heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .at_once import at_once
from .declaration import Api, Response

if TYPE_CHECKING:
    import asyncio

API = Api(key=12, versions=(0, 4), needs=(Right(AclOperation.READ, ResourceType.GROUP),))


class Parts(WithAuthorizer, WithGroups, Protocol): ...


def handle(broker: Parts, request: Request, body: Any) -> asyncio.Future[Response]:
    """Answers an error code: REBALANCE_IN_PROGRESS tells the member to join again."""
    if not broker.authorizer.allows(request, AclOperation.READ, ResourceType.GROUP, body.group_id):
        return at_once({"error_code": ErrorCode.group_authorization_failed})
    code = broker.groups.heartbeat(body.group_id, body.member_id, body.generation_id, body.group_instance_id)
    return at_once({"error_code": code})
