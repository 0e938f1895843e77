"""What the APIs for ACLs share: ACLs and filters in requests and answers, and the wait until a change is in force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ottla.broker.applied_revisions import AppliedRevisions
from ottla.protocol.acls import ANY, AclBinding, AclFilter, PatternType, Permission
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType

TIMEOUT_S = 25.0
"""The time for a change of ACLs. The requests have no time-out; this is less than the 30 s for which clients wait by
default, so that they get an answer."""

DISABLED: Mapping[str, Any] = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No Authorizer is configured.",
}
MALFORMED: Mapping[str, Any] = {
    "error_code": ErrorCode.unknown_server_error,
    "error_message": "The server experienced an unexpected error when processing the request.",
}

_KNOWN = (
    ("resource_type", frozenset(ResourceType)),
    ("pattern_type", frozenset(PatternType)),
    ("operation", frozenset(AclOperation)),
    ("permission", frozenset(Permission)),
)


def binding_of(creation: Any) -> AclBinding | None:
    """The ACL that a request describes. None where a number has no meaning, or is one of a filter (ANY, MATCH)."""
    try:
        binding = AclBinding(
            ResourceType(creation.resource_type),
            PatternType(creation.resource_pattern_type),
            creation.resource_name,
            creation.principal,
            creation.host,
            AclOperation(creation.operation),
            Permission(creation.permission_type),
        )
    except ValueError:
        return None
    return None if binding.pattern_type is PatternType.MATCH else binding


def filter_of(asked: Any) -> AclFilter | None:
    """The filter in a request; None where a number has no meaning."""
    chosen = AclFilter(
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
    known = all(number == ANY or number in numbers for name, numbers in _KNOWN for number in [getattr(chosen, name)])
    return chosen if known else None


def pattern_fields(binding: AclBinding) -> dict[str, Any]:
    """The resources that an ACL chooses, as fields of an answer."""
    return {
        "resource_type": binding.resource_type,
        "resource_name": binding.name,
        "pattern_type": binding.pattern_type,
    }


def entry_fields(binding: AclBinding) -> dict[str, Any]:
    """What an ACL says about its resources, as fields of an answer."""
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }


@asynccontextmanager
async def in_force(applied_revisions: AppliedRevisions) -> AsyncIterator[None]:
    """After the block, waits until every registered broker has applied the change that the block made. The block and
    the wait together take `TIMEOUT_S` at most. Raises KafkaError REQUEST_TIMED_OUT: the change is written, but some
    broker may still decide by the older ACLs."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    yield
    behind = await applied_revisions.everywhere_by(deadline)
    if behind:
        named = ", ".join(map(str, sorted(behind)))
        message = f"The change is written, but it isn't known to be in force on the brokers {named} yet."
        raise KafkaError(ErrorCode.request_timed_out, message)
