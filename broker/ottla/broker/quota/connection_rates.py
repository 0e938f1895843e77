"""How many connections clients may open per second: in all, through one listener, and from one address. Pure.

- Where connections come too fast in all or through a listener, the listener accepts later: the next client waits.
- A connection from an address above its limit is kept open for a moment, without being read, and is closed then, so
  that the client doesn't come back at once. Such a connection counts neither for its address nor for the listener.

Connections through the inter-broker listener don't count in all, if clients have another listener. A delay has a bound
of one window. Source: Kafka's ConnectionQuotas (KIP-402, KIP-612).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from .samples import Samples, throttle_ms
from .sensors import Sensors
from .windows import Windows

UNLIMITED = 2**31 - 1
_ALL = ""


class ConnectionRates:
    """The rates of new connections. Limits are in connections per second, times in ms."""

    def __init__(self, windows: Windows) -> None:
        self._delay_ms_max = windows.size_ms
        self._listeners: dict[str, Samples] = {_ALL: Samples(windows)}
        self._hosts: Sensors[str, Samples] = Sensors(lambda: Samples(windows))
        self._windows = windows
        self._limits: dict[str, float] = {}
        self._host_limits: Mapping[str, float] = {}
        self._host_default: float | None = None

    def set_limits(self, in_all: int, listeners: Mapping[str, int]) -> None:
        """Takes over `max.connection.creation.rate`, and the listeners' own values of it."""
        given = {_ALL: in_all, **listeners}
        self._limits = {name: max(limit, 1) for name, limit in given.items() if limit < UNLIMITED}

    def set_host_limits(self, limits: Mapping[str, float], default: float | None) -> None:
        """Takes over the limits of addresses, which `normal_address` has written, and the default for all others."""
        self._host_limits, self._host_default = limits, default

    def accepted(self, listener: str, protected: bool, now_ms: int) -> int:
        """Counts a new connection. Returns the ms that the listener waits before the connection is served, and before
        it accepts the next one. `protected` says that the listener is the brokers' own one beside clients'."""
        delay_ms = 0 if protected else self._counted(_ALL, now_ms)
        return max(delay_ms, self._counted(listener, now_ms))

    def hold_ms(self, listener: str, protected: bool, host: str, now_ms: int) -> int:
        """Counts a connection for the client's address. If the result (ms) isn't 0, the connection must be closed after
        this time, unread: it has come too soon, and is no longer counted."""
        host = normal_address(host)
        limit = self._host_limits.get(host, self._host_default)
        if limit is None:
            return 0
        samples = self._hosts.of(host, now_ms)
        samples.record(1, now_ms)
        time_ms = min(throttle_ms(samples.rate(now_ms), limit, samples.elapsed_ms(now_ms)), self._delay_ms_max)
        if time_ms:
            samples.record(-1, now_ms)
            for name in (listener,) if protected else (listener, _ALL):
                if name in self._limits:
                    self._listeners[name].record(-1, now_ms)
        return time_ms

    def _counted(self, name: str, now_ms: int) -> int:
        limit = self._limits.get(name)
        if limit is None:
            return 0
        samples = self._listeners.setdefault(name, Samples(self._windows))
        samples.record(1, now_ms)
        return min(throttle_ms(samples.rate(now_ms), limit, samples.elapsed_ms(now_ms)), self._delay_ms_max)


def is_address(text: str) -> bool:
    """Whether the text is an IP address, and not a name."""
    return _parsed(text) is not None


def normal_address(text: str) -> str:
    """An address as it is compared: IPv6 in its short form, an IPv4 address in IPv6 as IPv4. Any other text is returned
    as it is."""
    address = _parsed(text)
    if address is None:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
