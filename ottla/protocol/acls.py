"""Access control lists as Kafka's protocol has them: bindings of users to operations on resources, and filters of
bindings. Pure.

Kafka calls one entry of the list an ACL; this module calls it a binding. Names and numbers are those of Kafka's
`AclBinding`, `PatternType`, `AclPermissionType` and `AclBindingFilter`. A binding compares equal to another one if all
of its fields do, so a cluster never has two equal bindings.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from .rights import AclOperation, ResourceType

ANY = 1  # in a filter: every value of a field
EVERY_HOST = "*"
EVERY_NAME = "*"
EVERY_USER = "User:*"


class PatternType(IntEnum):
    """How a binding's name chooses resources: the resource of that name (LITERAL; the name `*` chooses every resource),
    or the resources whose names begin with it (PREFIXED). MATCH occurs in filters alone."""

    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Whether a binding denies or allows its operation (Kafka's AclPermissionType)."""

    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    """One binding: `principal` (such as `User:alice`), coming from `host` (an address or `*`), may or may not do an
    operation on resources of a type."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class AclFilter(NamedTuple):
    """A choice of bindings. A number of `ANY`, or a text of None, accepts every value of the field.

    With the pattern type MATCH, the filter chooses the bindings that apply to the resource called `name`: its literal
    bindings, those of `*`, and those of prefixes of the name.
    """

    resource_type: int = ANY
    pattern_type: int = ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches(self, binding: AclBinding) -> bool:
        """Whether the filter chooses this binding. Source: Kafka's ResourcePatternFilter and
        AccessControlEntryFilter."""
        return (
            self.resource_type in (ANY, binding.resource_type)
            and self.operation in (ANY, binding.operation)
            and self.permission in (ANY, binding.permission)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.pattern_type in (ANY, PatternType.MATCH, binding.pattern_type)
            and self._matches_name(binding)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        if self.name is None or self.name == binding.name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if binding.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(binding.name)
        return binding.name == EVERY_NAME
