"""The options that many commands share, and the decorators that add them.

`@output_command` adds `--json` and `--debug` to a command and passes it an `Output`. `@cluster_command` also adds
`--bootstrap`, `--context`, `--command-config` and `--timeout`, and passes a `Cluster` before the `Output`. The shared
options come after the command's own in its help, and can be given at the end of the command line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from ottla.cli.errors import PipeClosed
from ottla.cli.output import Output

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.cli.route import Route
    from ottla.security.preparation import PreparedSecurity

P = ParamSpec("P")

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.", rich_help_panel="Shared options")]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the stack trace of an error.", rich_help_panel="Shared options")
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        metavar="HOST:PORT,…",
        help=f"The cluster's address; by default that of the current context, else {BOOTSTRAP_DEFAULT}.",
        rich_help_panel="Shared options",
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="OTTLA_CONTEXT",
        metavar="NAME",
        help="Which context of `ottla contexts` to use.",
        rich_help_panel="Shared options",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="How long to wait for the cluster.",
        rich_help_panel="Shared options",
    ),
]

CommandConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="OTTLA_COMMAND_CONFIG",
        metavar="FILE",
        help="Properties of a Kafka client that say how connections are secured; by default those of the context.",
        rich_help_panel="Shared options",
    ),
]

_INVOCATION = "invocation"
_OUTPUT_OPTIONS: dict[str, tuple[Any, Any]] = {"as_json": (JsonOption, False), "debug": (DebugOption, False)}
_CLUSTER_OPTIONS: dict[str, tuple[Any, Any]] = {
    _INVOCATION: (typer.Context, inspect.Parameter.empty),  # the context's `obj` is the Route
    "bootstrap": (BootstrapOption, None),
    "context": (ContextOption, None),
    "command_config": (CommandConfigOption, None),
    "timeout": (TimeoutOption, 15.0),
    **_OUTPUT_OPTIONS,
}


def output_command(function: Callable[Concatenate[Output, P], None]) -> Callable[..., None]:
    """Makes a command of a function whose first argument is the `Output`."""

    def run(*, as_json: bool, debug: bool, **arguments: Any) -> None:
        with _pipe_watched():
            function(Output(as_json), **arguments)  # type: ignore[call-arg]

    return _dressed(run, function, _parameters(function, leading=1), _OUTPUT_OPTIONS)


def cluster_command(function: Callable[Concatenate[Cluster, Output, P], None]) -> Callable[..., None]:
    """Makes a command of a function whose first arguments are the `Cluster` and the `Output`."""
    parameters = _parameters(function, leading=2)
    # The parser fills in only one parameter of this type: the function's own, if it has one.
    own = next((parameter.name for parameter in parameters if parameter.annotation is typer.Context), None)
    options = {name: option for name, option in _CLUSTER_OPTIONS.items() if own is None or name != _INVOCATION}

    def run(
        *,
        bootstrap: str | None,
        context: str | None,
        command_config: Path | None,
        timeout: float,
        as_json: bool,
        debug: bool,
        **arguments: Any,
    ) -> None:
        from ottla.cli.connection import Cluster, find_target

        route: Route = (arguments[own] if own else arguments.pop(_INVOCATION)).obj
        target = find_target(route, bootstrap, context, command_config)
        security = None if target.command_config is None else _read_security(target.command_config)
        with _pipe_watched(), Cluster(target.bootstrap, timeout, route, security, target.command_config) as cluster:
            function(cluster, Output(as_json), **arguments)  # type: ignore[call-arg]

    return _dressed(run, function, parameters, options)


def _read_security(file: Path) -> PreparedSecurity:
    from ottla.cli.security import read_command_config  # only here: it takes time, and most commands have no file

    return read_command_config(file)


@contextmanager
def _pipe_watched() -> Iterator[None]:
    # typer would end the command with exit code 1 on a BrokenPipeError.
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosed from error


def _dressed(
    run: Callable[..., None],
    function: Callable[..., None],
    own: list[inspect.Parameter],
    options: Mapping[str, tuple[Any, Any]],
) -> Callable[..., None]:
    """Gives `run` the signature that typer reads: the function's own parameters, then the shared options."""
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    parameters = [*own, *shared]
    run.__name__, run.__qualname__, run.__doc__ = function.__name__, function.__qualname__, function.__doc__
    run.__module__ = function.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(function: Callable[..., None], leading: int) -> list[inspect.Parameter]:
    """The function's parameters without the first `leading` ones, with their annotations evaluated."""
    # `Cluster` is imported for type checkers only, to keep the Kafka client out of `--help`.
    module_names = {"Cluster": Any, **function.__globals__}
    hints = inspect.get_annotations(function, globals=module_names, eval_str=True)
    own = list(inspect.signature(function).parameters.values())[leading:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [parameter.replace(kind=keyword, annotation=hints[parameter.name]) for parameter in own]
