"""The `ottla` command: joins the command families, and turns every failure into one line and an exit code.

Neither this module nor the modules that it imports may import the Kafka client, rich or the broker at the top: `ottla
--help` and shell completion have to be quick. Only this module decides the meaning of an uncaught exception.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from ottla.cli import (
    acls,
    adopt,
    balance,
    broker,
    cluster,
    configs,
    consume,
    contexts,
    controller,
    dev,
    drain,
    groups,
    log_files,
    metadata,
    metadata_backup,
    offsets,
    operator,
    pipelines,
    produce,
    quotas,
    reassign,
    tokens,
    topics,
    transactions,
    users,
)
from ottla.cli.errors import CommandError, ExitCode, Failures, PipeClosed, sentences
from ottla.cli.help import App
from ottla.cli.options import output_command
from ottla.cli.output import Output
from ottla.cli.route import Route, Straight

# The base class of the parser's usage errors. typer doesn't export it.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]

app = App(
    name="ottla",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ottla: Apache Kafka's system in Python. Start with `ottla dev`.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong use, 3 cluster not reachable, 4 no such thing, 5 no answer in time.",
)

_AFTER_THE_COMMAND = ("--bootstrap", "-b", "--context", "--timeout", "--json")
_CLUSTER = "Topics, records and groups"
_RUNNING = "Running brokers"
_MORE = "More"

app.command("produce", rich_help_panel=_CLUSTER)(produce.produce)
app.command("consume", rich_help_panel=_CLUSTER)(consume.consume)
app.add_typer(topics.app, name="topics", rich_help_panel=_CLUSTER)
app.add_typer(groups.app, name="groups", rich_help_panel=_CLUSTER)
app.add_typer(transactions.app, name="transactions", rich_help_panel=_CLUSTER)
app.add_typer(configs.app, name="configs", rich_help_panel=_CLUSTER)
app.add_typer(acls.app, name="acls", rich_help_panel=_CLUSTER)
app.add_typer(quotas.app, name="quotas", rich_help_panel=_CLUSTER)
app.add_typer(users.app, name="users", rich_help_panel=_CLUSTER)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_CLUSTER)
app.command("offsets", rich_help_panel=_CLUSTER)(offsets.offsets)
app.command("delete-records", rich_help_panel=_CLUSTER)(offsets.delete_records)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_CLUSTER)
app.add_typer(cluster.brokers_app, name="brokers", rich_help_panel=_CLUSTER)
cluster.brokers_app.command("drain")(drain.drain)
cluster.brokers_app.command("undrain")(drain.undrain)
app.add_typer(reassign.app, name="reassign", rich_help_panel=_CLUSTER)
app.add_typer(balance.app, name="balance", rich_help_panel=_CLUSTER)
app.command("log-dirs", rich_help_panel=_CLUSTER)(cluster.log_dirs)
app.add_typer(pipelines.app, name="pipelines", rich_help_panel=_CLUSTER)
app.command("dev", rich_help_panel=_RUNNING)(dev.dev)
app.add_typer(broker.app, name="broker", rich_help_panel=_RUNNING)
app.command("controller", rich_help_panel=_RUNNING)(controller.controller)
app.add_typer(operator.app, name="operator", rich_help_panel=_RUNNING)
app.add_typer(log_files.app, name="log", rich_help_panel=_RUNNING)
app.command("adopt", rich_help_panel=_RUNNING)(adopt.adopt)
app.add_typer(metadata.app, name="metadata", rich_help_panel=_RUNNING)
metadata.app.command("backup")(metadata_backup.backup)
metadata.app.command("restore")(metadata_backup.restore)
metadata.app.command("go-without")(metadata_backup.go_without)
app.add_typer(contexts.app, name="contexts", rich_help_panel=_MORE)


def _show_version(wished: bool) -> None:
    if wished:
        version(as_json=False, debug=False)
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(rich_help_panel=_MORE)
@output_command
def version(output: Output) -> None:
    """Show the version."""
    import platform
    from importlib.metadata import version as installed

    from ottla.protocol.record_walk import NATIVE

    record = {
        "ottla": installed("ottla"),
        "python": platform.python_version(),
        "record_walk": "native" if NATIVE else "python",
    }
    walk = "native walk of records" if NATIVE else "walk of records in Python, which is slow"
    output.done(f"ottla {record['ottla']} (Python {record['python']}, {walk})", record)


def main() -> None:
    """Runs `ottla` and ends the process with one of the documented exit codes."""
    leave(run_ottla, "ottla")


def run_ottla(arguments: list[str], program: str = "ottla", route: Route | None = None) -> object:
    """Runs a command of `ottla` with these arguments. The command reaches brokers by `route` (None: directly)."""
    return app(arguments, prog_name=program, standalone_mode=False, obj=route or Straight())


def leave(run: Callable[[list[str]], object], program: str) -> NoReturn:
    """Calls `run` with this process's arguments, and ends the process with one of the documented exit codes."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or os.environ.get("OTTLA_DEBUG", "") not in ("", "0")
    if debug:
        import logging

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    code = _run(run, program, arguments, debug)
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == ExitCode.ok:
            code = ExitCode.pipe_closed if isinstance(error, BrokenPipeError) else ExitCode.failed
            if code == ExitCode.failed:
                _complain(_unforeseen(error), "--json" in arguments)
        # Otherwise Python would flush stdout again at exit, print the error and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _run(run: Callable[[list[str]], object], program: str, arguments: list[str], debug: bool) -> int:
    try:
        outcome = run(arguments)
        return outcome if isinstance(outcome, int) else ExitCode.ok
    except CommandError as error:
        if debug:
            traceback.print_exc()
        _complain(error, "--json" in arguments)
        return error.exit_code
    except _ParserError as error:
        return _usage(error, program)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.interrupted
    except PipeClosed:
        return ExitCode.pipe_closed
    except Exception as error:
        if debug:
            traceback.print_exc()
        _complain(_unforeseen(error), "--json" in arguments)
        return ExitCode.failed


def _usage(error: Exception, program: str) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        try:
            print(context.get_help())
        except BrokenPipeError:
            return ExitCode.pipe_closed
        return ExitCode.usage
    path = context.command_path if context else program
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    remedy = f"See: {path} --help"
    if getattr(error, "option_name", None) in _AFTER_THE_COMMAND and path.removeprefix(program).count(" ") < 2:
        remedy = f"The option stands after the command, as in: {program} topics list {error.option_name}"  # type: ignore[attr-defined]
    print(f"error: {sentences(message, remedy)}".rstrip("."), file=sys.stderr)
    return ExitCode.usage


def _unforeseen(error: Exception) -> CommandError:
    """The error for an exception that no command expected: one line that says how to see the stack trace."""
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return CommandError(f"{name}{error.strerror.lower()}", "Run the command again with --debug for the details.")
    kafka_errors = sys.modules.get("kafka.errors")
    if kafka_errors is not None and isinstance(error, kafka_errors.KafkaError):
        from ottla.cli.connection import sentence

        return sentence(error, "the request")
    return CommandError(
        f"this should not happen: {type(error).__name__}: {error}",
        "Run the command again with --debug, and report the output.",
    )


def _complain(error: CommandError, as_json: bool) -> None:
    if isinstance(error, Failures):
        for one in error.errors:
            _complain(one, as_json)
        return
    if as_json:
        fields = {"message": error.message, "remedy": error.remedy, "exit_code": int(error.exit_code)}
        print(json.dumps({"error": {**fields, "kafka_code": error.kafka_code or None}}), file=sys.stderr)
    else:
        print(f"error: {error.line()}", file=sys.stderr)


if __name__ == "__main__":
    main()
