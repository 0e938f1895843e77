"""`ottla operator`: runs the operator for Cluster and Topic resources, or checks its installation (`doctor`).

The operator runs in a pod, from the chart `ottla-operator`. Outside a pod it uses $KUBECONFIG, but still has to reach
pods and Services at their cluster-internal addresses. `ottla operator doctor` runs wherever kubectl works.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.errors import CommandError, ExitCode, UsageError
from ottla.cli.help import App
from ottla.cli.options import DebugOption, output_command
from ottla.cli.output import Output
from ottla.operator.log_level import LogLevel, set_log_level
from ottla.wording import counted

app = App(
    help="Run the Kubernetes operator, until SIGTERM or Ctrl-C. The chart ottla-operator runs this command in a pod."
)


@app.callback(invoke_without_command=True)
def operator(
    context: typer.Context,
    namespaces: Annotated[
        str,
        typer.Option(
            "--namespaces",
            metavar="NAMESPACE,…",
            envvar="OTTLA_OPERATOR_NAMESPACES",
            help="Look after these namespaces only; all of them if none is named.",
        ),
    ] = "",
    selector: Annotated[
        str,
        typer.Option(metavar="LABELS", envvar="OTTLA_OPERATOR_SELECTOR", help="Only Clusters with these labels."),
    ] = "",
    image: Annotated[
        str,
        typer.Option(metavar="IMAGE", envvar="OTTLA_OPERATOR_IMAGE", help="Image of brokers whose Cluster names none."),
    ] = "",
    etcd_image: Annotated[
        str,
        typer.Option(
            metavar="IMAGE", envvar="OTTLA_OPERATOR_ETCD_IMAGE", help="Image of etcd if the Cluster names none."
        ),
    ] = "",
    lease: Annotated[
        str,
        typer.Option(
            metavar="NAME", envvar="OTTLA_OPERATOR_LEASE", help="Lease whose holder is the one operator that acts."
        ),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAMESPACE", envvar="OTTLA_OPERATOR_NAMESPACE", help="Namespace that the operator itself runs in."
        ),
    ] = "default",
    pod: Annotated[
        str,
        typer.Option(
            metavar="NAME", envvar="OTTLA_OPERATOR_POD", help="The name under which this operator holds the Lease."
        ),
    ] = "",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="OTTLA_OPERATOR_PORT", help="Port of /metrics, /healthz and /readyz."),
    ] = 9100,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="OTTLA_OPERATOR_LOG_LEVEL", help="Level of the log.")
    ] = LogLevel.info,
    log_level_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="OTTLA_OPERATOR_LOG_LEVEL_FILE",
            help="A file with the log level, whose content may change while the operator runs.",
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run the Kubernetes operator, until SIGTERM or Ctrl-C. The chart ottla-operator runs this command in a pod."""
    if context.invoked_subcommand is not None:
        return
    import asyncio
    import logging
    from importlib.metadata import version

    with needing_packages():
        from ottla.operator.app import Options, operate
        from ottla.operator.spec.cluster import Defaults
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    set_log_level(log_level)
    options = Options(
        defaults=Defaults(image, etcd_image, version("ottla")),
        namespaces=frozenset(part.strip() for part in namespaces.split(",") if part.strip()),
        selector=selector,
        lease=lease,
        lease_namespace=namespace,
        identity=pod or os.uname().nodename,
        http_port=port,
        log_level_file=log_level_file,
    )
    try:
        asyncio.run(operate(options))
    except OSError as error:
        raise CommandError(f"the operator can't start: {error.strerror or error}") from error


@app.command()
@output_command
def doctor(
    output: Output,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="Which context of kubectl's configuration to use."),
    ] = None,
) -> None:
    """Say what is wrong with the operator's rights, definitions and versions. Uses kubectl's configuration."""
    import asyncio
    from datetime import UTC, datetime
    from importlib.metadata import version

    with needing_packages():
        from kubernetes.aio.config import ConfigException

        from ottla.operator.doctor import Doctor
        from ottla.operator.kube import Kube, KubeError

    async def look() -> list[dict[str, object]]:
        kube = await Kube.connect_as_user(context)
        try:
            findings = await Doctor(kube, version("ottla"), datetime.now(UTC)).look()
        finally:
            await kube.close()
        return [finding._asdict() for finding in findings]

    try:
        rows = asyncio.run(look())
    except ConfigException as error:
        raise CommandError(
            f"kubectl's configuration can't be used: {error}", "See `kubectl config get-contexts`."
        ) from error
    except KubeError as error:
        raise CommandError(str(error), exit_code=ExitCode.failed if error.status else ExitCode.unreachable) from error
    columns = {"about": "ABOUT", "broken": "BROKEN", "message": "WHAT", "remedy": "WHAT TO DO"}
    output.rows(
        rows, columns, empty="Nothing is wrong with the operator's rights, definitions and versions.", prose=True
    )
    if broken := sum(bool(row["broken"]) for row in rows):
        raise CommandError(f"{counted(broken, 'problem')} found that must be solved")


@contextmanager
def needing_packages() -> Iterator[None]:
    """Turns a missing package into an error that names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"the operator needs a package that isn't installed ({error.name})", "pip install 'ottla[operator]'"
        ) from error
