"""`ottla configs`: describe and alter the settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import lookup
from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, ExitCode, NotFound, UsageError, explain_code, nearest
from ottla.cli.help import App
from ottla.cli.options import cluster_command
from ottla.cli.output import Output

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Settings of topics, brokers and groups.")

HIDDEN = "***"
_KINDS = ("topic", "broker", "group", "client-metrics")
_ALTER_FAILURE = re.compile(r"\[Error (-?\d+)\] \w+(?:: (.*))?", re.DOTALL)

KindArgument = Annotated[
    str, typer.Argument(metavar="topic|broker|group|client-metrics", help="The type of resource that has the settings.")
]


def _resource(kind: str, name: str, configs: Any = None) -> Any:
    from kafka.admin import ConfigResource, ConfigResourceType

    if kind not in _KINDS:
        raise UsageError(f"'{kind}' has no settings", f"Say one of: {', '.join(_KINDS)}.{nearest(kind, _KINDS)}")
    return ConfigResource(ConfigResourceType[kind.replace("-", "_").upper()], name, configs)


def described_settings(cluster: Cluster, kind: str, name: str, *, synonyms: bool = False) -> dict[str, dict[str, Any]]:
    """All settings of one resource, by name; each with value, config_source, read_only and is_sensitive."""
    with explained(f"the settings of {kind} '{name}'"):
        return cluster.patiently(lambda: _asked(cluster, kind, name, synonyms=synonyms))


def settings_of_any_broker(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The settings of one broker, chosen at random, by name. If it doesn't answer, another random choice is made.

    Use it only for settings that are the same on all brokers.
    """
    from kafka.errors import NodeNotReadyError, UnknownBrokerIdError

    def ask() -> dict[str, dict[str, Any]]:
        # kafka-python asks each broker itself for the broker's settings. The choice may be a dead broker, because the
        # cluster's description lists it until its session ends. After that, the client may drop the broker before this
        # command does. And a broker that has just started may list no brokers.
        brokers = cluster.admin.describe_cluster()["brokers"]
        try:
            return _asked(cluster, "broker", str(random.choice(brokers)["broker_id"]))
        except (IndexError, UnknownBrokerIdError) as error:
            raise NodeNotReadyError("the cluster lists no broker that could be asked") from error

    with explained("the settings of a broker"):
        return cluster.patiently(ask)


def _asked(cluster: Cluster, kind: str, name: str, *, synonyms: bool = False) -> dict[str, dict[str, Any]]:
    resource = _resource(kind, name)
    answer = cluster.admin.describe_configs([resource], include_synonyms=synonyms, config_filter="all")
    found: dict[str, dict[str, dict[str, Any]]] = next(iter(answer.values()), {})
    return found.get(name, {})


def known_topic_settings(cluster: Cluster) -> list[str]:
    """The names of all topic settings, from the description of any one topic; empty if there are no topics."""
    names = lookup.topic_names(cluster)
    return sorted(described_settings(cluster, "topic", names[0])) if names else []


def alter_resource(
    cluster: Cluster,
    kind: str,
    name: str,
    settings: dict[str, str],
    reset: Iterable[str] = (),
    *,
    append: dict[str, str] | None = None,
    subtract: dict[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """Sets `settings`, resets the settings in `reset` to their defaults, and adds to or removes from settings that are
    lists. Makes all changes or none."""
    from kafka.admin import AlterConfigOp

    changes: dict[str, tuple[Any, str | None]] = {key: (AlterConfigOp.SET, value) for key, value in settings.items()}
    changes |= dict.fromkeys(reset, (AlterConfigOp.DELETE, None))
    changes |= {key: (AlterConfigOp.APPEND, value) for key, value in (append or {}).items()}
    changes |= {key: (AlterConfigOp.SUBTRACT, value) for key, value in (subtract or {}).items()}
    resource = _resource(kind, name, changes)
    with explained(f"the settings of {kind} '{name}'"):
        answer = cluster.admin.alter_configs([resource], validate_only=validate_only, raise_on_unknown=False)
    for result in (result for by_name in answer.values() for result in by_name.values()):
        if result != "OK":
            raise _failure(cluster, kind, name, list(changes), result)


def _failure(cluster: Cluster, kind: str, name: str, changed: list[str], result: str) -> CommandError:
    # The client returns only the text "[Error 40] InvalidConfigurationError: …" of the broker's answer.
    parsed = _ALTER_FAILURE.fullmatch(result)
    if parsed is None:
        return CommandError(f"{kind} '{name}': {result}")
    code, message = int(parsed[1]), parsed[2] or ""
    if code == 3 and kind == "topic":
        return lookup.no_topic(cluster, name)
    error = explain_code(code, f"{kind} '{name}'", message)
    known = described_settings(cluster, kind, name)
    unknown = next((setting for setting in changed if setting not in known), None)
    if unknown and known:
        guess = nearest(unknown, known).strip()
        listing = f"`ottla configs describe {kind} {name} --all` lists the names."
        error = CommandError(f"{kind}s have no setting '{unknown}'", guess or listing, ExitCode.not_found, code)
    return error


@app.command()
@cluster_command
def describe(
    cluster: Cluster,
    output: Output,
    kind: KindArgument,
    name: Annotated[str, typer.Argument(help="The topic's name, the broker's id, …")],
    every: Annotated[bool, typer.Option("--all", "-a", help="Show defaults, too.")] = False,
    setting: Annotated[
        list[str] | None, typer.Option("--setting", "-s", metavar="NAME", help="Only this setting; may be repeated.")
    ] = None,
    synonyms: Annotated[
        bool, typer.Option("--synonyms", help="Show all places that set a value, in order of precedence.")
    ] = False,
) -> None:
    """Show settings; without --all only those that were set."""
    _require(cluster, kind, name)
    settings = described_settings(cluster, kind, name, synonyms=synonyms)
    for wanted in setting or []:
        if wanted not in settings:
            raise NotFound(f"{kind}s have no setting '{wanted}'", nearest(wanted, settings).strip())
    rows = []
    for key, config in sorted(settings.items()):
        if key not in setting if setting else not every and config["config_source"] == "DEFAULT_CONFIG":
            continue
        row = {
            "name": key,
            "value": config["value"],
            "source": config["config_source"],
            "read_only": config["read_only"],
            "sensitive": config["is_sensitive"],
        }
        if synonyms:
            row["synonyms"] = [
                {"name": synonym["name"], "value": synonym["value"], "source": synonym["source"]}
                for synonym in config.get("synonyms", [])
            ]
        rows.append(row)
    columns = {"name": "NAME", "value": "VALUE", "source": "SOURCE", "read_only": "READ-ONLY"}
    if synonyms and not output.as_json:
        columns["synonyms"] = "SYNONYMS"
        for row in rows:
            row["synonyms"] = [f"{item['source']}:{item['name']}={item['value']}" for item in row["synonyms"]]
    for row in rows:
        if row["sensitive"] and not output.as_json:
            row["value"] = "(hidden)"
    output.rows(rows, columns, empty=f"All settings of {kind} {name} are defaults. Show them: --all")


@app.command()
@cluster_command
def alter(
    cluster: Cluster,
    output: Output,
    kind: KindArgument,
    name: Annotated[str, typer.Argument(help="The topic's name, the broker's id, …")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="A value to set; may be repeated.")
    ] = None,
    reset: Annotated[
        list[str] | None, typer.Option("--reset", "-r", metavar="NAME", help="A setting to give back its default.")
    ] = None,
    append: Annotated[
        list[str] | None, typer.Option("--append", metavar="NAME=VALUE", help="Add to a setting that is a list.")
    ] = None,
    subtract: Annotated[
        list[str] | None, typer.Option("--subtract", metavar="NAME=VALUE", help="Remove from a setting that is a list.")
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only check the request; change nothing.")
    ] = False,
) -> None:
    """Change settings: all of the given ones, or none."""
    from ottla.cli.topics import parse_settings

    to_set, to_append, to_subtract = parse_settings(settings), parse_settings(append), parse_settings(subtract)
    if not (to_set or reset or to_append or to_subtract):
        raise UsageError("nothing to change", "Give --set NAME=VALUE, --reset NAME, --append or --subtract.")
    _require(cluster, kind, name)
    alter_resource(
        cluster, kind, name, to_set, reset or [], append=to_append, subtract=to_subtract, validate_only=validate_only
    )
    verb = "could be changed" if validate_only else "changed"
    output.done(
        f"Settings of {kind} {name} {verb}.",
        {
            "type": kind,
            "name": name,
            "set": _shown(to_set) if kind == "broker" else to_set,
            "reset": list(reset or []),
            "append": to_append,
            "subtract": to_subtract,
        },
    )


def _shown(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a broker as they may be shown: whoever reads the output need not be the one who typed a password."""
    from ottla.settings.sources import is_secret

    return {name: HIDDEN if is_secret(name) else value for name, value in settings.items()}


def _require(cluster: Cluster, kind: str, name: str) -> None:
    """Raises an error if the resource doesn't exist: the Kafka client returns no settings for an unknown resource."""
    if kind == "topic":
        lookup.describe_topics(cluster, [name])
    elif kind == "broker":
        if not name.isdecimal():
            raise UsageError(f"'{name}' is not a broker id", "`ottla brokers list` shows the ids of all brokers.")
        if int(name) not in cluster.racks():
            raise NotFound(f"there is no broker {name}", "`ottla brokers list` shows all brokers.")
