"""`ottla broker`: start one broker from a server.properties file, stop it, and ask whether it runs.

The broker is another program (`server.py`). In the foreground, the broker's program replaces this one in the same
process (exec), so that the command line's libraries don't stay in memory. A daemon is a child process in its own
session.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.errors import CommandError, ExitCode, Failures, NotFound, UsageError, unreadable
from ottla.cli.help import App, Group
from ottla.cli.options import DebugOption, JsonOption, output_command
from ottla.cli.output import Output
from ottla.cli.processes import PidFile, server_command, serving, tail

if TYPE_CHECKING:
    from ottla.settings.config import BrokerConfig


class _StartedByFile(Group):
    """Accepts `ottla broker server.properties`, as Kafka's kafka-server-start takes the file without an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Turns a file name in the place of a subcommand into `--config FILE`."""
        values, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        if rest and rest[0] not in self.commands and values.get("config") is None and _names_file(rest[0]):
            args = ["--config", rest[0], *args[: len(args) - len(rest)], *rest[1:]]
        return super().parse_args(ctx, args)


def _names_file(word: str) -> bool:
    return word.endswith(".properties") or os.sep in word or os.path.isfile(word)


app = App(
    cls=_StartedByFile,
    help="Start one broker from a server.properties file.",
    epilog="The file may also be given without --config, as for kafka-server-start: ottla broker server.properties. "
    "Every setting can also come from the environment: OTTLA_LOG_SEGMENT_BYTES is log.segment.bytes.",
)

LOG_FILE = "ottla-broker.log"
_READY_TIMEOUT_S = 120.0

ConfigFileOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="A file with Kafka's property names.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting that overrides the file's; may be repeated."),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The broker's first log directory, instead of its settings."),
]


def load_configuration(file: Path | None, settings: list[str] | None) -> BrokerConfig:
    """The configuration that the broker will start with. Raises Failures with one UsageError for each mistake in it."""
    from ottla.cli.topics import parse_settings
    from ottla.settings.config import BrokerConfig, InvalidConfiguration

    overrides = parse_settings(settings, "--set log.retention.hours=24")
    try:
        text = file.read_text(encoding="utf-8") if file is not None else ""
    except OSError as error:
        raise unreadable(file, error) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"can't read {file}: {error}") from error
    try:
        return BrokerConfig.from_sources(text, overrides, os.environ)
    except InvalidConfiguration as error:
        raise Failures([UsageError(problem) for problem in error.problems]) from error


def _data_directory(data: Path | None, file: Path | None, settings: list[str] | None) -> Path:
    return data if data is not None else Path(load_configuration(file, settings).log_dirs[0])


@app.callback(invoke_without_command=True)
def broker(
    context: typer.Context,
    config: ConfigFileOption = None,
    settings: SetOption = None,
    etcd: Annotated[
        str | None,
        typer.Option("--etcd", metavar="ENDPOINTS", help="Keep metadata in etcd at HOST:PORT,…, not in a file."),
    ] = None,
    daemon: Annotated[bool, typer.Option("--daemon", "-d", help="Run in the background.")] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", help="With --daemon: the log's file; by default in the first log directory."
        ),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Start one broker. It runs until SIGTERM or Ctrl-C, then closes its logs cleanly."""
    if context.invoked_subcommand is not None:
        if config is not None or settings or etcd is not None:
            name = context.invoked_subcommand
            raise UsageError(
                "give the options after the name of the command",
                f"Write: ottla broker {name} --config FILE.",
            )
        return
    if etcd is not None:
        settings = [*(settings or []), f"ottla.metadata.store=etcd:{etcd}"]
    resolved = load_configuration(config, settings)
    directory = Path(resolved.log_dirs[0])
    pid_file = PidFile(directory)
    descriptor = pid_file.acquire("another broker")
    command = server_command(config, settings or [])
    if daemon:
        _start_daemon(command, pid_file, descriptor, log or directory / LOG_FILE, Output(as_json))
        return
    os.set_inheritable(descriptor, True)
    os.execv(command[0], command)


def _start_daemon(command: list[str], pid_file: PidFile, descriptor: int, log: Path, output: Output) -> None:
    try:
        log_file = log.open("ab")
    except OSError as error:
        raise CommandError(f"can't write the log {log}: {(error.strerror or '').lower()}", "See --log.") from error
    with log_file:
        begin = log_file.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
            pass_fds=[descriptor],
        )
    pid_file.write(process.pid)
    pid_file.release()
    ready = _wait_until_ready(process, log, begin)
    output.done(
        f"Broker {ready['id']} is running at {ready['bootstrap']} (process {process.pid}, log {log}).",
        {"id": int(ready["id"]), "bootstrap": ready["bootstrap"], "pid": process.pid, "log": str(log)},
    )


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, begin: int) -> dict[str, str]:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        with log.open("rb") as file:
            file.seek(begin)
            for line in file:
                ready = parse_ready(line.decode("utf-8", "replace"))
                if ready:
                    return ready
        if ended:
            said = "; ".join(tail(log, 3))
            raise CommandError(f"the broker ended at once (exit code {process.returncode}): {said}", f"Its log: {log}")
        time.sleep(0.1)
    raise CommandError(
        f"the broker (process {process.pid}) is still starting after {_READY_TIMEOUT_S:g} s",
        f"The broker continues to start; its log is {log}.",
        ExitCode.timed_out,
    )


def parse_ready(line: str) -> dict[str, str] | None:
    """`id`, `bootstrap` and `pid` from the line that a broker prints once it serves; None for any other line."""
    words = line.split()
    if words[:2] != ["ottla", "broker"] or words[3:4] != ["ready"]:
        return None
    return {"id": words[2], **dict(word.partition("=")[::2] for word in words[4:])}


@app.command()
@output_command
def stop(
    output: Output,
    config: ConfigFileOption = None,
    settings: SetOption = None,
    data: DataOption = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for a clean stop.")] = 60,
) -> None:
    """Stop the broker of a data directory and wait until it has closed its logs."""
    directory = _data_directory(data, config, settings)
    pid = PidFile(directory).stop(timeout)
    if pid is None:
        raise NotFound(f"no broker runs on {directory}", "Name its directory with --data, or its file with --config.")
    output.done(f"The broker (process {pid}) has stopped.", {"pid": pid, "data": str(directory)})


@app.command()
@output_command
def status(
    output: Output, config: ConfigFileOption = None, settings: SetOption = None, data: DataOption = None
) -> None:
    """Say whether the broker of a data directory runs. Exit code 3 means that it doesn't."""
    directory = _data_directory(data, config, settings)
    pid = PidFile(directory).running_pid()
    endpoint = load_configuration(config, settings).listeners.advertised[0] if data is None else None
    record = {
        "running": pid is not None,
        "pid": pid,
        "bootstrap": f"{endpoint.host or '127.0.0.1'}:{endpoint.port}" if endpoint else None,
        "serving": serving(endpoint.host, endpoint.port) if endpoint and pid else None,
        "data": str(directory),
    }
    labels = {"running": "Running", "pid": "Process", "bootstrap": "Bootstrap", "serving": "Serving", "data": "Data"}
    output.record(record, labels)
    if pid is None:
        raise typer.Exit(ExitCode.unreachable)
