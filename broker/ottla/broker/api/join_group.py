"""JoinGroup (11), versions 0–9: a client becomes a member of a group, or joins its next generation.

From version 4 on an unknown dynamic member first gets MEMBER_ID_REQUIRED and an id (KIP-394). From version 9 on, if the
leader is a static member that comes back, its answer says that no assignment is needed (KIP-814). Version 0 has no
rebalance time-out, so the session time-out takes its place. The answer may take as long as the group's rebalance
time-out. Member metadata and protocol types are opaque.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from ottla.broker.group.effects import Answer, Join
from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .at_once import at_once
from .declaration import Api, Response

API = Api(key=11, versions=(0, 9), needs=(Right(AclOperation.READ, ResourceType.GROUP),))


class Parts(WithAuthorizer, WithGroups, Protocol): ...


def handle(broker: Parts, request: Request, body: Any) -> asyncio.Future[Response]:
    """Answers when the generation begins. The group's leader computes the assignment from the answer's `members`."""
    version = request.api_version
    if not broker.authorizer.allows(request, AclOperation.READ, ResourceType.GROUP, body.group_id):
        return at_once(_response(version, {"error_code": ErrorCode.group_authorization_failed, "member_id": ""}))
    session_timeout_ms = milliseconds(body.session_timeout)
    join = Join(
        ticket=broker.groups.ticket(),
        member_id=body.member_id,
        new_member_id="" if body.member_id else f"{body.group_instance_id or request.client_id or ''}-{uuid4()}",
        protocol_type=body.protocol_type,
        protocols=tuple({protocol.name: protocol.metadata for protocol in body.protocols}.items()),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms if version == 0 else milliseconds(body.rebalance_timeout),
        instance_id=body.group_instance_id,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        reason=body.reason,
        requires_known_id=version >= 4,
        skips_assignment=version >= 9,
    )
    try:
        joined = broker.groups.join(body.group_id, join)
    except KafkaError as error:
        return at_once(_response(version, {"error_code": error.code, "member_id": body.member_id}))
    response: asyncio.Future[Response] = joined.get_loop().create_future()
    joined.add_done_callback(partial(_joined, response, version))
    return response


def _joined(response: asyncio.Future[Response], version: int, joined: asyncio.Future[Answer]) -> None:
    if joined.cancelled():
        response.cancel()
    else:
        response.set_result(_response(version, joined.result()))


def _response(version: int, answer: Answer) -> Response:
    response = {"generation_id": -1, **answer}
    response["protocol_name"] = response.get("protocol_name") or (None if version >= 7 else "")
    response["leader"] = response.get("leader") or ""
    return response
