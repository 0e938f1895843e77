"""`ottla acls`: lists, creates and deletes access control lists (ACLs), which say who may do what.

An ACL allows or denies one operation on one resource, or on resources whose names begin in the same way, to one user.
The brokers heed ACLs if `authorizer.class.name` is set. The options are named after those of Kafka's kafka-acls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.errors import NotFound, UsageError
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
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
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be repeated.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A group; may be repeated.")]
Ids = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="NAME", help="A transactional id; may be repeated.")
]
Users = Annotated[
    list[str] | None,
    typer.Option("--user", metavar="TYPE:NAME", help="A user, whose delegation tokens are meant; may be repeated."),
]
Tokens = Annotated[
    list[str] | None, typer.Option("--delegation-token", metavar="ID", help="A delegation token; may be repeated.")
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are the beginnings of resources' names.")]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="OPERATION", help="Such as read, write, describe or all; may be repeated."),
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
    user: Users = None,
    delegation_token: Tokens = None,
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
    from ottla.cli import acl_words

    resources = acl_words.resources_of(topic, group, transactional_id, on_cluster, user, delegation_token)
    filters = acl_words.filters_of(resources, principal, operation or (), prefixed=prefixed, match=match)
    rows = [acl_words.row(binding) for binding in acl_words.found(cluster, filters)]
    output.rows(rows, COLUMNS, empty="There are no such ACLs.")


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
    user: Users = None,
    delegation_token: Tokens = None,
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
    from ottla.cli import acl_words

    resources = acl_words.resources_of(topic, group, transactional_id, on_cluster, user, delegation_token)
    bindings = acl_words.bindings_of(
        resources,
        allow or (),
        deny or (),
        operation or (),
        host or (),
        prefixed=prefixed,
        producer=producer,
        consumer=consumer,
    )
    acl_words.create(cluster, bindings)
    if output.as_json:
        output.document([acl_words.row(binding) for binding in bindings])
    else:
        for binding in bindings:
            print(f"{acl_words.in_words(binding)}.")


@app.command()
@cluster_command
def delete(
    cluster: Cluster,
    output: Output,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    on_cluster: OnCluster = False,
    user: Users = None,
    delegation_token: Tokens = None,
    prefixed: Prefixed = False,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only ACLs of this user.")
    ] = None,
    operation: Operations = None,
    all_acls: Annotated[bool, typer.Option("--all", help="All ACLs of the cluster.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete the ACLs that match all options. The brokers no longer heed them when the command ends."""
    from ottla.cli import acl_words

    resources = acl_words.resources_of(topic, group, transactional_id, on_cluster, user, delegation_token)
    if all_acls == bool(resources or principal or operation or prefixed):
        raise UsageError("which ACLs?", "Give --topic, --group, --principal …, or else --all.")
    filters = acl_words.filters_of(resources, principal, operation or (), prefixed=prefixed)
    found = acl_words.found(cluster, filters)
    if not found:
        raise NotFound("there are no such ACLs", "`ottla acls list` shows all ACLs.")
    confirm(f"Delete {counted(len(found), 'ACL')}: {'; '.join(map(acl_words.in_words, found))}?", yes, output)
    deleted = acl_words.delete(cluster, filters)
    if output.as_json:
        output.document([acl_words.row(binding) for binding in deleted])
    else:
        for binding in deleted:
            print(f"No longer: {acl_words.in_words(binding)}.")
