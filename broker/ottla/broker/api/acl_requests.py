"""What the APIs for ACLs share: ACLs and filters in requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.protocol.acls import ANY, AclBinding, AclFilter, PatternType, Permission
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType

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
