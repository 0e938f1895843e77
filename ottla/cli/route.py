"""How a command connects to a broker's address: directly, or by a detour such as a forward. Pure.

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
        """The cluster's bootstrap address, or None if the route leads to any cluster. Raises CommandError if the route
        has no cluster."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address to connect to instead of this address of a broker. Raises NoWay."""

    def client_settings(self) -> dict[str, Any]:
        """The settings by which kafka-python's clients take this route, too."""


class Straight:
    """Each address is connected to as it is."""

    remedy = "Start one with `ottla dev`, or name another address with --bootstrap."

    def bootstrap(self) -> None:
        """None: this route leads to any cluster."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address itself."""
        return host, port

    def client_settings(self) -> dict[str, Any]:
        """No settings: clients connect directly by default."""
        return {}
