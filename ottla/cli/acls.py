"""`ottla acls`: lists, creates and deletes access control lists (ACLs), which say who may do what.

An ACL allows or denies one operation on one resource, or on resources whose names begin in the same way, to one user.
The brokers heed ACLs if `authorizer.class.name` is set. The options are named after those of Kafka's kafka-acls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import explained
from ottla.cli.errors import NotFound, UsageError, explain_code, nearest
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.protocol.acls import AclBinding, AclFilter, PatternType, Permission
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, supported_operations
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Access control lists (ACLs): who may do what.")

COLUMNS = {
    "principal": "PRINCIPAL",
    "permission": "PERMISSION",
    "operation": "OPERATION",
    "resource": "RESOURCE",
    "name": "NAME",
    "pattern": "PATTERN",
    "host": "HOST",
}
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

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be repeated.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A group; may be repeated.")]
Ids = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="NAME", help="A transactional id; may be repeated.")
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are the beginnings of resources' names.")]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="OPERATION", help=f"One of {', '.join(_OPERATIONS)}; may be repeated."),
]


@app.command("list")
@cluster_command
def list_acls(
    cluster: Cluster,
    output: Output,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
    match: Annotated[
        bool, typer.Option("--match", help="All ACLs that apply to these names, those of prefixes and of * included.")
    ] = False,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only ACLs of this user.")
    ] = None,
    operation: Operations = None,
) -> None:
    """List ACLs. Without options, all of them."""
    resources = _resources(topic, group, transactional_id, on_cluster)
    filters = _filters(resources, _pattern(prefixed, match), principal, _operations(operation))
    found = sorted({binding for chosen in filters for binding in _found(cluster, chosen)}, key=_order)
    output.rows([_row(binding) for binding in found], COLUMNS, empty="There are no such ACLs.")


@app.command()
@cluster_command
def create(
    cluster: Cluster,
    output: Output,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="TYPE:NAME", help="Who may; User:* is everybody. May be repeated."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option("--deny", metavar="TYPE:NAME", help="Who may not, whatever else is allowed. May be repeated."),
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
    operation: Operations = None,
    producer: Annotated[
        bool, typer.Option("--producer", help="What a producer needs on topics and transactional ids.")
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="What a consumer needs on the topics and groups.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="ADDRESS", help="Only clients at this IP address; may be repeated."),
    ] = None,
) -> None:
    """Allow or deny operations to users. The brokers heed the ACLs when the command ends."""
    principals = [(each, Permission.ALLOW) for each in allow or ()] + [(each, Permission.DENY) for each in deny or ()]
    if not principals:
        raise UsageError("who?", "Give --allow User:NAME or --deny User:NAME.")
    for principal, _ in principals:
        _check_principal(principal)
    resources = _resources(topic, group, transactional_id, on_cluster)
    if not resources:
        raise UsageError("on what?", "Give --topic, --group, --transactional-id or --cluster.")
    if prefixed and on_cluster:
        raise UsageError("the cluster has no prefix", "Leave out --prefixed, or --cluster.")
    for each in host or ():
        _check_host(each)
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    bindings = [
        AclBinding(kind, pattern, name, principal, address, wanted, permission)
        for kind, name in resources
        for wanted in _wanted(kind, _operations(operation), producer, consumer)
        for principal, permission in principals
        for address in host or ["*"]
    ]
    _create(cluster, bindings)
    if output.as_json:
        output.document([_row(binding) for binding in bindings])
    else:
        for binding in bindings:
            print(f"{_sentence(binding)}.")


@app.command()
@cluster_command
def delete(
    cluster: Cluster,
    output: Output,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only ACLs of this user.")
    ] = None,
    operation: Operations = None,
    all_acls: Annotated[bool, typer.Option("--all", help="All ACLs of the cluster.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete the ACLs that match all options. The brokers no longer heed them when the command ends."""
    resources = _resources(topic, group, transactional_id, on_cluster)
    if all_acls == bool(resources or principal or operation or prefixed):
        raise UsageError("which ACLs?", "Give --topic, --group, --principal …, or else --all.")
    filters = _filters(resources, _pattern(prefixed, False), principal, _operations(operation))
    found = sorted({binding for chosen in filters for binding in _found(cluster, chosen)}, key=_order)
    if not found:
        raise NotFound("there are no such ACLs", "`ottla acls list` shows all ACLs.")
    confirm(f"Delete {counted(len(found), 'ACL')}: {'; '.join(map(_sentence, found))}?", yes, output)
    deleted = sorted({binding for chosen in filters for binding in _deleted(cluster, chosen)}, key=_order)
    if output.as_json:
        output.document([_row(binding) for binding in deleted])
    else:
        for binding in deleted:
            print(f"No longer: {_sentence(binding)}.")


def _resources(
    topics: Iterable[str] | None, groups: Iterable[str] | None, ids: Iterable[str] | None, on_cluster: bool
) -> list[tuple[ResourceType, str]]:
    named = [(ResourceType.TOPIC, topics), (ResourceType.GROUP, groups), (ResourceType.TRANSACTIONAL_ID, ids)]
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


def _pattern(prefixed: bool, match: bool) -> int:
    if prefixed and match:
        raise UsageError("both --prefixed and --match are given", "Leave one of them out.")
    return PatternType.PREFIXED if prefixed else PatternType.MATCH if match else AclFilter().pattern_type


def _filters(
    resources: Sequence[tuple[ResourceType, str]],
    pattern: int,
    principal: str | None,
    operations: Sequence[AclOperation],
) -> list[AclFilter]:
    """Filters that together choose the ACLs on any of the resources for any of the operations."""
    if principal is not None:
        _check_principal(principal)
    base = AclFilter(pattern_type=pattern, principal=principal)
    filters = [base._replace(resource_type=kind, name=name) for kind, name in resources] or [base]
    return [chosen._replace(operation=operation) for chosen in filters for operation in operations] or filters


def _found(cluster: Cluster, chosen: AclFilter) -> list[AclBinding]:
    with explained("the ACLs"):
        found, _ = cluster.patiently(lambda: cluster.admin.describe_acls(_clients_filter(chosen)))
    return [_binding(acl) for acl in found]


def _create(cluster: Cluster, bindings: Sequence[AclBinding]) -> None:
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


def _row(binding: AclBinding) -> dict[str, str]:
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


def _sentence(binding: AclBinding) -> str:
    """The ACL in words."""
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
