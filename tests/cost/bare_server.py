"""A server that does the least that a broker needs for a request: it receives, writes and sends, on the same event
loop.

`python bare_server.py ANSWER_BYTES` prints its port, and serves until its standard input closes. The CPU that a broker
takes beyond this server's is spent by the broker's own code, on any machine, however busy.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import tempfile

import uvloop

SMALL_BYTES = 4096  # answers of up to this size are sent from memory, larger ones from the file, as a broker does
BUFFER_BYTES = 256 * 1024
# Appending needs new pages of the page cache, as in a broker. At this size the file begins anew.
FILE_BYTES_MAX = 64 * 1024 * 1024


class Served:
    """One connection. Requests are written to `file`; answers above SMALL_BYTES are sent from this file."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, file: int, answer_bytes: int) -> None:
        self._loop = loop
        self._sock = sock
        self._file = file
        self._answer_bytes = answer_bytes
        self._head = struct.pack(">i", answer_bytes) + bytes(answer_bytes if answer_bytes <= SMALL_BYTES else 0)
        self._buffer = bytearray(BUFFER_BYTES)
        self._written = 0
        self._missing = 0  # bytes of the request that are still to come
        self._sent = 0
        loop.add_reader(sock.fileno(), self._read)

    def _read(self) -> None:
        try:
            received = self._sock.recv_into(self._buffer)
        except ConnectionError:
            received = 0
        if not received:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            return
        if not self._missing:
            self._missing = 4 + int(struct.unpack_from(">i", self._buffer)[0])
        self._missing -= received
        self._written += os.pwrite(self._file, memoryview(self._buffer)[:received], self._written)
        if self._written > FILE_BYTES_MAX:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, self._answer_bytes)
            self._written = 0
        if not self._missing:
            self._sock.send(self._head)
            if self._answer_bytes > SMALL_BYTES:
                self._sent = 0
                self._send()

    def _send(self) -> None:
        try:
            while self._sent < self._answer_bytes:
                self._sent += os.sendfile(self._sock.fileno(), self._file, self._sent, self._answer_bytes - self._sent)
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._send)
        else:
            self._loop.remove_writer(self._sock.fileno())


async def serve(answer_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    with tempfile.TemporaryFile() as file:
        file.truncate(answer_bytes)

        def accept() -> None:
            sock, _ = listening.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Served(loop, sock, file.fileno(), answer_bytes)

        loop.add_reader(listening.fileno(), accept)
        print(listening.getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
