"""`ottla controller`: a controller in its own process, for clusters whose brokers aren't to be controllers.

By default every broker's process is also a candidate for controller (`process.roles`).
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ottla.cli.broker import ConfigFileOption, SetOption, load_configuration
from ottla.cli.errors import UsageError
from ottla.cli.options import DebugOption
from ottla.cli.processes import server_command

_ROLE = "process.roles=controller"


def controller(
    config: ConfigFileOption = None,
    settings: SetOption = None,
    etcd: Annotated[
        str | None,
        typer.Option("--etcd", metavar="ENDPOINTS", help="Use the metadata in etcd at HOST:PORT,…, not in a file."),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run a controller without a broker, until SIGTERM or Ctrl-C. If several controllers run, one is active, and the
    others stand by."""
    chosen = [*(settings or []), _ROLE]
    if etcd is not None:
        chosen.append(f"ottla.metadata.store=etcd:{etcd}")
    resolved = load_configuration(config, chosen)
    if resolved.get_str("ottla.metadata.store") == "embedded":
        raise UsageError(
            "a controller needs the metadata store of its brokers",
            "Name it: --etcd HOST:PORT,…, or --set ottla.metadata.store=embedded:FILE.",
        )
    command = server_command(config, chosen)
    os.execv(command[0], command)
