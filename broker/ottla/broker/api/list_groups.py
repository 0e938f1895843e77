"""ListGroups (16), versions 0–5: the groups that this broker coordinates.

Filters by state (version 4 on) and type (version 5 on) ignore case.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

from .declaration import Api

API = Api(
    key=16,
    versions=(0, 5),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.CLUSTER), Right(AclOperation.DESCRIBE, ResourceType.GROUP)),
)


class Parts(WithAuthorizer, WithGroups, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers the groups, or COORDINATOR_LOAD_IN_PROGRESS while the groups of some partition aren't loaded yet."""
    try:
        groups = broker.groups.groups()
    except KafkaError as error:
        return {"error_code": error.code}
    describe, authorizer = AclOperation.DESCRIBE, broker.authorizer
    if not authorizer.allows(request, describe, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True):
        names = (group.group_id for group in groups)
        visible = allowed_names(authorizer, request, describe, ResourceType.GROUP, names, quiet=True)
        groups = [group for group in groups if group.group_id in visible]
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
