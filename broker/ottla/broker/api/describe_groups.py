"""DescribeGroups (15), versions 0–6: state, protocol and members of classic groups.

A group that doesn't exist, or is of another type, is described as Dead. From version 6 on its description also has the
error GROUP_ID_NOT_FOUND (KIP-1043). The protocol and the members' metadata are shown only while the group is Stable.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.authorized_operations import NOT_ASKED
from ottla.broker.authorizer import allowed_names
from ottla.broker.group.classic import ClassicGroup
from ottla.broker.group.states import State
from ottla.broker.ports import WithAuthorizer, WithGroups
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(key=15, versions=(0, 6), needs=(Right(AclOperation.DESCRIBE, ResourceType.GROUP),))


class Parts(WithAuthorizer, WithGroups, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers the description of each group, with an error code of its own."""
    authorizer, kind = broker.authorizer, ResourceType.GROUP
    describable = allowed_names(authorizer, request, AclOperation.DESCRIBE, kind, body.groups)
    answers = [
        _describe(broker, request, group_id)
        if group_id in describable
        else {"group_id": group_id, "error_code": ErrorCode.group_authorization_failed}
        for group_id in body.groups
    ]
    for answer in answers:
        asked = body.include_authorized_operations and not answer.get("error_code")
        operations = authorizer.authorized_operations(request, kind, answer["group_id"]) if asked else NOT_ASKED
        answer["authorized_operations"] = operations
    return {"groups": answers}


def _describe(broker: Parts, request: Request, group_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"group_id": group_id}
    try:
        group = broker.groups.group(group_id)
    except KafkaError as error:
        return {**answer, "error_code": error.code}
    if isinstance(group, ClassicGroup):
        return {**answer, **_description(group)}
    answer["group_state"] = State.DEAD.value
    if request.api_version >= 6:
        answer["error_code"] = ErrorCode.group_id_not_found
        found = "not found" if group is None else "is not a classic group"
        answer["error_message"] = f"Group {group_id} {found}."
    return answer


def _description(group: ClassicGroup) -> dict[str, Any]:
    membership = group.membership
    stable = membership.state is State.STABLE
    return {
        "error_code": ErrorCode.none,
        "group_state": group.state_name,
        "protocol_type": group.protocol_type,
        "protocol_data": (membership.protocol or "") if stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(membership.protocol) if stable else b"",
                "member_assignment": member.assignment,
            }
            for member in membership.roster
        ],
    }
