"""LeaveGroup (13), versions 0–5: removes members from a group.

Before version 3 a request names one member, and the answer's error is the member's. From version 3 on a request names
several members, also by their static ids alone (KIP-345).
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.group.effects import Leaver
from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(key=13, versions=(0, 5), needs=(Right(AclOperation.READ, ResourceType.GROUP),))


class Parts(WithAuthorizer, WithGroups, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each member."""
    if not broker.authorizer.allows(request, AclOperation.READ, ResourceType.GROUP, body.group_id):
        return {"error_code": ErrorCode.group_authorization_failed}
    if request.api_version < 3:
        leavers = [Leaver(body.member_id)]
    else:
        leavers = [Leaver(item.member_id, item.group_instance_id, item.reason) for item in body.members]
    try:
        answers = await broker.groups.leave(body.group_id, leavers)
    except KafkaError as error:
        return {"error_code": error.code}
    if request.api_version < 3:
        return {"error_code": answers[0]["error_code"]}
    return {"error_code": ErrorCode.none, "members": answers}
