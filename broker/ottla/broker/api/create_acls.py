"""CreateAcls (key 30), versions 1–3: allows or denies operations to users.

An ACL that exists already counts as created. An error of one ACL doesn't affect the others. The answer comes when every
registered broker decides by the new ACLs, or with REQUEST_TIMED_OUT. Without an authorizer the answer is
SECURITY_DISABLED. Kafka's checks are those of AclApis and AclControlManager.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.acl_requests import (
    DISABLED,
    MALFORMED,
    binding_of,
)
from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.in_force import TIMEOUT_S, in_force
from ottla.broker.ports import WithAppliedRevisions, WithAuthorizer, WithIntents
from ottla.broker.request import Request
from ottla.protocol.acls import AclBinding
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return {"results": [NOT_ON_CLUSTER for _ in body.creations]}


API = Api(
    key=30,
    versions=(1, 3),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    changes_metadata=True,
    refuse=_refuse,
)


class Parts(WithAppliedRevisions, WithAuthorizer, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each ACL."""
    if not broker.authorizer.enforced:
        return {"results": [DISABLED for _ in body.creations]}
    bindings = [binding_of(creation) for creation in body.creations]
    if None in bindings:  # as Kafka, which reads all ACLs of a request before it looks at the first one
        return {"results": [MALFORMED for _ in bindings]}
    problems = [_problem(binding) for binding in bindings if binding is not None]
    wanted = [binding for binding in bindings if binding is not None and not _problem(binding)]
    failure: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
    if wanted:
        try:
            async with in_force(broker.applied_revisions):
                await broker.intents.create_acls(wanted, TIMEOUT_S)
        except KafkaError as error:
            failure = {"error_code": error.code, "error_message": error.message or None}
    return {
        "results": [
            {"error_code": ErrorCode.invalid_request, "error_message": problem} if problem else failure
            for problem in problems
        ]
    }


def _problem(binding: AclBinding) -> str:
    """The reason why there can't be such an ACL, in Kafka's words; empty for a valid one."""
    if binding.resource_type is ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not binding.name:
        return "Invalid empty resource name"
    if ":" not in binding.principal:
        return (
            f"Could not parse principal from `{binding.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    return ""
