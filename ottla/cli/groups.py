"""`ottla groups`: shows consumer groups and their lag, moves their offsets, and deletes them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import availability, lookup
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, NotFound, UsageError, explain_code, nearest, raise_all
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.cli.times import FORMS, parse_moment
from ottla.wording import counted

if TYPE_CHECKING:
    from kafka import TopicPartition

    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Consumer groups, their lag and their offsets.")


def _listed(cluster: Cluster) -> list[dict[str, Any]]:
    with explained("the list of groups"):
        groups: list[dict[str, Any]] = cluster.patiently(cluster.admin.list_groups)
    return sorted(groups, key=lambda group: str(group["group_id"]))


def _require(cluster: Cluster, group_id: str) -> None:
    known = [group["group_id"] for group in _listed(cluster)]
    if group_id not in known:
        availability.check_coordinator(cluster, group_id)  # if the group has no coordinator, no broker lists it
        raise NotFound(
            f"group '{group_id}' doesn't exist",
            (nearest(group_id, known).strip() + " `ottla groups list` shows all groups.").strip(),
            kafka_code=69,
        )


def _committed(cluster: Cluster, group_id: str) -> dict[TopicPartition, Any]:
    with explained(f"the offsets of group '{group_id}'"):
        answer = cluster.patiently(
            lambda: cluster.admin.list_group_offsets({group_id: None}),
            check=lambda: availability.check_coordinator(cluster, group_id),
        )
    return {partition: found for partition, found in answer[group_id].items() if found.offset >= 0}


@app.command("list")
@cluster_command
def list_groups(
    cluster: Cluster,
    output: Output,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state (Stable, Empty, …); may be repeated.")
    ] = None,
) -> None:
    """List groups."""
    if unlisted := availability.leaderless(cluster, [availability.OFFSETS_TOPIC]):
        output.warn(
            f"the groups in {counted(len(unlisted), 'partition')} of {availability.OFFSETS_TOPIC} are not listed,"
            f" because there is no leader: {availability.reason(unlisted)}",
            availability.remedy(unlisted),
        )
    rows = [
        {
            "group": group["group_id"],
            "state": group.get("group_state") or None,
            "type": group.get("group_type") or None,
            "protocol": group["protocol_type"] or None,
        }
        for group in _listed(cluster)
    ]
    if state:
        wanted = {name.lower() for name in state}
        rows = [row for row in rows if str(row["state"]).lower() in wanted]
    output.rows(
        rows, {"group": "GROUP", "state": "STATE", "type": "TYPE", "protocol": "PROTOCOL"}, empty="There are no groups."
    )


@app.command()
@cluster_command
def describe(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="GROUP…", help="Which groups.")],
    members: Annotated[bool, typer.Option("--members", help="Show the members instead of the partitions.")] = False,
) -> None:
    """Show groups: state, members, offsets and lag."""
    described = []
    for name in names:
        _require(cluster, name)
        described.append(_description(cluster, name))
    if output.as_json:
        output.document(described)
        return
    for number, group in enumerate(described):
        output.title(
            ("\n" if number else "")
            + f"{group['group']}   {group['state']}   {counted(len(group['members']), 'member')}   "
            f"assignor {group['assignor'] or '-'}   coordinator {group['coordinator']}   lag {group['lag']}"
        )
        if members:
            columns = {"member_id": "MEMBER", "client_id": "CLIENT", "host": "HOST", "instance_id": "INSTANCE"}
            rows = [{**member, "assigned": _assigned(member)} for member in group["members"]]
            output.rows(rows, columns | {"assigned": "PARTITIONS"}, empty="No members.")
        else:
            output.rows(
                group["partitions"],
                {
                    "topic": "TOPIC",
                    "partition": "PARTITION",
                    "committed_offset": "COMMITTED",
                    "end_offset": "END",
                    "lag": "LAG",
                    "client_id": "CLIENT",
                    "host": "HOST",
                },
                empty="No offsets are committed.",
            )


def _assigned(member: dict[str, Any]) -> list[str]:
    return [f"{item['topic']}:{item['partition']}" for item in member["assignment"]]


def _description(cluster: Cluster, group_id: str) -> dict[str, Any]:
    from kafka import TopicPartition

    with explained(f"group '{group_id}'"):
        group = cluster.patiently(lambda: cluster.admin.describe_groups([group_id]))[group_id]
    if group.get("error"):
        raise CommandError(f"group '{group_id}': {group['error']}")
    members = [_member(member) for member in group["members"]]
    owners = {
        TopicPartition(item["topic"], item["partition"]): member for member in members for item in member["assignment"]
    }
    committed = _committed(cluster, group_id)
    partitions = sorted(set(committed) | set(owners))
    existing = set(lookup.topic_names(cluster))
    ends = lookup.end_offsets(cluster, [partition for partition in partitions if partition.topic in existing])
    rows = []
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        end = ends.get(partition)
        owner = owners.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": offset,
                "end_offset": end,
                "lag": max(0, end - offset) if end is not None and offset is not None else None,
                "metadata": committed[partition].metadata or None if partition in committed else None,
                "member_id": owner["member_id"] if owner else None,
                "client_id": owner["client_id"] if owner else None,
                "host": owner["host"] if owner else None,
            }
        )
    with explained(f"the coordinator of group '{group_id}'"):
        coordinator = _coordinator(cluster, group_id)
    return {
        "group": group_id,
        "state": group["group_state"],
        "protocol": group["protocol_type"] or None,
        "assignor": group["protocol_data"] or None,
        "coordinator": coordinator,
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": members,
        "partitions": rows,
    }


def _coordinator(cluster: Cluster, group_id: str) -> int | None:
    brokers = list(cluster.racks())
    if len(brokers) == 1:
        return brokers[0]
    for broker in brokers:
        if any(group["group_id"] == group_id for group in cluster.admin.list_groups(broker_ids=[broker])):
            return broker
    return None


def _member(member: dict[str, Any]) -> dict[str, Any]:
    assignment = member.get("member_assignment")
    # For a protocol type other than "consumer" an assignment is bytes in a format that only the group's members know.
    topics = assignment.get("assigned_partitions", []) if isinstance(assignment, dict) else []
    return {
        "member_id": member["member_id"],
        "instance_id": member.get("group_instance_id"),
        "client_id": member["client_id"],
        "host": member["client_host"].lstrip("/"),
        "assignment": [
            {"topic": topic["topic"], "partition": partition}
            for topic in topics
            for partition in sorted(topic["partitions"])
        ],
    }


@app.command("reset-offsets")
@cluster_command
def reset_offsets(
    cluster: Cluster,
    output: Output,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="Which group; it must have no active members.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC[:PARTITIONS]", help="Which partitions; may be repeated."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions for which the group has committed offsets.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", metavar="MOMENT", help=f"To the first record at or after: {FORMS}.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Forwards by this number of offsets, backwards if it is negative.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move the offsets; by default the new ones are only shown.")
    ] = False,
) -> None:
    """Move a group's committed offsets. Without --execute it only shows the new offsets."""
    targets = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(targets) != 1:
        raise UsageError("where to?", "Give one of --to-earliest, --to-latest, --to-offset, --to-time, --shift-by.")
    if bool(topic) == all_topics:
        raise UsageError("which partitions?", "Give either --topic TOPIC[:PARTITIONS] or --all-topics.")
    if all_topics:
        _require(cluster, name)
    committed = _committed(cluster, name)
    partitions = sorted(committed) if all_topics else lookup.topic_partitions(cluster, topic or [])
    if not partitions:
        raise NotFound(f"group '{name}' has committed no offsets", "Name the partitions with --topic.")
    starts = lookup.end_offsets(cluster, partitions, earliest=True)
    ends = lookup.end_offsets(cluster, partitions)
    wished: dict[TopicPartition, int]
    if to_time is not None:
        from kafka.admin import OffsetTimestamp

        wished = lookup.offsets_at(cluster, partitions, OffsetTimestamp(parse_moment(to_time, int(time.time() * 1000))))
        wished = {partition: offset if offset >= 0 else ends[partition] for partition, offset in wished.items()}
    elif shift_by is not None:
        wished = {
            partition: (committed[partition].offset if partition in committed else starts[partition]) + shift_by
            for partition in partitions
        }
    elif to_offset is not None:
        wished = dict.fromkeys(partitions, to_offset)
    else:
        wished = starts if to_earliest else ends
    new = {partition: min(max(wished[partition], starts[partition]), ends[partition]) for partition in partitions}
    for partition, wish in wished.items():
        if wish != new[partition]:
            output.warn(
                f"{partition.topic}:{partition.partition} has no offset {wish}: {new[partition]} is used instead",
                f"The partition begins at {starts[partition]} and ends before {ends[partition]}.",
            )
    if execute:
        _commit(cluster, name, new)
    rows = [
        {
            "group": name,
            "topic": partition.topic,
            "partition": partition.partition,
            "old_offset": committed[partition].offset if partition in committed else None,
            "wished_offset": wished[partition],
            "new_offset": new[partition],
            "executed": execute,
        }
        for partition in sorted(partitions)
    ]
    output.rows(rows, {"topic": "TOPIC", "partition": "PARTITION", "old_offset": "OLD", "new_offset": "NEW"})
    if not execute:
        output.note("Nothing is changed yet. Say --execute to move the offsets.")


def _commit(cluster: Cluster, group_id: str, offsets: dict[TopicPartition, int]) -> None:
    from kafka.structs import OffsetAndMetadata

    wanted = {partition: OffsetAndMetadata(offset, "", None) for partition, offset in offsets.items()}
    with explained(f"group '{group_id}'"):
        answer = cluster.patiently(lambda: cluster.admin.alter_group_offsets(group_id, wanted))
    codes = {error.errno for error in answer.values() if error.errno}
    if codes & {22, 25}:
        # While the group has members, the coordinator refuses the commit because it comes from no member.
        raise explain_code(68, f"group '{group_id}'")
    if codes:
        raise explain_code(min(codes), f"group '{group_id}'")


@app.command()
@cluster_command
def delete(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="GROUP…", help="Which groups; they must have no members.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC[:PARTITIONS]", help="Delete only the offsets of these partitions."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete groups with their offsets, or only some of their offsets."""
    from kafka import errors as kafka_errors

    part = f"the offsets of {', '.join(topic)} in " if topic else ""
    confirm(f"Delete {part}{counted(len(names), 'group')}: {', '.join(names)}?", yes, output)
    failures: list[CommandError] = []
    deleted = []
    for name in names:
        try:
            _require(cluster, name)
            with explained(f"group '{name}'"):
                if topic:
                    partitions = lookup.topic_partitions(cluster, topic)
                    errors = cluster.patiently(partial(cluster.admin.delete_group_offsets, name, partitions))
                    for partition, error in errors.items():
                        if error.errno:
                            raise explain_code(error.errno, f"the offset of {partition.topic}:{partition.partition}")
                else:
                    result = cluster.patiently(partial(cluster.admin.delete_groups, [name]), repeatable=False)[name]
                    if result != "OK":
                        raise explain_code(getattr(kafka_errors, result).errno, f"group '{name}'")
            deleted.append(name)
        except CommandError as error:
            failures.append(error)
    what = f"The offsets of {', '.join(topic)} in group" if topic else "Group"
    if output.as_json:
        output.document([{"group": name, "topics": topic} for name in deleted])
    else:
        for name in deleted:
            print(f"{what} {name} deleted.")
    raise_all(failures)
