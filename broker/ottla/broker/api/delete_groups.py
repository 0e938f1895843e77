"""DeleteGroups (42), versions 0–2: deletes empty groups and their offsets."""

from __future__ import annotations

from asyncio import gather
from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(key=42, versions=(0, 2), needs=(Right(AclOperation.DELETE, ResourceType.GROUP),))


class Parts(WithAuthorizer, WithGroups, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each group: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NOT_COORDINATOR …"""
    names = list(dict.fromkeys(body.groups_names))
    deletable = allowed_names(broker.authorizer, request, AclOperation.DELETE, ResourceType.GROUP, body.groups_names)
    wanted = [name for name in names if name in deletable]
    codes = dict.fromkeys(names, ErrorCode.group_authorization_failed)
    codes |= zip(wanted, await gather(*(broker.groups.delete_group(name) for name in wanted)), strict=True)
    return {"results": [{"group_id": name, "error_code": code} for name, code in codes.items()]}
