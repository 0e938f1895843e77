"""Channels, which move the bytes of one connection in both directions, on the event loop.

A channel knows nothing of frames, and uses its caller's buffers. `PlainChannel` moves bytes as they are.

The sockets are driven by the event loop's reader and writer callbacks, without asyncio's transports. That allows
`sendfile` between two sends, and one receive buffer for all connections.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Protocol

from ottla.net.turns import Readers
from ottla.protocol.received import Buffer


class Channel(Protocol):
    """Moves the bytes of one connection. Every call returns without waiting."""

    def receive_into(self, buffer: Buffer) -> int:
        """Receives into `buffer`, and returns the number of bytes; 0 if the peer has ended its side of the connection.

        Raises BlockingIOError if nothing has arrived, and OSError.
        """

    def send(self, data: Buffer, *, more: bool) -> int:
        """Sends from the start of `data`, and returns the number of bytes that were sent.

        With `more`, further bytes follow immediately, so the kernel needn't send `data` yet (MSG_MORE). Raises
        BlockingIOError if no byte can be sent now, and OSError.
        """

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """Sends bytes of a file, as `send` does; returns 0 if the file has ended."""

    def on_readable(self, callback: Callable[[], None]) -> None:
        """From now on calls `callback` when bytes have arrived, the peer has ended its side, or the channel failed."""

    def not_readable(self) -> None:
        """Ends the calls of the callback that `on_readable` was given."""

    def on_writable(self, callback: Callable[[], None]) -> None:
        """From now on calls `callback` when more bytes can be sent."""

    def not_writable(self) -> None:
        """From now on no longer calls the callback of `on_writable`."""

    def close(self) -> None:
        """Ends the connection. Neither callback is called any more."""


class PlainChannel:
    """A connected socket that doesn't block."""

    __slots__ = ("_descriptor", "_loop", "_readers", "_send", "_socket", "receive_into")

    def __init__(self, connected: socket.socket, readers: Readers | None = None) -> None:
        """`readers` calls back when bytes have arrived; by default the event loop does."""
        self._socket = connected
        self._descriptor = connected.fileno()
        self._loop = asyncio.get_running_loop()
        self._readers: Readers = self._loop if readers is None else readers
        self._send = connected.send
        self.receive_into: Callable[[Buffer], int] = connected.recv_into

    def send(self, data: Buffer, *, more: bool) -> int:
        return self._send(data, socket.MSG_MORE if more else 0)

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        return os.sendfile(self._descriptor, descriptor, position, size)

    def on_readable(self, callback: Callable[[], None]) -> None:
        self._readers.add_reader(self._descriptor, callback)

    def not_readable(self) -> None:
        self._readers.remove_reader(self._descriptor)

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._loop.add_writer(self._descriptor, callback)

    def not_writable(self) -> None:
        self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        self.not_readable()
        self.not_writable()
        self._socket.close()
