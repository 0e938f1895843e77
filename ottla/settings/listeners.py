"""Listeners: parsing `NAME://host:port` lists and checking them against each other.

Pure. The rules are those of Apache Kafka 4.3 (KafkaConfig.validateValues, SocketServerConfigs): names and ports are
unique, every name has a protocol, every advertised listener is opened, and the inter-broker listener is advertised.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ENCRYPTED = frozenset({"SSL", "SASL_SSL"})
WITH_LOGIN = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
PAGES = "HTTP"
"""The name of the listener of HTTP pages, under which it has the settings that every listener may have."""
_ENDPOINT = re.compile(r"(?P<name>.*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>-?[0-9]+)")


class Endpoint(NamedTuple):
    """One address of a broker. An empty host means all interfaces; in an advertised address, the machine's own name."""

    listener: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class Listeners(NamedTuple):
    """The addresses that a broker listens on, the addresses that it advertises, the name of the inter-broker listener,
    and the protocol of the HTTP pages."""

    opened: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    inter_broker: str
    pages: str = "PLAINTEXT"

    def protocol_of(self, listener: str) -> str:
        """The protocol of a listener that is opened or advertised, or of the pages; PLAINTEXT for any other name."""
        if listener == PAGES and self.pages != "PLAINTEXT":
            return self.pages
        endpoints = (*self.opened, *self.advertised)
        return next((endpoint.protocol for endpoint in endpoints if endpoint.listener == listener), "PLAINTEXT")


def parse_protocol_map(text: str) -> dict[str, str]:
    """Protocols by listener name, from `NAME:PROTOCOL,…`. Raises ValueError with the reason."""
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = (part.strip() for part in entry.partition(":"))
        if not separator or not name:
            raise ValueError(f"{entry!r} is not NAME:PROTOCOL")
        if protocol.upper() not in PROTOCOLS:
            raise ValueError(f"{entry!r} names no known protocol (known are {', '.join(PROTOCOLS)})")
        if protocols.setdefault(name.upper(), protocol.upper()) != protocol.upper():
            raise ValueError(f"{name.upper()} has two protocols")
    return protocols


def parse_endpoints(entries: Iterable[str], protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The endpoints in a setting such as `listeners`. Raises ValueError with the reason."""
    endpoints = []
    for entry in entries:
        match = _ENDPOINT.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r} is not NAME://host:port")
        name, port = match["name"].upper(), int(match["port"])
        if not 0 <= port <= 65535:
            raise ValueError(f"{entry!r} has a port outside 0 to 65535")
        if name not in protocols:
            raise ValueError(f"{name} has no protocol in listener.security.protocol.map")
        endpoints.append(Endpoint(name, match["host"], port, protocols[name]))
    return tuple(endpoints)


def check_listeners(
    listeners: tuple[Endpoint, ...], advertised: tuple[Endpoint, ...] | None, inter_broker: str, controllers: set[str]
) -> tuple[Listeners, list[tuple[str, str]]]:
    """(the listeners of a broker, the problems with them as pairs of a setting's name and a reason).

    `advertised` None means that `listeners` are advertised. Listeners whose names are in `controllers` are neither
    opened nor advertised: they come from a file for Apache Kafka, whose controllers have their own listeners.
    """
    problems: list[tuple[str, str]] = []
    opened = tuple(endpoint for endpoint in listeners if endpoint.listener not in controllers)
    told = tuple(endpoint for endpoint in advertised or listeners if endpoint.listener not in controllers)
    for setting, endpoints in (("listeners", opened), ("advertised.listeners", told)):
        names = [endpoint.listener for endpoint in endpoints]
        problems += [(setting, f"names the listener {name} twice") for name in sorted(_repeated(names))]
    problems += [("listeners", f"uses the port {port} twice") for port in sorted(_clashing_ports(opened))]
    if not opened:
        problems.append(("listeners", "leaves no listener for clients, because all are controller listeners"))
    names_opened = {endpoint.listener for endpoint in opened}
    for endpoint in told:
        if endpoint.host == "0.0.0.0" and advertised is not None:
            problems.append(("advertised.listeners", "has the address 0.0.0.0, which no client can reach"))
        if endpoint.listener not in names_opened:
            problems.append(("advertised.listeners", f"names {endpoint.listener}, which is not in listeners"))
    if opened and inter_broker not in {endpoint.listener for endpoint in told}:
        problems.append(("inter.broker.listener.name", f"is {inter_broker}, but no advertised listener has this name"))
    return Listeners(opened, told, inter_broker), problems


def _repeated(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def _clashing_ports(endpoints: tuple[Endpoint, ...]) -> set[int]:
    """The ports that are used more than once. An IPv4 and an IPv6 address may share a port; port 0 is any free port."""
    clashing = set()
    for port in {endpoint.port for endpoint in endpoints} - {0}:
        hosts = [endpoint.host for endpoint in endpoints if endpoint.port == port]
        versions = sorted(_ip_version(host) for host in hosts)
        if len(hosts) > 1 and versions != [4, 6]:
            clashing.add(port)
    return clashing


def _ip_version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0
