"""ACLs as `ottla acls` reads them from options, asks a cluster about them, and puts them into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ottla.cli.connection import explained
from ottla.cli.errors import UsageError, explain_code, nearest
from ottla.protocol.acls import AclBinding, AclFilter, PatternType, Permission
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, supported_operations

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

_OPERATIONS = {operation.name.lower().replace("_", "-"): operation for operation in AclOperation}
_PRODUCER = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}
"""The operations that a producer and a consumer need, as kafka-acls grants them by --producer and --consumer."""


def bindings_of(
    resources: Sequence[tuple[ResourceType, str]],
    allow: Iterable[str],
    deny: Iterable[str],
    operations: Iterable[str],
    hosts: Iterable[str],
    *,
    prefixed: bool,
    producer: bool,
    consumer: bool,
) -> list[AclBinding]:
    """The ACLs that the options of `ottla acls create` describe. Raises UsageError."""
    principals = [(each, Permission.ALLOW) for each in allow] + [(each, Permission.DENY) for each in deny]
    if not principals:
        raise UsageError("who?", "Give --allow User:NAME or --deny User:NAME.")
    for principal, _ in principals:
        _check_principal(principal)
    if not resources:
        raise UsageError(
            "on what?", "Give --topic, --group, --transactional-id, --cluster, --user or --delegation-token."
        )
    if prefixed and any(kind is ResourceType.CLUSTER for kind, _ in resources):
        raise UsageError("the cluster has no prefix", "Leave out --prefixed, or --cluster.")
    addresses = list(hosts) or ["*"]
    for each in addresses:
        _check_host(each)
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    named = _operations(operations)
    return [
        AclBinding(kind, pattern, name, principal, address, wanted, permission)
        for kind, name in resources
        for wanted in _wanted(kind, named, producer, consumer)
        for principal, permission in principals
        for address in addresses
    ]


def resources_of(
    topics: Iterable[str] | None,
    groups: Iterable[str] | None,
    ids: Iterable[str] | None,
    on_cluster: bool,
    users: Iterable[str] | None,
    tokens: Iterable[str] | None,
) -> list[tuple[ResourceType, str]]:
    """The resources that the options name. Raises UsageError."""
    named = [
        (ResourceType.TOPIC, topics),
        (ResourceType.GROUP, groups),
        (ResourceType.TRANSACTIONAL_ID, ids),
        (ResourceType.USER, users),
        (ResourceType.DELEGATION_TOKEN, tokens),
    ]
    for user in users or ():
        if user != "*":
            _check_principal(user)
    found = [(kind, name) for kind, names in named for name in names or ()]
    if any(not name for _, name in found):
        raise UsageError("a name is empty", "Name the resource, or write * for all resources of its type.")
    return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if on_cluster else found


def _operations(names: Iterable[str] | None) -> list[AclOperation]:
    found = []
    for name in names or ():
        known = _OPERATIONS.get(name.lower().replace("_", "-"))
        if known is None:
            remedy = f"Say one of: {', '.join(_OPERATIONS)}.{nearest(name, _OPERATIONS)}"
            raise UsageError(f"there is no operation '{name}'", remedy)
        found.append(known)
    return found


def _wanted(
    kind: ResourceType, operations: Sequence[AclOperation], producer: bool, consumer: bool
) -> list[AclOperation]:
    """The operations to allow or deny on a resource of this type. Raises UsageError if there are none, or the type
    doesn't have one of them."""
    supported = supported_operations(kind)
    for operation in operations:
        if operation not in supported and operation is not AclOperation.ALL:
            possible = ", ".join(name for name, each in _OPERATIONS.items() if each in supported)
            raise UsageError(f"{_a(kind)} has no operation {_word(operation)}", f"It has: {possible}, all.")
    wanted = [*operations]
    wanted += _PRODUCER.get(kind, ()) if producer else ()
    wanted += _CONSUMER.get(kind, ()) if consumer else ()
    if not wanted:
        raise UsageError(f"which operations on {_a(kind)}?", "Give --operation, --producer or --consumer.")
    return list(dict.fromkeys(wanted))


def _check_principal(principal: str) -> None:
    if ":" not in principal:
        raise UsageError(f"'{principal}' has no type", f"Write the type before a colon: User:{principal}.")


def _check_host(host: str) -> None:
    if host == "*":
        return
    try:
        ip_address(host)
    except ValueError:
        remedy = "Brokers compare hosts with clients' IP addresses; names and networks match no client."
        raise UsageError(f"'{host}' is not an IP address", remedy) from None


def filters_of(
    resources: Sequence[tuple[ResourceType, str]],
    principal: str | None,
    operations: Iterable[str],
    *,
    prefixed: bool,
    match: bool = False,
) -> list[AclFilter]:
    """Filters that together choose the ACLs on any of the resources for any of the operations. Raises UsageError."""
    if prefixed and match:
        raise UsageError("both --prefixed and --match are given", "Leave one of them out.")
    if principal is not None:
        _check_principal(principal)
    base = AclFilter(principal=principal)
    if prefixed or match:
        base = base._replace(pattern_type=PatternType.PREFIXED if prefixed else PatternType.MATCH)
    filters = [base._replace(resource_type=kind, name=name) for kind, name in resources] or [base]
    return [
        chosen._replace(operation=operation) for chosen in filters for operation in _operations(operations)
    ] or filters


def found(cluster: Cluster, filters: Iterable[AclFilter]) -> list[AclBinding]:
    """The cluster's ACLs that any of the filters chooses, sorted. Raises CommandError."""
    return sorted({binding for chosen in filters for binding in _found(cluster, chosen)}, key=_order)


def delete(cluster: Cluster, filters: Iterable[AclFilter]) -> list[AclBinding]:
    """Deletes the ACLs that any of the filters chooses, and returns them, sorted. Raises CommandError."""
    return sorted({binding for chosen in filters for binding in _deleted(cluster, chosen)}, key=_order)


def _found(cluster: Cluster, chosen: AclFilter) -> list[AclBinding]:
    with explained("the ACLs"):
        found, _ = cluster.patiently(lambda: cluster.admin.describe_acls(_clients_filter(chosen)))
    return [_binding(acl) for acl in found]


def create(cluster: Cluster, bindings: Sequence[AclBinding]) -> None:
    """Creates ACLs. Raises CommandError."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern
    from kafka.admin import ResourceType as ClientsType

    acls = [
        ACL(
            binding.principal,
            binding.host,
            ACLOperation(binding.operation),
            ACLPermissionType(binding.permission),
            ResourcePattern(
                ClientsType(binding.resource_type), binding.name, ACLResourcePatternType(binding.pattern_type)
            ),
        )
        for binding in bindings
    ]
    with explained("the ACLs"):
        result = cluster.patiently(lambda: cluster.admin.create_acls(acls))
    codes = {error.errno for error in result["failed"]}
    if codes:
        raise explain_code(min(codes), "the ACLs")


def _deleted(cluster: Cluster, chosen: AclFilter) -> list[AclBinding]:
    with explained("the ACLs"):
        [(_, deleted, error)] = cluster.patiently(lambda: cluster.admin.delete_acls([_clients_filter(chosen)]))
    if error.errno:
        raise explain_code(error.errno, "the ACLs")
    return [_binding(acl) for acl in deleted]


def _clients_filter(chosen: AclFilter) -> Any:
    from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePatternFilter
    from kafka.admin import ResourceType as ClientsType

    pattern = ResourcePatternFilter(
        ClientsType(chosen.resource_type), chosen.name, ACLResourcePatternType(chosen.pattern_type)
    )
    operation, permission = ACLOperation(chosen.operation), ACLPermissionType(chosen.permission)
    return ACLFilter(chosen.principal, chosen.host, operation, permission, pattern)


def _binding(acl: Any) -> AclBinding:
    pattern = acl.resource_pattern
    return AclBinding(
        ResourceType(pattern.resource_type),
        PatternType(pattern.pattern_type),
        pattern.resource_name,
        acl.principal,
        acl.host,
        AclOperation(acl.operation),
        Permission(acl.permission_type),
    )


def _order(binding: AclBinding) -> tuple[Any, ...]:
    return binding.principal, binding.resource_type, binding.name, binding


def row(binding: AclBinding) -> dict[str, str]:
    """The ACL as a row of a table, or as an object for programs."""
    return {
        "principal": binding.principal,
        "permission": _word(binding.permission),
        "operation": _word(binding.operation),
        "resource": _word(binding.resource_type),
        "name": binding.name,
        "pattern": _word(binding.pattern_type),
        "host": binding.host,
    }


def _word(value: AclOperation | Permission | ResourceType | PatternType) -> str:
    return value.name.lower().replace("_", "-")


def _a(kind: ResourceType) -> str:
    return "the cluster" if kind is ResourceType.CLUSTER else f"a {_word(kind).replace('-', ' ')}"


def in_words(binding: AclBinding) -> str:
    """The ACL as a clause, such as: User:a may read on topic 't'."""
    kind = _word(binding.resource_type).replace("-", " ")
    if binding.resource_type is ResourceType.CLUSTER:
        on = "the cluster"
    elif binding.pattern_type is PatternType.PREFIXED:
        on = f"every {kind} whose name begins with '{binding.name}'"
    else:
        on = f"every {kind}" if binding.name == "*" else f"{kind} '{binding.name}'"
    may = "may" if binding.permission is Permission.ALLOW else "may not"
    what = "do everything" if binding.operation is AclOperation.ALL else _word(binding.operation)
    origin = "" if binding.host == "*" else f" from {binding.host}"
    return f"{binding.principal}{origin} {may} {what} on {on}"
