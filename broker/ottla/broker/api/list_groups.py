"""ListGroups (16), versions 0–5: the groups that this broker coordinates.

Filters by state (version 4 on) and type (version 5 on) ignore case; every group is a classic one.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.ports import WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(
    key=16,
    versions=(0, 5),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.CLUSTER), Right(AclOperation.DESCRIBE, ResourceType.GROUP)),
)

CLASSIC = "classic"


async def handle(broker: WithGroups, request: Request, body: Any) -> dict[str, Any]:
    """Answers the groups, or COORDINATOR_LOAD_IN_PROGRESS while some of them aren't loaded yet."""
    try:
        groups = broker.groups.groups()
    except KafkaError as error:
        return {"error_code": error.code}
    states = {name.strip().lower() for name in body.states_filter}
    types = {name.strip().lower() for name in body.types_filter}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.roster.protocol_type or "",
                "group_state": group.state.value,
                "group_type": CLASSIC,
            }
            for group in groups
            if (not states or group.state.value.lower() in states) and (not types or CLASSIC in types)
        ],
    }
