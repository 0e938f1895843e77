"""`ottla topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from uuid import UUID

import typer

from ottla.cli import elections, health, lookup, moves, reassign
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, NotFound, UsageError, explain_code, nearest, raise_all
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.uuids import uuid_text
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

TOPIC_EXISTS = 36
INVALID_CONFIG = 40
ConfigOption = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; may be repeated.")
]


def parse_settings(settings: list[str] | None, example: str = "--config retention.ms=3600000") -> dict[str, str]:
    """`name=value` pairs as a dictionary."""
    parsed = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"'{setting}' is not NAME=VALUE", f"For instance: {example}.")
        parsed[name.strip()] = value
    return parsed


@app.command()
@cluster_command
def create(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The topics' names.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=-1, help="How many partitions; -1 means the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option("--replication-factor", "-r", min=-1, help="How many replicas; -1 means the broker's default."),
    ] = -1,
    config: ConfigOption = None,
    assignment: Annotated[
        str | None,
        typer.Option(
            "--assignment",
            metavar="1:2,2:3",
            help="Brokers of each partition: ':' between replicas, ',' between partitions.",
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="A topic that exists is no error.")] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only check the request; change nothing.")
    ] = False,
) -> None:
    """Create topics."""
    settings = parse_settings(config)
    assignments = _parse_assignment(assignment)
    if assignments and (partitions != -1 or replication_factor != -1):
        raise UsageError("--assignment already gives the numbers of partitions and replicas", "Leave the numbers out.")
    wanted = {
        name: {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": settings,
            "assignments": assignments,
        }
        for name in names
    }
    try:
        with explained(f"creating {', '.join(names)}"):
            answer = cluster.admin.create_topics(
                wanted, validate_only=validate_only, raise_errors=False, timeout_ms=cluster.timeout_ms
            )
    except CommandError as error:
        raise health.with_cause(cluster, error) from error
    created, failures = [], []
    for topic in answer["topics"]:
        if topic["error_code"] == TOPIC_EXISTS and if_not_exists:
            output.note(f"Topic {topic['name']} exists already.")
        elif topic["error_code"]:
            failures.append(_creation_error(cluster, topic, settings))
        else:
            created.append(
                {
                    "name": topic["name"],
                    "topic_id": kafka_uuid(topic.get("topic_id")),
                    "partitions": topic.get("num_partitions", partitions),
                    "replication_factor": topic.get("replication_factor", replication_factor),
                }
            )
    if not validate_only:
        with explained(f"waiting for {', '.join(names)}"):
            cluster.admin.wait_for_topics([topic["name"] for topic in created], timeout_ms=cluster.timeout_ms)
    if output.as_json:
        output.document(created)
    for topic in created:
        verb = "could be created" if validate_only else "created"
        if not output.as_json:
            print(
                f"Topic {topic['name']} {verb}: {counted(topic['partitions'], 'partition')}, "
                f"replication factor {topic['replication_factor']}."
            )
    raise_all(failures)


def _creation_error(cluster: Cluster, topic: dict[str, Any], settings: dict[str, str]) -> CommandError:
    name, message = topic["name"], topic["error_message"] or ""
    error = explain_code(topic["error_code"], f"topic '{name}'", message)
    error = health.with_cause(cluster, error)
    if error.kafka_code == INVALID_CONFIG:
        from ottla.cli.configs import known_topic_settings

        known = known_topic_settings(cluster)
        unknown = next((setting for setting in settings if setting not in known), None)
        if unknown and known:
            error = CommandError(f"topics have no setting '{unknown}'", nearest(unknown, known).strip() or error.remedy)
    return error


@app.command("list")
@cluster_command
def list_topics(
    cluster: Cluster,
    output: Output,
    internal: Annotated[bool, typer.Option("--internal", help="Show Kafka's own topics, too.")] = False,
) -> None:
    """List topics."""
    with explained("the list of topics"):
        topics = sorted(cluster.patiently(cluster.admin.describe_topics), key=lambda topic: str(topic["name"]))
    rows = [
        {
            "name": topic["name"],
            "topic_id": kafka_uuid(topic["topic_id"]),
            "partitions": len(topic["partitions"]),
            "replication_factor": max((len(p["replica_nodes"]) for p in topic["partitions"]), default=0),
            "internal": topic["is_internal"],
        }
        for topic in topics
        if internal or not topic["is_internal"]
    ]
    output.rows(
        rows,
        {"name": "NAME", "partitions": "PARTITIONS", "replication_factor": "REPLICAS", "topic_id": "ID"},
        empty="There are no topics. Make one: ottla topics create NAME",
    )


@app.command()
@cluster_command
def describe(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Which topics; all if left out.")] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with replicas out of sync.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only partitions without a leader.")] = False,
) -> None:
    """Show topics with their partitions and changed settings."""
    from kafka.admin import ConfigResource, ConfigResourceType

    wanted = names or [name for name in lookup.topic_names(cluster) if not name.startswith("__")]
    topics = lookup.describe_topics(cluster, wanted)
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic["name"]) for topic in topics]
    with explained("the settings of topics"):
        configs = (
            cluster.patiently(lambda: cluster.admin.describe_configs(resources)).get("topic", {}) if resources else {}
        )
    described = []
    for topic in topics:
        settings = {
            name: config["value"]
            for name, config in sorted(configs.get(topic["name"], {}).items())
            if config["config_source"] == "DYNAMIC_TOPIC_CONFIG"
        }
        partitions = [
            _partition_row(partition)
            for partition in sorted(topic["partitions"], key=lambda partition: int(partition["partition_index"]))
        ]
        if under_replicated:
            partitions = [row for row in partitions if len(row["isr"]) < len(row["replicas"])]
        if unavailable:
            partitions = [row for row in partitions if row["leader"] is None]
        if partitions or not (under_replicated or unavailable):
            described.append(
                {
                    "name": topic["name"],
                    "topic_id": kafka_uuid(topic["topic_id"]),
                    "internal": topic["is_internal"],
                    "configs": settings,
                    "partitions": partitions,
                }
            )
    if output.as_json:
        output.document(described)
        return
    if not described:
        output.note("No partition meets the conditions." if under_replicated or unavailable else "There are no topics.")
    for number, row in enumerate(described):
        settings_text = ", ".join(f"{name}={value}" for name, value in row["configs"].items())
        output.title(
            ("\n" if number else "") + f"{row['name']}   id {row['topic_id']}   {settings_text or 'default settings'}"
        )
        output.rows(
            row["partitions"],
            {
                "partition": "PARTITION",
                "leader": "LEADER",
                "leader_epoch": "EPOCH",
                "replicas": "REPLICAS",
                "isr": "ISR",
                "offline": "OFFLINE",
            },
        )


def _partition_row(partition: dict[str, Any]) -> dict[str, Any]:
    return {
        "partition": partition["partition_index"],
        "leader": partition["leader_id"] if partition["leader_id"] >= 0 else None,
        "leader_epoch": partition.get("leader_epoch"),
        "replicas": partition["replica_nodes"],
        "isr": partition["isr_nodes"],
        "offline": partition.get("offline_replicas", []),
    }


@app.command()
@cluster_command
def alter(
    cluster: Cluster,
    output: Output,
    name: Annotated[str, typer.Argument(help="Which topic.")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="The new number of partitions, more than now.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="How many replicas each partition is to have."),
    ] = None,
    config: ConfigOption = None,
    reset: Annotated[
        list[str] | None, typer.Option("--reset", metavar="NAME", help="A setting to give back its default.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="Wait up to this time until new replicas are in sync."),
    ] = 60.0,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only check the request; change nothing.")
    ] = False,
) -> None:
    """Add partitions to a topic, give it more or fewer replicas, or change its settings."""
    from ottla.cli.configs import alter_resource

    settings = parse_settings(config)
    if partitions is None and replication_factor is None and not settings and not reset:
        raise UsageError(
            "nothing to change", "Give --partitions, --replication-factor, --config NAME=VALUE or --reset NAME."
        )
    lookup.describe_topics(cluster, [name])
    if replication_factor is not None:  # this comes first: if there are too few brokers, nothing is changed
        moves.resizing(cluster, [name], replication_factor)
    if settings or reset:
        alter_resource(cluster, "topic", name, settings, reset or [], validate_only=validate_only)
    if partitions is not None:
        _grow(cluster, name, partitions, validate_only=validate_only)
    resized = _resize(cluster, name, replication_factor, wait, validate_only=validate_only)
    verb = "could be changed" if validate_only else "changed"
    output.done(
        f"Topic {name} {verb}{resized.sentence}.",
        {
            "name": name,
            "partitions": partitions,
            "configs": settings,
            "reset": list(reset or []),
            "replication_factor": replication_factor,
            "moves": resized.moves,
        },
    )


def _grow(cluster: Cluster, name: str, partitions: int, *, validate_only: bool) -> None:
    with explained(f"topic '{name}'"):
        answer = cluster.admin.create_partitions(
            {name: partitions}, validate_only=validate_only, raise_errors=False, timeout_ms=cluster.timeout_ms
        )
    for result in answer.results:
        if result.error_code:
            raise explain_code(result.error_code, f"topic '{name}'", result.error_message)


class _Resized(NamedTuple):
    """The number of partitions that get other replicas, and the end of the sentence that reports it to the user."""

    moves: int
    sentence: str


def _resize(
    cluster: Cluster, name: str, replication_factor: int | None, wait: float, *, validate_only: bool
) -> _Resized:
    if replication_factor is None:
        return _Resized(0, "")
    _, planned = moves.resizing(cluster, [name], replication_factor)
    if not planned:
        return _Resized(0, f": all its partitions have {counted(replication_factor, 'replica')}")
    if not validate_only:
        moves.begin(cluster, planned)
    what = f"{counted(len(planned), 'partition')} to {counted(replication_factor, 'replica')}"
    if validate_only or not wait:
        return _Resized(len(planned), f": {what}")
    reassign.wait_for(cluster, planned, wait)
    return _Resized(len(planned), f": {what}, all in sync")


@app.command()
@cluster_command
def delete(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Which topics.")],
    regex: Annotated[
        bool,
        typer.Option("--regex", "-r", help="The names are regular expressions; each must match whole names of topics."),
    ] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that doesn't exist is no error.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete topics with all their records."""
    if regex:
        names = _matching(cluster, output, names, if_exists)
        if not names:
            output.rows([], {})
            return
        if not yes:
            output.note(f"{counted(len(names), 'topic')}: {', '.join(names)}")
        confirm(f"Delete {counted(len(names), 'topic')} with all records?", yes, output)
    else:
        confirm(f"Delete {', '.join(names)} with all records?", yes, output)
    with explained(f"deleting {', '.join(names)}"):
        answer = cluster.admin.delete_topics(names, raise_errors=False, timeout_ms=cluster.timeout_ms)
    deleted: list[str] = []
    failures: list[CommandError] = []
    for topic in answer["topics"]:
        if not topic["error_code"]:
            deleted.append(topic["name"])
        elif topic["error_code"] != 3:
            failures.append(explain_code(topic["error_code"], f"topic '{topic['name']}'", topic.get("error_message")))
        elif not if_exists:
            failures.append(lookup.no_topic(cluster, topic["name"]))
    if output.as_json:
        output.document([{"name": name} for name in deleted])
    else:
        for name in deleted:
            print(f"Topic {name} deleted.")
    raise_all(failures)


def _matching(cluster: Cluster, output: Output, patterns: list[str], if_exists: bool) -> list[str]:
    """The topics that match any of the regular expressions."""
    found: set[str] = set()
    for pattern in patterns:
        try:
            found.update(lookup.matching_topics(cluster, pattern))
        except NotFound as error:
            if not if_exists:
                raise
            output.note(f"{error.message[:1].upper()}{error.message[1:]}.")
    return sorted(found)


@app.command()
@cluster_command
def elect(
    cluster: Cluster,
    output: Output,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME…]", help="Topics, or a topic's partitions as TOPIC:0,2-4; by default all topics."
        ),
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect any live replica if there is no leader: records may be lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Give partitions back to their preferred leaders, or (--unclean) to any live replica."""
    if unclean:
        confirm("Elect replicas that may lack acknowledged records?", yes, output)
    partitions: dict[str, list[int]] | None = None
    if names:
        asked = dict(map(lookup.parse_topic, names))
        described = lookup.describe_topics(cluster, asked)
        partitions = {
            topic["name"]: asked[topic["name"]] or [p["partition_index"] for p in topic["partitions"]]
            for topic in described
        }
    elected, failures = elections.elect(cluster, partitions, unclean=unclean)
    if output.as_json:
        output.document([{"topic": topic, "partition": index} for topic, index in elected])
    else:
        print(f"{counted(len(elected), 'election')} held.")
    raise_all(failures)


def _parse_assignment(text: str | None) -> dict[int, list[int]]:
    if text is None:
        return {}
    try:
        return {
            partition: [int(broker) for broker in brokers.split(":")]
            for partition, brokers in enumerate(text.split(","))
        }
    except ValueError:
        raise UsageError(
            f"'{text}' is not an assignment", "Write broker ids: 1:2,2:3 is two partitions with two replicas each."
        ) from None


def kafka_uuid(text: str | UUID | None) -> str | None:
    """A topic id as Kafka's own tools print it."""
    return uuid_text(UUID(str(text))) if text else None
