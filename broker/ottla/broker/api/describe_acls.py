"""DescribeAcls (key 29), versions 1–3: the ACLs that match a filter, by the resources that they choose.

Without an authorizer the answer is SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.acl_requests import DISABLED, MALFORMED, entry_fields, filter_of, pattern_fields
from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithAuthorizer, WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return NOT_ON_CLUSTER


API = Api(key=29, versions=(1, 3), needs=(Right(AclOperation.DESCRIBE, ResourceType.CLUSTER),), refuse=_refuse)


class Parts(WithAuthorizer, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    if not broker.authorizer.enforced:
        return {**DISABLED, "error_message": "No Authorizer is configured on the broker"}
    chosen = filter_of(body)
    if chosen is None:
        return {**MALFORMED}
    resources: dict[tuple[Any, ...], dict[str, Any]] = {}
    for binding in broker.image.acls:
        if chosen.matches(binding):
            pattern = pattern_fields(binding)
            resource = resources.setdefault(tuple(pattern.values()), {**pattern, "acls": []})
            resource["acls"].append(entry_fields(binding))
    return {"error_code": ErrorCode.none, "error_message": None, "resources": list(resources.values())}
