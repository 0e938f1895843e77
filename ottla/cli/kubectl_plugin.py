"""`kubectl ottla`: the `ottla` command for a cluster on Kubernetes, from wherever kubectl works.

kubectl runs the program `kubectl-ottla` that it finds in PATH. The options before the command name the cluster: they
are --cluster, and some of kubectl's own options, which kubectl itself doesn't pass on. The command and everything after
it is `ottla`'s. This program runs kubectl only when a command connects to its cluster, so help works without a cluster.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ottla.cli.forwards import Forwards
from ottla.cli.help import App
from ottla.cli.kubernetes import KubernetesRoute
from ottla.cli.main import leave, run_ottla

PROGRAM = "kubectl ottla"

app = App(name=PROGRAM, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
    no_args_is_help=True,
    epilog="The commands are those of `ottla`: see ottla --help.",
)
def plugin(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]...", help="A command of `ottla`.")],
    context: Annotated[str, typer.Option("--context", metavar="NAME", help="The kubeconfig's context to use.")] = "",
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the Cluster; by default the context's."),
    ] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig to use.")] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Which Cluster; by default the only one of the namespace.")
    ] = "",
) -> None:
    """Run a command of `ottla` on a Cluster in Kubernetes. Options of this program come before that command."""
    options = {"--kubeconfig": kubeconfig, "--context": context, "--namespace": namespace}
    kubectl = ["kubectl", *(f"{option}={value}" for option, value in options.items() if value)]
    # These variables name a cluster for `ottla`; here the kubeconfig names it.
    for variable in ("OTTLA_BOOTSTRAP", "OTTLA_CONTEXT"):
        os.environ.pop(variable, None)
    with Forwards(kubectl) as forwards:
        outcome = run_ottla(command, PROGRAM, KubernetesRoute(kubectl, cluster or None, forwards))
    if isinstance(outcome, int):
        raise typer.Exit(outcome)


def main() -> None:
    """Run the plug-in and leave with one of the documented exit codes."""
    leave(lambda arguments: app(arguments, prog_name=PROGRAM, standalone_mode=False), PROGRAM)


if __name__ == "__main__":
    main()
