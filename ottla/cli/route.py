"""How a command connects to a broker's address: directly, or by a detour such as `kubectl port-forward`. Pure.

A Route turns a broker's address into the address of the socket that is opened. `Cluster` has one Route, and all
connections of a command take it, also those to advertised addresses.
"""

from __future__ import annotations

from typing import Any, Protocol


class NoWay(ConnectionError):
    """The route doesn't lead to the address now. The text says why."""


class Route(Protocol):
    """The way to the brokers of one cluster."""

    remedy: str  # what a user can do if the cluster can't be reached by this route

    def bootstrap(self) -> str | None:
        """The bootstrap address of the route's cluster, or None if the route isn't bound to one cluster. Raises
        CommandError if the cluster or its address can't be found."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address to connect to instead of this address of a broker. Raises NoWay."""

    def client_settings(self) -> dict[str, Any]:
        """The settings by which kafka-python's clients take this route, too."""


class Straight:
    """The route without a detour: each broker's address is connected to as it is."""

    remedy = "Start one with `ottla dev`, or name another address with --bootstrap."

    def bootstrap(self) -> None:
        """None: this route isn't bound to one cluster."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The broker's address itself."""
        return host, port

    def client_settings(self) -> dict[str, Any]:
        """No settings: clients connect directly by default."""
        return {}
