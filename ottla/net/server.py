"""Listening sockets, and the limits that protect the clients from one another.

A `Server` has one listener for each name in Kafka's setting `listeners`, and one function, `dispatch`, which serves a
frame. Four limits have Kafka's names: `socket.request.max.bytes`, `max.connections`, `max.connections.per.ip` and
`connections.max.idle.ms`. Two are Ottla's own: the unanswered requests (and their bytes) of one connection, and the
memory for frames and answers of all connections.

Clients' connections can't keep other brokers from connecting. If the broker-wide `max.connections` is reached, a new
connection to the inter-broker listener is accepted, and the least recently used connection of the other listeners is
closed instead. As in Kafka's ConnectionQuotas, this works only if the inter-broker listener isn't the only listener. If
`max.connections` is lowered, clients' connections are closed until their number is low enough.

The rate of new connections may be limited, too (`Rates`): then a listener accepts later, or a connection from an
address above its limit is held unread for a moment and closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from select import epoll
from time import perf_counter
from typing import Protocol

from ottla.net.busy_poll import WINDOW_SECONDS, BusyPoll
from ottla.net.channel import PlainChannel
from ottla.net.connection import Connection, Login, Postponed
from ottla.net.disk_threads import DiskThreads, VolumeThreads
from ottla.net.handshakes import Handshakes
from ottla.net.memory import BufferedMemory
from ottla.net.pending import Part, Pending
from ottla.net.tls import TlsChannel
from ottla.net.turns import Clock, Epoll, Reads, Turns
from ottla.protocol.received import Memory

logger = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 256 * 1024
ACCEPTS_PER_TURN = 16  # each of them takes up to 50 µs
RESUMES_SECONDS = 0.002  # of each turn of the event loop, for received requests that couldn't start
SWEEPS_SECONDS = 0.001  # of each turn of the event loop, for the closing of connections that a check has found
HELD_MAX = 1000  # this number of connections above the rate of their address is held unread; more are closed at once

Reply = list[Part] | tuple[Part, ...] | Pending | Postponed | None
Dispatch = Callable[[Connection, Memory, int, int], Reply]
BeginLogin = Callable[[Connection], Login | None]
"""The login that a new connection has to pass; None if it is served at once."""


def no_login(_connection: Connection) -> None:
    """Serves every connection without a login."""


@dataclass
class Limits:
    """The limits of a server. Each limit may be changed while the server runs."""

    frame_bytes_max: int = 104857600
    buffered_memory_bytes: int = 256 * 1024 * 1024
    unanswered_max: int = 100
    unanswered_bytes_max: int = 64 * 1024 * 1024
    connections_max: int = 2**31 - 1
    listener_connections_max: Mapping[str, int] = field(default_factory=dict)  # the listeners' own limits, by name
    inter_broker_listener: str = ""
    connections_per_ip_max: int = 2**31 - 1
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    idle_seconds_max: float = 600.0  # a negative number means no bound, as in Kafka
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 50


class Rates(Protocol):
    """The limits on the rate of new connections. Times are in ms, by the event loop's clock."""

    def accepted(self, listener: str, protected: bool, now_ms: int) -> int:
        """Counts a new connection. Returns the ms that the listener waits before the connection is served, and before
        it accepts the next one. `protected` says that the listener is the brokers' own one beside clients'."""

    def hold_ms(self, listener: str, protected: bool, host: str, now_ms: int) -> int:
        """Counts a connection for the client's address. If the result (ms) isn't 0, the connection must be closed after
        this time, unread."""


class ServerTls(Protocol):
    """TLS of a listener, as its owner sees it at the moment."""

    def context(self) -> ssl.SSLContext:
        """The context for connections that begin now."""

    def principal_of(self, certificate: bytes | None) -> str:
        """The principal of a client that has shown this certificate (DER), or none. Raises ValueError, with the reason,
        for a certificate of nobody: its client is refused."""


OpenSocket = Callable[[str, int, Limits], Awaitable[socket.socket]]


async def open_socket(host: str, port: int, limits: Limits) -> socket.socket:
    """A listening socket. `host` '' means all addresses, port 0 a free port. Raises OSError."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if limits.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(max(limits.backlog, 128))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return sock


class Server:
    """All listeners of a process. A request whose API key is in `pipelined` may start before earlier requests of its
    connection are answered. Without `rates`, connections may come as fast as they can be accepted."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: Limits,
        pipelined: frozenset[int],
        open_socket: OpenSocket = open_socket,
        busy_poll_seconds: float = WINDOW_SECONDS,
        disk_threads: DiskThreads | None = None,
        rates: Rates | None = None,
        begin_login: BeginLogin = no_login,
        open_epoll: Callable[[], Epoll] = epoll,
        turn_clock: Clock = perf_counter,
    ) -> None:
        self.dispatch = dispatch
        self.rates = rates
        self.disk_threads: DiskThreads = VolumeThreads() if disk_threads is None else disk_threads
        self.limits = limits
        self.pipelined = pipelined
        self.begin_login = begin_login
        self._open_socket = open_socket
        self.memory = BufferedMemory(limits.buffered_memory_bytes)
        self.busy_poll = BusyPoll(asyncio.get_running_loop().call_soon, busy_poll_seconds)
        self.receive_buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self.readers = Reads(turn_clock, open_epoll=open_epoll)
        self.resumes = Turns(turn_clock, RESUMES_SECONDS)
        self.handshakes = Handshakes(turn_clock)
        self._sweeps = Turns(turn_clock, SWEEPS_SECONDS)
        self.listeners: dict[str, Listener] = {}
        self.connections_by_host: dict[str, int] = {}
        self.connection_count = 0
        self.connections_refused = 0
        self.connections_closed_for_others = 0
        self.connections_throttled = 0
        self.turns_away = False  # whether each new connection is closed immediately
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, name: str, host: str, port: int, tls: ServerTls | None = None) -> Listener:
        """Opens a listener, whose clients wait until `accept`. `host` '' means all addresses, port 0 a free port.
        With `tls`, all of its connections are encrypted.

        Raises OSError.
        """
        listener = Listener(self, name, await self._open_socket(host, port, self.limits), tls)
        self.listeners[name] = listener
        return listener

    def accept(self) -> None:
        """Serves the clients that have connected so far, and those that connect from now on."""
        self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")
        for listener in self.listeners.values():
            listener.accept()

    def turn_away(self, why: str) -> None:
        """Closes every connection. Until `let_in`, each new connection is closed as soon as it is accepted."""
        self.turns_away = True
        for listener in self.listeners.values():
            for connection in list(listener.connections):
                connection.close(why)

    def let_in(self) -> None:
        """Serves new connections again."""
        self.turns_away = False

    def makes_room(self, listener: Listener) -> bool:
        """Whether `listener` may have one more connection. May close a connection of another listener to make room."""
        limits = self.limits
        if len(listener.connections) >= limits.listener_connections_max.get(listener.name, limits.connections_max):
            return False
        if self.connection_count < limits.connections_max:
            return True
        if not self.protects(listener):
            return False
        for connection in self._longest_unused(1):
            self._close_for_others("another broker connects", connection)
        return True

    def protects(self, listener: Listener) -> bool:
        """Whether `listener` is the brokers' own one, beside clients' listeners."""
        return listener.name == self.limits.inter_broker_listener and len(self.listeners) > 1

    def _longest_unused(self, count: int) -> list[Connection]:
        """The `count` least recently used connections of clients, or all if there are fewer."""
        limits, listeners = self.limits, self.listeners.values()
        alone = len(listeners) == 1
        clients = (
            connection
            for listener in listeners
            if alone or listener.name != limits.inter_broker_listener
            for connection in listener.connections
        )
        return nlargest(count, clients, key=lambda client: (client.idle_sweeps, client.idle))

    def _close_for_others(self, why: str, connection: Connection) -> None:
        if not connection.closed:
            self.connections_closed_for_others += 1
            connection.close(f"max.connections is reached, {why}, and this connection was used longest ago")

    async def close(self) -> None:
        """Stops accepting and closes every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for listener in self.listeners.values():
            listener.close()
        self.readers.close()

    async def _sweep(self) -> None:
        """Once a second, closes connections that are idle, connections above max.connections, and connections that take
        their answers slowly while others wait for memory. All of this has its turns: of those who are silent there may
        be thousands."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            try:
                if not self._sweeps.waiting:
                    self._sweep_once(loop.time())
            except Exception:  # a bug with one connection mustn't end the sweeps, which close the other connections
                logger.exception("the check for idle and slow connections failed, and is repeated in a second")

    def _sweep_once(self, now: float) -> None:
        self.handshakes.give_up_late_ones(now, self._sweeps)
        self._sweeps.wait_for_each(self.memory.overdue(now), _close_as_slow)
        excess = self.connection_count - self.limits.connections_max
        if excess > 0:
            why = f"there are {excess} too many"
            self._sweeps.wait_for_each(self._longest_unused(excess), partial(self._close_for_others, why))
        for listener in self.listeners.values():
            self._sweeps.wait_for_each(list(listener.connections), partial(self._close_if_silent, now))

    def _close_if_silent(self, now: float, connection: Connection) -> None:
        connection.idle_sweeps += 1
        if connection.login is not None and now >= connection.login.deadline:
            connection.close("it hasn't logged in within ottla.login.timeout.ms")
        elif 0 <= self.limits.idle_seconds_max < connection.idle_sweeps and connection.idle:
            connection.close("idle for connections.max.idle.ms")


def _close_as_slow(holder: Hashable) -> None:
    if isinstance(holder, Connection) and not holder.waits_for_broker:
        holder.close("it sends a large frame, or reads a large answer, too slowly while others wait")


class Listener:
    """One listening socket and its connections."""

    def __init__(self, server: Server, name: str, sock: socket.socket, tls: ServerTls | None = None) -> None:
        self.server = server
        self.name = name
        self.host, self.port = sock.getsockname()[:2]
        self.connections: dict[Connection, None] = {}  # in the order in which they were accepted
        self._socket = sock
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._next_id = 0
        self._delayed: socket.socket | None = None  # a connection that waits because connections come too fast
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}  # connections that will be closed unread

    def accept(self) -> None:
        """Begins to accept connections."""
        self._loop.add_reader(self._socket.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The process is out of file descriptors or memory: serve the other connections, and retry in a second.
                logger.error(
                    "listener %s can't accept connections, and tries again in a second: %s", self.name, error.strerror
                )
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(1.0, self._accept_again)
                return
            rates = self.server.rates
            if rates is not None:
                delay_ms = rates.accepted(self.name, self.server.protects(self), self._now_ms())
                if delay_ms:
                    self.server.connections_throttled += 1
                    self._delayed = sock
                    self._loop.remove_reader(self._socket.fileno())
                    self._loop.call_later(delay_ms / 1000, self._accept_delayed, address[0])
                    return
            self._accepted(sock, address[0])

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._acceptable)

    def _accept_delayed(self, host: str) -> None:
        sock, self._delayed = self._delayed, None
        if sock is not None:  # None if the listener was closed meanwhile
            self._accepted(sock, host)
            self._accept_again()

    def _hold(self, sock: socket.socket, hold_ms: int) -> None:
        """Keeps a connection open for this time without reading from it, and closes it then."""
        self.server.connections_throttled += 1
        if len(self._held) >= HELD_MAX:
            sock.close()
        else:
            self._held[sock] = self._loop.call_later(hold_ms / 1000, partial(self._let_go, sock))

    def _let_go(self, sock: socket.socket) -> None:
        del self._held[sock]
        sock.close()

    def _accepted(self, sock: socket.socket, host: str) -> None:
        server, limits = self.server, self.server.limits
        if server.turns_away:
            sock.close()
            return
        if server.rates is not None:
            hold_ms = server.rates.hold_ms(self.name, server.protects(self), host, self._now_ms())
            if hold_ms:
                self._hold(sock, hold_ms)
                return
        from_host = server.connections_by_host.get(host, 0)
        per_ip_max = limits.connections_per_ip_overrides.get(host, limits.connections_per_ip_max)
        if from_host >= per_ip_max or not server.makes_room(self):
            server.connections_refused += 1
            if server.connections_refused & (server.connections_refused - 1) == 0:
                logger.warning(
                    "refused a connection from %s to listener %s: too many connections (open: %d from this address, "
                    "%d on this listener, %d in all; refused so far: %d)",
                    host, self.name, from_host, len(self.connections), server.connection_count,
                    server.connections_refused,
                )  # fmt: skip
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        # The count is read again, because `makes_room` may have closed a connection of this host.
        server.connections_by_host[host] = server.connections_by_host.get(host, 0) + 1
        server.connection_count += 1
        self._next_id += 1
        if self._tls is None:
            connection = Connection(self, PlainChannel(sock, server.readers), self._next_id, host)
            self.connections[connection] = None
            self._begin_login(connection)
            return
        channel = TlsChannel(sock, server.handshakes, server.resumes, server.readers)
        connection = Connection(self, channel, self._next_id, host)
        self.connections[connection] = None
        channel.handshake(
            self._tls.context, partial(self._secured, connection), partial(self._handshake_failed, connection)
        )

    def _begin_login(self, connection: Connection) -> bool:
        """Holds a connection until its login, if it has to pass one. Returns whether it has."""
        login = self.server.begin_login(connection)
        if login is not None:
            connection.hold_until(login)
        return login is not None

    def _secured(self, connection: Connection, channel: TlsChannel) -> None:
        """Goes on with a connection whose handshake has succeeded. Its principal comes from its login or, without one,
        from its certificate; as in Kafka, the certificate's name means nothing where clients log in."""
        assert self._tls is not None
        if self._begin_login(connection):
            return
        try:
            connection.principal = self._tls.principal_of(channel.peer_certificate)
        except ValueError as reason:
            logger.info("listener %s refuses a client from %s: %s", self.name, connection.client_host, reason)
            connection.close()

    def _handshake_failed(self, connection: Connection, reason: str) -> None:
        if reason:
            logger.info("listener %s: the TLS handshake with %s failed: %s", self.name, connection.client_host, reason)
        connection.close()

    def connection_closed(self, connection: Connection) -> None:
        """Removes a connection that has just been closed from all counts."""
        self.connections.pop(connection, None)
        server = self.server
        server.connection_count -= 1
        left = server.connections_by_host[connection.client_host] - 1
        if left:
            server.connections_by_host[connection.client_host] = left
        else:
            del server.connections_by_host[connection.client_host]

    def close(self) -> None:
        """Closes the socket and all its connections."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._delayed is not None:
            self._delayed.close()
            self._delayed = None
        for sock, timer in self._held.items():
            timer.cancel()
            sock.close()
        self._held.clear()
        for connection in list(self.connections):
            connection.close()
