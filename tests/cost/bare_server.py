"""The least that a broker could do for a small request: receive, write, send, on the same event loop.

`python bare_server.py` prints its port and serves until its standard input closes. What a broker costs beyond it is the
broker's own doing, on any machine and however busy that is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import tempfile

import uvloop

ANSWER = struct.pack(">i", 56) + bytes(56)  # as long as a Produce response
BATCH_BYTES = 170


async def serve() -> None:
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    buffer = bytearray(256 * 1024)
    with tempfile.TemporaryFile() as file:

        def accept() -> None:
            sock, _ = listening.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop.add_reader(sock.fileno(), read, sock)

        def read(sock: socket.socket) -> None:
            try:
                received = sock.recv_into(buffer)
            except ConnectionError:
                received = 0
            if not received:
                loop.remove_reader(sock.fileno())
                sock.close()
                return
            os.pwrite(file.fileno(), memoryview(buffer)[:BATCH_BYTES], 0)
            sock.send(ANSWER)

        loop.add_reader(listening.fileno(), accept)
        print(listening.getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
