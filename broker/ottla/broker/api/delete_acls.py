"""DeleteAcls (key 31), versions 1–3: deletes the ACLs that match filters, and lists them.

The answer comes when every registered broker decides without these ACLs, or with REQUEST_TIMED_OUT. An ACL that several
filters match is listed for each of them. Without an authorizer the answer is SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.acl_requests import (
    DISABLED,
    MALFORMED,
    entry_fields,
    filter_of,
    pattern_fields,
)
from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.in_force import TIMEOUT_S, in_force
from ottla.broker.ports import WithAppliedRevisions, WithAuthorizer, WithIntents
from ottla.broker.request import Request
from ottla.protocol.acls import AclBinding
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return {"filter_results": [NOT_ON_CLUSTER for _ in body.filters]}


API = Api(
    key=31,
    versions=(1, 3),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    changes_metadata=True,
    refuse=_refuse,
)


class Parts(WithAppliedRevisions, WithAuthorizer, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers the deleted ACLs, filter by filter."""
    if not broker.authorizer.enforced:
        return {"filter_results": [DISABLED for _ in body.filters]}
    filters = [chosen for asked in body.filters if (chosen := filter_of(asked)) is not None]
    if len(filters) < len(body.filters):
        return {"filter_results": [MALFORMED for _ in body.filters]}

    def chosen_by_any(binding: AclBinding) -> bool:
        return any(chosen.matches(binding) for chosen in filters)

    try:
        async with in_force(broker.applied_revisions):
            deleted = await broker.intents.delete_acls(chosen_by_any, TIMEOUT_S)
    except KafkaError as error:
        failure = {"error_code": error.code, "error_message": error.message or None}
        return {"filter_results": [failure for _ in filters]}
    return {
        "filter_results": [
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "matching_acls": [_deleted(binding) for binding in deleted if chosen.matches(binding)],
            }
            for chosen in filters
        ]
    }


def _deleted(binding: AclBinding) -> dict[str, Any]:
    nothing_wrong = {"error_code": ErrorCode.none, "error_message": None}
    return {**nothing_wrong, **pattern_fields(binding), **entry_fields(binding)}
