"""Thousands of clients that connect at once over TLS, ask for the versions of APIs, and hang up at once.

`python -m tests.cost.reconnecting ADDRESS AUTHORITY CLIENTS` prints `ready`, and begins at a line on its standard
input. Once all have their answer, it prints how many have, and at the next line it ends, which closes all connections.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import sys
import time

from ottla.protocol.frames import API_VERSIONS, request_frame
from ottla.protocol.messages import write_request

DEADLINE_S = 240.0
_HELLO = request_frame(API_VERSIONS, 0, 1, "again", write_request(API_VERSIONS, 0, {}))


class Client:
    """One connection: it connects, makes the handshake, asks, and waits for the answer."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self._context = context
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        self._asked = False

    def go_on(self) -> int:
        """Goes as far as it can. Returns the events to wait for; 0 once the answer has come. Raises OSError."""
        try:
            if not isinstance(self.socket, ssl.SSLSocket):
                self.socket = self._context.wrap_socket(
                    self.socket, server_hostname="localhost", do_handshake_on_connect=False
                )
            if not self._asked:
                self.socket.do_handshake()
                self.socket.send(_HELLO)
                self._asked = True
            if not self.socket.recv(4096):
                raise ConnectionError("the broker has closed the connection")
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        return 0


def main(address: str, authority: str, count: int) -> None:
    """Runs all clients."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authority)
    print("ready", flush=True)
    sys.stdin.readline()
    with selectors.DefaultSelector() as selector:
        clients = [Client((host, int(port)), context) for _ in range(count)]
        for client in clients:
            selector.register(client.socket.fileno(), selectors.EVENT_WRITE, client)
        left, deadline = count, time.monotonic() + DEADLINE_S
        while left and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                wanted = key.data.go_on()
                if wanted:
                    selector.modify(key.fd, wanted, key.data)
                else:
                    selector.unregister(key.fd)
                    left -= 1
        print(count - left, flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
