"""Measures the time that the event loop spends on one connection, for clients whose share of this time is limited.

The time has two parts: the bytes are moved (`MeteredChannel`), and the requests are handled (`with meter:`
around the code that handles them). Connections are measured only while some client has a limit, so other brokers pay
nothing. Source: the network and request threads' times of Kafka's ClientRequestQuotaManager.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from ottla.net.channel import Channel
from ottla.protocol.received import Buffer


class Meter:
    """A stopwatch: the time runs in its contexts, which may be nested."""

    __slots__ = ("_clock_ns", "_depth", "_since_ns", "_spent_ns")

    def __init__(self, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._depth = 0
        self._since_ns = 0
        self._spent_ns = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._since_ns = self._clock_ns()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._spent_ns += self._clock_ns() - self._since_ns

    def take_ns(self) -> int:
        """The time since it was last taken, in ns. If the time runs, it goes on from 0."""
        spent, self._spent_ns = self._spent_ns, 0
        if self._depth:
            now = self._clock_ns()
            spent += now - self._since_ns
            self._since_ns = now
        return spent


class MeteredChannel:
    """A channel whose moves of bytes are measured."""

    __slots__ = ("_channel", "_meter", "close", "not_readable", "not_writable", "on_readable", "on_writable")

    def __init__(self, channel: Channel, meter: Meter) -> None:
        self._channel = channel
        self._meter = meter
        self.on_readable = channel.on_readable
        self.not_readable = channel.not_readable
        self.on_writable = channel.on_writable
        self.not_writable = channel.not_writable
        self.close = channel.close

    def receive_into(self, buffer: Buffer) -> int:
        with self._meter:
            return self._channel.receive_into(buffer)

    def send(self, data: Buffer, *, more: bool) -> int:
        with self._meter:
            return self._channel.send(data, more=more)

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        with self._meter:
            return self._channel.send_file(descriptor, position, size)
