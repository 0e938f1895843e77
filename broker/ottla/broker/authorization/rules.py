"""The decision whether a client may do an operation on a resource. Pure.

The rules are those of Kafka's StandardAuthorizer (StandardAuthorizerData), in this order:

1. A super user may do everything.
2. If a binding that applies denies the operation, the client may not do it.
3. If a binding that applies allows the operation, the client may do it.
4. If no binding at all is on the resource, whoever's and whichever operation's, `allow.everyone.if.no.acl.found`
   decides. Otherwise the client may not do it.

A binding applies if its pattern chooses the resource, its principal is the client's or `User:*`, its host is the
client's address or `*`, and its operation is the requested one or ALL. A binding that allows READ, WRITE, DELETE or
ALTER allows DESCRIBE, too, and one that allows ALTER_CONFIGS allows DESCRIBE_CONFIGS. A binding that denies an
operation denies no other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.broker.authorization.index import AclIndex
from ottla.protocol.acls import EVERY_HOST, EVERY_NAME, EVERY_USER, AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType, supported_operations

_IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision, and the rule that led to it. `rule` is a text of Kafka's; `binding` is the binding that decided, if
    any did."""

    allowed: bool
    rule: str
    binding: AclBinding | None = None

    def __str__(self) -> str:
        """The rule as Kafka's audit log names it."""
        if self.binding is None:
            return self.rule
        b = self.binding
        return (
            f"MatchingAcl(acl=StandardAcl(resourceType={b.resource_type.name}, resourceName={b.name}, "
            f"patternType={b.pattern_type.name}, principal={b.principal}, host={b.host}, "
            f"operation={b.operation.name}, permissionType={b.permission.name}))"
        )


SUPER_USER = Decision(True, "SuperUser")
DEFAULT_ALLOW = Decision(True, "DefaultAllow")
DEFAULT_DENY = Decision(False, "DefaultDeny")


def implies(binding: AclBinding, operation: AclOperation) -> bool:
    """Whether the binding's operation includes the requested one."""
    if binding.operation is operation or binding.operation is AclOperation.ALL:
        return True
    return binding.permission is Permission.ALLOW and binding.operation in _IMPLIED_BY.get(operation, ())


class Rules:
    """The rules with one cluster's super users and bindings. The bindings change (`index`); the rest is settled when
    the broker starts."""

    def __init__(self, super_users: Iterable[str], *, allow_if_none: bool) -> None:
        """`super_users` are principals, such as `User:admin`. With `allow_if_none`, everybody may do everything on a
        resource that has no binding."""
        self.index = AclIndex()
        self._super_users = frozenset(super_users)
        self._without_bindings = DEFAULT_ALLOW if allow_if_none else DEFAULT_DENY

    def decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Whether a client may do the operation on the resource. `host` is the client's address, as Java writes it."""
        if principal in self._super_users:
            return SUPER_USER
        allowing: AclBinding | None = None
        any_binding = False
        for by_principal in self.index.applying(resource_type, name):
            any_binding = True
            for binding in sorted(_of(by_principal, principal), key=_kafkas_order):
                if binding.host not in (EVERY_HOST, host) or not implies(binding, operation):
                    continue
                if binding.permission is Permission.DENY:
                    return Decision(False, "MatchingAcl", binding)
                allowing = binding
        if allowing is not None:
            return Decision(True, "MatchingAcl", allowing)
        return DEFAULT_DENY if any_binding else self._without_bindings

    def authorized_operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """The operations that the client may do on the resource, as a bit set over the codes of AclOperation."""
        return sum(
            1 << operation
            for operation in supported_operations(resource_type)
            if self.decide(principal, host, operation, resource_type, name).allowed
        )

    def allows_on_some(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the client may do the operation on at least one resource of the type, as far as that can be told
        without the names of all resources. Operations that imply the requested one don't count here. Source:
        `authorizeByResourceType` of Kafka's interface Authorizer."""
        if self.decide(principal, host, operation, resource_type, "hardcode").allowed:
            return True  # a name of Kafka's own, which finds super users and what is allowed to everyone
        denied: set[tuple[PatternType, str]] = set()
        allowed: set[tuple[PatternType, str]] = set()
        for binding in self.index.of_principals(resource_type, _principals(principal)):
            if binding.host in (EVERY_HOST, host) and binding.operation in (operation, AclOperation.ALL):
                patterns = denied if binding.permission is Permission.DENY else allowed
                patterns.add((binding.pattern_type, binding.name))
        if (PatternType.LITERAL, EVERY_NAME) in denied:
            return False
        return any(not _outdone(pattern, denied) for pattern in allowed)


def _outdone(allowed: tuple[PatternType, str], denied: set[tuple[PatternType, str]]) -> bool:
    """Whether everything that the allowed pattern chooses is denied by one of the denied patterns."""
    pattern_type, name = allowed
    if allowed == (PatternType.LITERAL, EVERY_NAME):
        return False
    if pattern_type is PatternType.LITERAL and allowed in denied:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


def _principals(principal: str) -> tuple[str, ...]:
    return (principal,) if principal == EVERY_USER else (principal, EVERY_USER)


def _of(by_principal: dict[str, set[AclBinding]], principal: str) -> Iterable[AclBinding]:
    for each in _principals(principal):
        yield from by_principal.get(each, ())


def _kafkas_order(binding: AclBinding) -> tuple[int, str, str, int]:
    """The order in which Kafka looks at the bindings of one pattern: it decides which one the audit log names."""
    return binding.operation, binding.principal, binding.host, binding.permission
