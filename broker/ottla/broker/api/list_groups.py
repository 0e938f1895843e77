"""ListGroups (16), versions 0–5: the groups that this broker coordinates.

Filters by state (version 4 on) and type (version 5 on) ignore case.
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


async def handle(broker: WithGroups, request: Request, body: Any) -> dict[str, Any]:
    """Answers the groups, or COORDINATOR_LOAD_IN_PROGRESS while the groups of some partition aren't loaded yet."""
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
                "protocol_type": group.protocol_type,
                "group_state": group.state_name,
                "group_type": group.type.value,
            }
            for group in groups
            if (not states or group.state_name.lower() in states) and (not types or group.type.value in types)
        ],
    }
