"""How a command gets to a broker whose address it knows: straight, or by a detour. Pure.

A Route stands between the addresses by which brokers call each other and the sockets that are opened. `Cluster` has
one, and so all that a command connects to goes the same way, the addresses that the brokers advertise among it.
"""

from __future__ import annotations

from typing import Any, Protocol


class NoWay(ConnectionError):
    """The route doesn't lead to that address now; says why."""


class Route(Protocol):
    """The way to the brokers of one cluster."""

    remedy: str  # what a person can do about a cluster to which it doesn't lead

    def bootstrap(self) -> str | None:
        """Where the cluster is, if the route leads to one cluster only. Raises CommandError where there is none."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """Where to connect to for this address of a broker. Raises NoWay."""

    def client_settings(self) -> dict[str, Any]:
        """The settings by which kafka-python's clients take this route, too."""


class Straight:
    """Each address is connected to as it is."""

    remedy = "Start one with `ottla dev`, or name another address with --bootstrap."

    def bootstrap(self) -> None:
        """It leads to any cluster."""

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        """The address itself."""
        return host, port

    def client_settings(self) -> dict[str, Any]:
        """None: it is what clients do."""
        return {}
