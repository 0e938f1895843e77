"""The route to the brokers of a Cluster resource from outside of Kubernetes, by kubectl alone.

kubectl lists the Clusters. A Cluster's status has the bootstrap address for clients inside of Kubernetes. Forwards lead
to that address and to the names that the brokers advertise. The user needs the rights `list` on clusters.ottla.dev,
`get` and `list` on pods, `get` on services, and `create` on pods/portforward.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ottla.cli.connection import parse_bootstrap
from ottla.cli.errors import CommandError, ExitCode, NotFound, UsageError, nearest
from ottla.cli.forwards import Forwards, kubectl_sentence, target_of

_RESOURCE = "clusters.ottla.dev"
_API_TIMEOUT = "15s"


class KubernetesRoute:
    """A Route to the brokers of one Cluster."""

    remedy = f"`kubectl get {_RESOURCE},pods` shows what runs there."

    def __init__(self, kubectl: Sequence[str], name: str | None, forwards: Forwards) -> None:
        """`kubectl` is the command with the options that select the namespace. `name` is the Cluster's name; None
        stands for the only Cluster in the namespace."""
        self._kubectl = list(kubectl)
        self._name = name
        self._forwards = forwards

    def bootstrap(self) -> str:
        """The Cluster's bootstrap address inside of Kubernetes. Raises CommandError."""
        return bootstrap_inside(the_cluster(self._clusters(), self._name))

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address to connect to, through a forward. Raises NoWay."""
        return self._forwards.reach(host, port, timeout_s)

    def client_settings(self) -> dict[str, Any]:
        """The settings by which kafka-python's clients connect through the forwards, too."""
        from ottla.cli.forwarded_socket import proxy_url

        return {"proxy_url": proxy_url(self._forwards)}

    def _clusters(self) -> list[dict[str, Any]]:
        command = [*self._kubectl, "get", _RESOURCE, "--output=json", f"--request-timeout={_API_TIMEOUT}"]
        # On a terminal kubectl may ask the user to log in. It must not read a pipe, which may have `produce`'s records.
        stdin = None if sys.stdin is not None and sys.stdin.isatty() else subprocess.DEVNULL
        try:
            done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, errors="replace", check=False)
        except FileNotFoundError:
            raise CommandError(f"there is no command '{command[0]}'", "Install kubectl, or put it into PATH.") from None
        if done.returncode:
            said = kubectl_sentence(done.stderr) or f"ended with exit code {done.returncode}"
            raise CommandError(
                f"kubectl: {said}",
                f"Check that `kubectl get {_RESOURCE}` works with the same --context and --namespace.",
                ExitCode.unreachable,
            )
        found: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        return found


def the_cluster(clusters: Sequence[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    """The Cluster of that name, or the only Cluster if `name` is None. Raises CommandError."""
    known = {str(cluster["metadata"]["name"]): cluster for cluster in clusters}
    if not known:
        raise NotFound(
            f"there is no Cluster{f' {name!r}' if name else ''} in the namespace",
            f"`kubectl get {_RESOURCE} --all-namespaces` shows all Clusters; --namespace names the namespace.",
        )
    names = ", ".join(sorted(known))
    if name is None:
        if len(known) > 1:
            raise UsageError(f"the namespace has several Clusters: {names}", "Name one of them with --cluster.")
        return next(iter(known.values()))
    if name not in known:
        raise NotFound(
            f"there is no Cluster '{name}' in the namespace", f"The namespace has: {names}.{nearest(name, known)}"
        )
    return known[name]


def bootstrap_inside(cluster: Mapping[str, Any]) -> str:
    """The bootstrap address of a Cluster's listener for clients inside of Kubernetes: one that asks for neither TLS nor
    a login, if there is one. Raises CommandError."""
    status = cluster.get("status") or {}
    specs = {each["name"]: each for each in (cluster.get("spec") or {}).get("listeners") or ()}

    def is_secured(listener: Mapping[str, Any]) -> bool:
        said = specs.get(listener.get("name"), {})
        return bool(said.get("tls") or said.get("authentication"))

    for listener in sorted(status.get("listeners") or (), key=is_secured):
        bootstrap = str(listener.get("bootstrap", ""))
        if bootstrap and all(target_of(host, port) for host, port in parse_bootstrap(bootstrap)):
            return bootstrap
    name, message = cluster["metadata"]["name"], status.get("message", "")
    raise CommandError(
        f"the Cluster '{name}' has no address for clients yet{f': {message}' if message else ''}",
        f"`kubectl wait {_RESOURCE}/{name} --for=condition=Ready` waits for the address.",
        ExitCode.unreachable,
    )
