"""DeleteGroups (42), versions 0–2: deletes empty groups and their offsets."""

from __future__ import annotations

from asyncio import gather
from typing import Any

from ottla.broker.ports import WithGroups
from ottla.broker.request import Request
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(key=42, versions=(0, 2), needs=(Right(AclOperation.DELETE, ResourceType.GROUP),))


async def handle(broker: WithGroups, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each group: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NOT_COORDINATOR …"""
    names = list(dict.fromkeys(body.groups_names))
    codes = await gather(*(broker.groups.delete_group(name) for name in names))
    return {
        "results": [{"group_id": name, "error_code": code} for name, code in zip(names, codes, strict=True)],
    }
