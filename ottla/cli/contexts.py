"""`ottla contexts`: names for clusters, kept in one TOML file in the user's configuration directory.

Owns the file. A context is a name with a bootstrap address, and perhaps the path of a file with a client's properties,
so that this file has no secrets itself. One context is current: commands use it unless `--bootstrap`, OTTLA_BOOTSTRAP
or `--context` names another cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.errors import CommandError, NotFound, UsageError, nearest
from ottla.cli.help import App
from ottla.cli.options import output_command
from ottla.cli.output import Output

app = App(no_args_is_help=True, help="Names for the addresses of clusters.")


@dataclass(frozen=True)
class ContextFile:
    """The file's content: each context's bootstrap address, the file of client properties that some contexts name, and
    the name of the current context."""

    current: str | None = None
    bootstraps: dict[str, str] = field(default_factory=dict)
    command_configs: dict[str, str] = field(default_factory=dict)


def file_path() -> Path:
    """The path in OTTLA_CONFIG_FILE, else that of `config.toml` in the user's configuration directory."""
    named = os.environ.get("OTTLA_CONFIG_FILE")
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("ottla") / "config.toml"


def load() -> ContextFile:
    """Reads the file; a missing file has no contexts."""
    path = file_path()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ContextFile()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandError(f"can't read the contexts in {path}: {error}", "Repair or remove that file.") from error
    current, contexts = data.get("current"), data.get("contexts", {})
    try:
        bootstraps = {str(name): str(context["bootstrap"]) for name, context in contexts.items()}
        configs = {
            str(name): str(context["command_config"])
            for name, context in contexts.items()
            if "command_config" in context
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise CommandError(f"a context in {path} has no bootstrap address", "Repair or remove that file.") from error
    return ContextFile(current if isinstance(current, str) else None, bootstraps, configs)


def store(contexts: ContextFile) -> None:
    """Replaces the file in one step, so that no process reads half of it."""
    lines = [f"current = {json.dumps(contexts.current)}"] if contexts.current else []
    for name, bootstrap in sorted(contexts.bootstraps.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]", f"bootstrap = {json.dumps(bootstrap)}"]
        if name in contexts.command_configs:
            lines.append(f"command_config = {json.dumps(contexts.command_configs[name])}")
    path = file_path()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CommandError(f"can't write the contexts to {path}: {error.strerror}", "See OTTLA_CONFIG_FILE.") from error


def bootstrap_of(contexts: ContextFile, name: str) -> str:
    """The bootstrap address of a context."""
    try:
        return contexts.bootstraps[name]
    except KeyError:
        raise NotFound(
            f"there is no context '{name}'",
            f"`ottla contexts list` shows all contexts.{nearest(name, contexts.bootstraps)}",
        ) from None


@app.command("list")
@output_command
def list_contexts(output: Output) -> None:
    """Show all contexts; the current one is marked."""
    contexts = load()
    rows = [
        {
            "name": name,
            "bootstrap": bootstrap,
            "command_config": contexts.command_configs.get(name),
            "current": name == contexts.current,
        }
        for name, bootstrap in sorted(contexts.bootstraps.items())
    ]
    output.rows(
        rows,
        {"name": "NAME", "bootstrap": "BOOTSTRAP", "command_config": "COMMAND-CONFIG", "current": "CURRENT"},
        empty="There are no contexts. Add one: ottla contexts add NAME HOST:PORT",
    )


@app.command("add")
@output_command
def add_context(
    output: Output,
    name: Annotated[str, typer.Argument(help="A name for the cluster.")],
    bootstrap: Annotated[str, typer.Argument(metavar="HOST:PORT,…", help="Its bootstrap address.")],
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            help="Client properties with which to connect to it; the context names the file and copies nothing.",
        ),
    ] = None,
) -> None:
    """Add or change a context. The first context becomes the current one."""
    from ottla.cli.connection import parse_bootstrap

    if not name:
        raise UsageError("a context needs a name")
    parse_bootstrap(bootstrap)
    contexts = load()
    bootstraps = {**contexts.bootstraps, name: bootstrap}
    configs = {other: file for other, file in contexts.command_configs.items() if other != name}
    if command_config is not None:
        configs[name] = str(command_config.absolute())
    store(ContextFile(contexts.current or name, bootstraps, configs))
    output.done(f"Context {name} is {bootstrap}.", {"name": name, "bootstrap": bootstrap})


@app.command("use")
@output_command
def use_context(output: Output, name: Annotated[str, typer.Argument(help="Which context.")]) -> None:
    """Make a context the current one."""
    contexts = load()
    bootstrap = bootstrap_of(contexts, name)
    store(replace(contexts, current=name))
    output.done(f"Now using {name} ({bootstrap}).", {"name": name, "bootstrap": bootstrap})


@app.command("delete")
@output_command
def delete_context(output: Output, name: Annotated[str, typer.Argument(help="Which context.")]) -> None:
    """Forget a context; the cluster itself isn't touched."""
    contexts = load()
    bootstrap_of(contexts, name)
    rest = {other: bootstrap for other, bootstrap in contexts.bootstraps.items() if other != name}
    configs = {other: file for other, file in contexts.command_configs.items() if other != name}
    store(ContextFile(None if contexts.current == name else contexts.current, rest, configs))
    output.done(f"Context {name} is forgotten.", {"name": name})
