"""How a command connects to a broker's address: directly, or through another one (`kubectl port-forward`). Pure.

A Route maps a broker's address to the address to which the socket connects. `Cluster` has one Route, and all
connections of a command use it, also those to advertised addresses.
"""

from __future__ import annotations

from typing import Any, Protocol


class NoWay(ConnectionError):
    """The route can't reach the address now. The text says why."""


class Route(Protocol):
    """A route to the brokers of one cluster."""

    remedy: str  # what a user can do if the cluster can't be reached by this route

    def bootstrap(self) -> str | None:
        """The bootstrap address of the route's cluster, or None if the route isn't bound to one cluster. Raises
        CommandError if the cluster or its address can't be found."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address to connect to instead of this address of a broker. Raises NoWay."""

    def client_settings(self) -> dict[str, Any]:
        """The settings with which kafka-python's clients use this route, too."""


class Straight:
    """The direct route: a command connects to each broker's own address."""

    remedy = "Start a broker with `ottla dev`, or name another address with --bootstrap."

    def bootstrap(self) -> None:
        """None: this route isn't bound to one cluster."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The broker's address itself."""
        return host, port

    def client_settings(self) -> dict[str, Any]:
        """No settings: clients connect directly by default."""
        return {}
