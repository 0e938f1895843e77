"""`ottla quotas`: shows, sets and removes the limits of users, client ids and addresses.

kafka-python's admin client has no methods for quotas, only the messages of their APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import explained
from ottla.cli.errors import NotFound, UsageError, explain_code, nearest
from ottla.cli.help import App
from ottla.cli.options import cluster_command
from ottla.cli.output import Output

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Limits of users, client ids and addresses.")

LIMITS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
DEFAULT = "<default>"  # as Kafka's tools write it
_EXACT, _DEFAULT = 0, 1  # how a filter matches a name

UserOption = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user, without 'User:'.")]
DefaultUserOption = Annotated[
    bool, typer.Option("--default-user", help="All users without a limit of their own, each by itself.")
]
ClientOption = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="The client id.")]
DefaultClientOption = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without a limit of their own, each by itself.")
]
IpOption = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The address, or a name that has one.")]
DefaultIpOption = Annotated[
    bool, typer.Option("--default-ip", help="All addresses without a limit of their own, each by itself.")
]

Entity = dict[str, str | None]
"""Names by Kafka's types (user, client-id, ip). None stands for the default."""


def _entity(
    user: str | None, default_user: bool, client_id: str | None, default_client: bool, ip: str | None, default_ip: bool
) -> Entity:
    """The entity that the options name; empty if they name none."""
    entity: Entity = {}
    for kind, name, default in (
        ("user", user, default_user),
        ("client-id", client_id, default_client),
        ("ip", ip, default_ip),
    ):
        if name is not None and default:
            raise UsageError(f"--{kind} and --default-{kind} exclude each other", "Leave one of them out.")
        if name is not None or default:
            entity[kind] = name
    return entity


def _required(entity: Entity) -> Entity:
    if not entity:
        raise UsageError("whose limits?", "Give --user, --client-id, --ip, or their defaults (--default-user, …).")
    return entity


def _words(entity: Mapping[str, str | None]) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity.items())


def _send(cluster: Cluster, request: Any) -> Any:
    manager = cluster.admin._manager
    return cluster.patiently(lambda: manager.run(manager.send, request))


def _described(cluster: Cluster, wanted: Entity, *, strict: bool = False) -> list[tuple[Entity, dict[str, float]]]:
    """The entities that have all parts of `wanted`, with their limits. With `strict`, they have no other parts."""
    from kafka.protocol.admin import DescribeClientQuotasRequest

    component = DescribeClientQuotasRequest.ComponentData
    components = [
        component(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in wanted.items()
    ]
    with explained("the quotas"):
        answer = _send(cluster, DescribeClientQuotasRequest(components=components, strict=strict))
    if answer.error_code:
        raise explain_code(answer.error_code, "the quotas", answer.error_message)
    found = [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or []
    ]
    return sorted(found, key=lambda pair: [(kind, name or "") for kind, name in sorted(pair[0].items(), reverse=True)])


def _alter(cluster: Cluster, entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool) -> None:
    """Sets limits, and removes those that are None. Makes all changes or none."""
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    altered = entry(
        entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
    )
    with explained(f"the limits of {_words(entity)}"):
        answer = _send(cluster, AlterClientQuotasRequest(entries=[altered], validate_only=validate_only))
    [result] = answer.entries
    if result.error_code:
        raise explain_code(result.error_code, f"the limits of {_words(entity)}", result.error_message)


@app.command("list")
@cluster_command
def list_quotas(
    cluster: Cluster,
    output: Output,
    user: UserOption = None,
    default_user: DefaultUserOption = False,
    client_id: ClientOption = None,
    default_client: DefaultClientOption = False,
    ip: IpOption = None,
    default_ip: DefaultIpOption = False,
) -> None:
    """List limits; with options only those of entities that the options name."""
    wanted = _entity(user, default_user, client_id, default_client, ip, default_ip)
    found = _described(cluster, wanted)
    if output.as_json:
        output.document([{"entity": entity, "limits": limits} for entity, limits in found])
        return
    rows = [
        {
            **{kind: DEFAULT if name is None else name for kind, name in entity.items()},
            "limit": limit,
            "value": int(value) if value.is_integer() else value,
        }
        for entity, limits in found
        for limit, value in sorted(limits.items())
    ]
    columns = {"user": "USER", "client-id": "CLIENT-ID", "ip": "IP", "limit": "LIMIT", "value": "VALUE"}
    output.rows(rows, columns, empty="There are no such limits." if wanted else "There are no limits.")


@app.command("set")
@cluster_command
def set_quotas(
    cluster: Cluster,
    output: Output,
    limits: Annotated[list[str], typer.Argument(metavar="LIMIT=VALUE…", help=f"Limits: {', '.join(LIMITS)}.")],
    user: UserOption = None,
    default_user: DefaultUserOption = False,
    client_id: ClientOption = None,
    default_client: DefaultClientOption = False,
    ip: IpOption = None,
    default_ip: DefaultIpOption = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only check the request; change nothing.")
    ] = False,
) -> None:
    """Set limits: all of the given ones, or none."""
    entity = _required(_entity(user, default_user, client_id, default_client, ip, default_ip))
    wanted = dict(_parsed(text) for text in limits)
    _alter(cluster, entity, wanted, validate_only=validate_only)
    verb = "could be set" if validate_only else "set"
    output.done(f"Limits of {_words(entity)} {verb}.", {"entity": entity, "set": wanted})


@app.command("remove")
@cluster_command
def remove_quotas(
    cluster: Cluster,
    output: Output,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="LIMIT…", help="The limits to remove; by default all.")
    ] = None,
    user: UserOption = None,
    default_user: DefaultUserOption = False,
    client_id: ClientOption = None,
    default_client: DefaultClientOption = False,
    ip: IpOption = None,
    default_ip: DefaultIpOption = False,
) -> None:
    """Remove limits of one entity."""
    entity = _required(_entity(user, default_user, client_id, default_client, ip, default_ip))
    present = dict.fromkeys(name for _, limits in _described(cluster, entity, strict=True) for name in limits)
    missing = [name for name in names or [] if name not in present]
    if missing or not present:
        what = f"no limit '{missing[0]}'" if missing else "no limits"
        hint = nearest(missing[0], present).strip() if missing else ""
        raise NotFound(f"{_words(entity)} has {what}", hint or "`ottla quotas list` shows all limits.")
    removed = names or sorted(present)
    _alter(cluster, entity, dict.fromkeys(removed, None), validate_only=False)
    output.done(f"Limits of {_words(entity)} removed: {', '.join(removed)}.", {"entity": entity, "removed": removed})


def _parsed(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"'{text}' is not LIMIT=VALUE", "Write it as producer_byte_rate=1000000.")
    if name not in LIMITS:
        raise UsageError(f"there is no limit '{name}'", f"Say one of: {', '.join(LIMITS)}.{nearest(name, LIMITS)}")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"'{value}' in '{text}' is not a number", "Write it as producer_byte_rate=1000000.") from None
