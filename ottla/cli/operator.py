"""`ottla operator`: the process that keeps Kubernetes in step with Cluster and Topic resources.

It runs in a pod, from the chart `ottla-operator`; outside one it takes $KUBECONFIG, but has to reach pods and Services
by their addresses all the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.errors import CommandError, UsageError
from ottla.cli.options import DebugOption
from ottla.operator.log_level import LogLevel, set_log_level


def operator(
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
        typer.Option(metavar="IMAGE", envvar="OTTLA_OPERATOR_IMAGE", help="Image of brokers that name none."),
    ] = "",
    etcd_image: Annotated[
        str,
        typer.Option(metavar="IMAGE", envvar="OTTLA_OPERATOR_ETCD_IMAGE", help="Image of etcd, where none is named."),
    ] = "",
    lease: Annotated[
        str,
        typer.Option(
            metavar="NAME", envvar="OTTLA_OPERATOR_LEASE", help="Lease by which one of several operators acts."
        ),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(metavar="NAMESPACE", envvar="OTTLA_OPERATOR_NAMESPACE", help="Where the operator itself runs."),
    ] = "default",
    pod: Annotated[
        str, typer.Option(metavar="NAME", envvar="OTTLA_OPERATOR_POD", help="The operator's own name for the Lease.")
    ] = "",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="OTTLA_OPERATOR_PORT", help="Port of /metrics, /healthz and /readyz."),
    ] = 9100,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="OTTLA_OPERATOR_LOG_LEVEL", help="What is logged.")
    ] = LogLevel.info,
    log_level_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="OTTLA_OPERATOR_LOG_LEVEL_FILE",
            help="A file that holds the level, and may change while the operator runs.",
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run the Kubernetes operator, until SIGTERM or Ctrl-C. A chart does that: ottla-operator."""
    import asyncio
    import logging
    from importlib.metadata import version

    try:
        from ottla.operator.app import Options, operate
        from ottla.operator.spec.cluster import Defaults
    except ImportError as error:
        raise UsageError(
            f"the operator needs a package that isn't installed ({error.name})", "pip install 'ottla[operator]'"
        ) from error
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
