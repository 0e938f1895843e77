"""Simulated hosts, links and stream sockets, with the faults of real networks.

The bytes of one direction arrive in order, in pieces, after a latency. A receiver that doesn't read fills the sender's
window. A link can be cut in one direction: bytes that are sent meanwhile arrive when the link heals (like
retransmissions), unless either side has given up by then. When a process dies, its sockets are closed, and the peers
see that. A host that loses its power is silent, and the peers' connections are reset only after the host is back.

`SimulatedSocket` has the methods of `socket.socket` that `ottla.net` uses; `Stream` is a stream of `ottla.net.streams`.
"""

from __future__ import annotations

import asyncio
import errno
import select
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from .loop import PROCESS, Process, SimulationLoop
from .machine import Descriptors

WINDOW_BYTES = 64 * 1024
SYN_RETRIES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_END = b""


class Network:
    """All links. Latencies are exponential around `latency_s`. `partial` is the share of shortened transfers."""

    def __init__(self, loop: SimulationLoop, random: Random, descriptors: Descriptors) -> None:
        self.latency_s = 0.0005
        self.partial = 0.0
        self.counts: Counter[str] = Counter()
        self.cut: set[tuple[str, str]] = set()  # (from host, to host)
        self.down: set[str] = set()  # hosts without power
        self._loop = loop
        self._random = random
        self._descriptors = descriptors
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._sockets: dict[SimulatedSocket, None] = {}
        self._orphans: list[SimulatedSocket] = []  # sockets whose peer's host lost its power
        self._next_port = 30000

    def listen(self, process: Process, host: str, port: int) -> Listener:
        """A listening socket of `process`. Raises OSError if the address is taken."""
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[host, port] = Listener(self, process, host, port)
        return listener

    async def connect(self, host: str, port: int) -> SimulatedSocket:
        """A connection from the calling process. Raises OSError."""
        process = PROCESS.get()
        assert process is not None
        source = process.host
        for pause in (*SYN_RETRIES_S, None):
            await asyncio.sleep(self.delay() * 2)
            if (source, host) not in self.cut and (host, source) not in self.cut and host not in self.down:
                listener = self._listeners.get((host, port))
                if listener is None or listener.closed:
                    raise ConnectionRefusedError(errno.ECONNREFUSED, f"connection to {host}:{port} refused")
                near = SimulatedSocket(self, process, source, self._descriptors)
                far = SimulatedSocket(self, listener.process, host, self._descriptors)
                near.peer, far.peer = far, near
                self._sockets[near] = self._sockets[far] = None
                listener.came(far)
                return near
            if pause is not None:
                await asyncio.sleep(pause)
        raise TimeoutError(errno.ETIMEDOUT, f"connection to {host}:{port} timed out")

    def delay(self) -> float:
        """A random latency, in seconds."""
        return self.latency_s * (0.5 + self._random.expovariate(2.0))

    def shortened(self, size: int) -> int:
        """How many of `size` bytes one send or receive transfers: all of them, or at random fewer."""
        if size > 1 and self.partial and self._random.random() < self.partial:
            return self._random.randrange(1, size)
        return size

    # ---- faults

    def cut_link(self, source: str, target: str) -> None:
        """Cuts the direction from `source` to `target`."""
        self.cut.add((source, target))

    def heal_link(self, source: str, target: str) -> None:
        """Heals the direction. Bytes that were sent meanwhile arrive."""
        self.cut.discard((source, target))
        for sock in list(self._sockets):
            if sock.held and sock.peer is not None and (sock.peer.host, sock.host) == (source, target):
                self._loop.in_world(self._random.uniform(0.0, 0.3), sock.release)

    def reset_some(self, host: str, chance: float) -> int:
        """Resets each connection of `host` with probability `chance`. Returns the number of reset connections."""
        count = 0
        for sock in list(self._sockets):
            if sock.host == host and not sock.closed and self._random.random() < chance:
                sock.reset()
                if sock.peer is not None:
                    sock.peer.reset()
                count += 1
        return count

    def stall_some(self, host: str, chance: float, seconds_max: float) -> int:
        """Delays what arrives next on each connection of `host`, with probability `chance`, by up to `seconds_max`.
        Other connections overtake these. Returns the number of delayed connections."""
        count = 0
        for sock in list(self._sockets):
            if sock.host == host and not sock.closed and self._random.random() < chance:
                sock.next_arrival = self._loop.time() + self._random.uniform(0.0, seconds_max)
                count += 1
        return count

    def reset_between(self, host: str, other: str) -> None:
        """Resets all connections of two hosts."""
        for sock in list(self._sockets):
            if sock.host == host and sock.peer is not None and sock.peer.host == other and not sock.closed:
                sock.reset()
                sock.peer.reset()

    def died(self, process: Process) -> None:
        """Closes the sockets of a dead process, as the operating system does."""
        for address in [address for address, listener in self._listeners.items() if listener.process is process]:
            self._listeners.pop(address).close()
        for sock in [sock for sock in self._sockets if sock.process is process]:
            if sock.inbox:
                sock.transmit_reset()
            sock.close()

    def lost_power(self, process: Process) -> None:
        """Removes the sockets of a process whose host lost its power. The peers don't notice."""
        self.down.add(process.host)
        for sock in [sock for sock in self._sockets if sock.process is process]:
            sock.vanish()
            if sock.peer is not None:
                self._orphans.append(sock.peer)
            self._sockets.pop(sock, None)
        for address in [address for address, listener in self._listeners.items() if listener.process is process]:
            self._listeners.pop(address).close()

    def power_is_back(self, host: str) -> None:
        """Ends the loss of power. The peers' old connections are reset within two seconds, as by retransmissions."""
        self.down.discard(host)
        left = []
        for sock in self._orphans:
            if sock.peer is not None and sock.peer.host == host:
                self._loop.in_world(self._random.uniform(0.05, 2.0), sock.reset)
            else:
                left.append(sock)
        self._orphans = left

    # ---- for sockets

    def carry(self, sender: SimulatedSocket, data: bytes) -> None:
        """Sends `data`, or the end of the stream (empty), to the sender's peer."""
        receiver = sender.peer
        assert receiver is not None
        loop = self._loop
        receiver.next_arrival = max(receiver.next_arrival + 1e-7, loop.time() + self.delay())
        loop.in_world(receiver.next_arrival - loop.time(), self._arrived, receiver, data)

    def _arrived(self, receiver: SimulatedSocket, data: bytes) -> None:
        sender = receiver.peer
        if sender is None or receiver.vanished or receiver.host in self.down:
            return
        if receiver.held or (sender.host, receiver.host) in self.cut:
            receiver.held.append(data)
        else:
            receiver.take(data)

    def closed(self, sock: SimulatedSocket) -> None:
        self._sockets.pop(sock, None)
        self._descriptors.sockets.pop(sock.fileno(), None)

    def open_epoll(self, process: Process) -> SimulatedEpoll:
        """What `select.epoll` opens for a real process."""
        return SimulatedEpoll(self, process, self._descriptors)

    def new_descriptor(self, owner: Any) -> int:
        number = self._descriptors.new()
        self._descriptors.sockets[number] = owner
        return number

    def close_listener(self, listener: Listener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def soon(self, process: Process, callback: Callable[[], None]) -> None:
        """Runs `callback` as a step of `process`."""
        self._loop.call_soon(callback, context=process.context)

    def soon_world(self, callback: Callable[[], None], delay_s: float) -> None:
        """Runs `callback` as a step of no process."""
        self._loop.in_world(delay_s, callback)

    @property
    def loop(self) -> SimulationLoop:
        return self._loop


class _Pollable:
    """A descriptor to which the loop's readers and writers are attached."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process
        self.reader: asyncio.Handle | None = None
        self.writer: asyncio.Handle | None = None
        self.epoll: SimulatedEpoll | None = None  # where it is registered
        self.closed = False
        self._descriptor = network.new_descriptor(self)
        self._read_polled = False
        self._write_polled = False

    def __hash__(self) -> int:
        return self._descriptor

    def __eq__(self, other: object) -> bool:
        return self is other

    def fileno(self) -> int:
        return -1 if self.closed else self._descriptor

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass

    @property
    def readable(self) -> bool:
        raise NotImplementedError

    @property
    def writable(self) -> bool:
        return False

    def check_readable(self) -> None:
        """Schedules the reader's callback if there is something to read, again and again until all is read."""
        if self.epoll is not None:
            self.epoll.check_readable()
        if self.reader is not None and not self._read_polled and self.readable:
            self._read_polled = True
            self.network.soon(self.process, self._poll_reader)

    def check_writable(self) -> None:
        """Schedules the writer's callback if the send buffer has room, again and again until it is full."""
        if self.writer is not None and not self._write_polled and self.writable:
            self._write_polled = True
            self.network.soon(self.process, self._poll_writer)

    def _poll_reader(self) -> None:
        self._read_polled = False
        handle = self.reader
        if handle is not None and self.readable:
            handle._run()  # type: ignore[attr-defined]
            self.check_readable()

    def _poll_writer(self) -> None:
        self._write_polled = False
        handle = self.writer
        if handle is not None and self.writable:
            handle._run()  # type: ignore[attr-defined]
            self.check_writable()


class SimulatedEpoll(_Pollable):
    """Knows which of the registered sockets are readable. It has the methods of `ottla.net.turns.Epoll`."""

    def __init__(self, network: Network, process: Process, descriptors: Descriptors) -> None:
        super().__init__(network, process)
        self._sockets = descriptors.sockets
        self._registered: dict[int, _Pollable] = {}

    def register(self, descriptor: int, events: int, /) -> None:
        assert events == select.EPOLLIN
        sock = self._registered[descriptor] = self._sockets[descriptor]
        sock.epoll = self
        self.check_readable()

    def unregister(self, descriptor: int, /) -> None:
        self._registered.pop(descriptor).epoll = None

    def poll(self, seconds: float, count: int, /) -> list[tuple[int, int]]:
        ready = [descriptor for descriptor, sock in self._registered.items() if sock.readable][:count]
        for descriptor in ready:
            self._registered[descriptor] = self._registered.pop(descriptor)
        return [(descriptor, select.EPOLLIN) for descriptor in ready]

    @property
    def readable(self) -> bool:
        return any(sock.readable for sock in self._registered.values())

    def close(self) -> None:
        self.closed = True
        self.reader = None
        self._sockets.pop(self._descriptor, None)


class Listener(_Pollable):
    """A listening socket. New connections wait in its backlog."""

    def __init__(self, network: Network, process: Process, host: str, port: int) -> None:
        super().__init__(network, process)
        self.host = host
        self.port = port
        self._backlog: deque[SimulatedSocket] = deque()

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.popleft()
        assert accepted.peer is not None
        return accepted, (accepted.peer.host, 1)

    def came(self, sock: SimulatedSocket) -> None:
        self._backlog.append(sock)
        self.check_readable()

    @property
    def readable(self) -> bool:
        return bool(self._backlog)

    def close(self) -> None:
        self.closed = True
        self.reader = None
        self.network.close_listener(self)
        while self._backlog:
            self._backlog.popleft().close()


class SimulatedSocket(_Pollable):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, host: str, descriptors: Descriptors) -> None:
        super().__init__(network, process)
        self.host = host
        self.peer: SimulatedSocket | None = None
        self.inbox = bytearray()
        self.held: list[bytes] = []  # data that was sent while the link was cut
        self.unread = 0  # the number of bytes that the peer sent and this side hasn't read
        self.next_arrival = 0.0
        self.ended = False
        self.was_reset = False
        self.vanished = False
        self.arrived: Callable[[], None] = lambda: None

    # ---- methods of socket.socket

    def recv_into(self, buffer: Any) -> int:
        if self.was_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        inbox = self.inbox
        if not inbox:
            if self.ended:
                return 0
            raise BlockingIOError
        size = self.network.shortened(min(len(inbox), len(buffer)))
        memoryview(buffer)[:size] = inbox[:size]
        del inbox[:size]
        self._has_read(size)
        return size

    def send(self, data: Any, flags: int = 0) -> int:
        if self.was_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self.closed or self.peer is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        room = WINDOW_BYTES - self.peer.unread
        if room <= 0:
            raise BlockingIOError
        size = self.network.shortened(min(len(data), room))
        self.peer.unread += size
        self.network.carry(self, bytes(memoryview(data)[:size]))
        return size

    def close(self) -> None:
        if self.closed:
            return
        if self.peer is not None and not self.was_reset and not self.vanished:
            self.network.carry(self, _END)
        self._left_epoll()
        self.network.closed(self)
        self.closed = True
        self.reader = self.writer = None

    # ---- calls of the network

    @property
    def readable(self) -> bool:
        return bool(self.inbox) or self.ended or self.was_reset

    @property
    def writable(self) -> bool:
        return self.was_reset or (self.peer is not None and self.peer.unread < WINDOW_BYTES)

    def take(self, data: bytes) -> None:
        """Takes arriving bytes, or the end of the stream."""
        if self.closed:
            if data and self.peer is not None:
                self.network.soon_world(self.peer.reset, self.network.delay())
            return
        if data:
            self.inbox += data
        else:
            self.ended = True
        self.check_readable()
        self.arrived()

    def release(self) -> None:
        """Lets held data arrive after the link is healed, unless it was cut again."""
        if self.peer is None or (self.peer.host, self.host) in self.network.cut or self.vanished:
            return
        held, self.held = self.held, []
        for data in held:
            self.take(data)

    def reset(self) -> None:
        """Resets this end of the connection."""
        if self.closed or self.was_reset:
            return
        self.was_reset = True
        self.inbox.clear()
        self.check_readable()
        self.check_writable()
        self.arrived()

    def transmit_reset(self) -> None:
        """Resets the peer's end after a latency, because its data wasn't read."""
        if self.peer is not None:
            self.network.soon_world(self.peer.reset, self.network.delay())

    def vanish(self) -> None:
        """Ends the socket silently, because its host lost its power."""
        self._left_epoll()
        self.vanished = True
        self.closed = True
        self.reader = self.writer = None

    def _left_epoll(self) -> None:
        if self.epoll is not None:
            self.epoll.unregister(self._descriptor)

    def _has_read(self, size: int) -> None:
        self.unread -= size
        peer = self.peer
        if peer is not None and (peer.writer is not None or peer.blocked_writers):
            self.network.soon_world(peer.room_again, self.network.delay())

    blocked_writers = 0

    def room_again(self) -> None:
        """Wakes the writers: the peer has read bytes."""
        self.check_writable()
        self.arrived()


class Stream:
    """A connection that tasks read and write. It has the methods of `ottla.net.streams.Stream`; simulated clients use
    it, too."""

    def __init__(self, sock: SimulatedSocket) -> None:
        self._socket = sock
        self._waiters: list[asyncio.Future[None]] = []
        sock.arrived = self._arrived

    async def read_exactly(self, into: memoryview) -> None:
        filled = 0
        while filled < len(into):
            try:
                received = self._socket.recv_into(into[filled:])
            except BlockingIOError:
                await self._wait()
                continue
            if not received:
                raise ConnectionResetError("the peer closed the connection")
            filled += received

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._socket.blocked_writers += 1
                try:
                    await self._wait()
                finally:
                    self._socket.blocked_writers -= 1

    def close(self) -> None:
        self._socket.close()
        self._arrived()

    async def _wait(self) -> None:
        if self._socket.closed:
            raise ConnectionResetError("the connection has been closed at this end")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _arrived(self) -> None:
        """Wakes the waiting tasks. It runs in the world's context, the tasks in their own."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def connect(network: Network, host: str, port: int) -> Stream:
    """A stream from the calling process. Raises OSError."""
    return Stream(await network.connect(host, port))
