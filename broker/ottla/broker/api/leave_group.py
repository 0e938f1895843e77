"""LeaveGroup (13), versions 0–5: members leave. From version 3 on several at once, also by static id alone (KIP-345).

Before version 3 a request names one member, whose error is that of the answer.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.group.effects import Leaver
from ottla.broker.ports import WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(key=13, versions=(0, 5), needs=(Right(AclOperation.READ, ResourceType.GROUP),))


async def handle(broker: WithGroups, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each member."""
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
