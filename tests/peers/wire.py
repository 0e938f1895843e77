"""Kafka's protocol over a blocking socket: for requests that no client library sends, and to compare brokers."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from itertools import count
from random import SystemRandom
from typing import Any

from ottla.net.logging_in import login_requests
from ottla.protocol.frames import request_frame, response_body
from ottla.protocol.messages import read_response, write_request
from ottla.protocol.sasl import ClientExchange

_PORTS = range(20_001, 32_768)
_port = count(SystemRandom().randrange(len(_PORTS)))  # a random first port, another one in each test run


class Closed(Exception):
    """The broker closed the connection."""


class Wire:
    """One connection. `call` sends valid requests, `send` any bytes."""

    def __init__(
        self, bootstrap: str, timeout: float = 20.0, source: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        """`source` is the address that the connection comes from, by which brokers tell clients apart. With `tls` the
        connection is encrypted. Raises OSError."""
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout, (source, 0) if source else None)
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
            except BaseException:
                self.socket.close()
                raise
        self._correlation = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, api_key: int, version: int, message: dict[str, Any] | None = None) -> Any:
        """Sends a request, and returns the answer as an object of kio."""
        self.ask(api_key, version, write_request(api_key, version, message or {}))
        return self.answer(api_key, version)

    def ask(self, api_key: int, version: int, body: bytes) -> int:
        """Sends a request with a valid header and any body. Returns its correlation id."""
        self._correlation += 1
        self.socket.sendall(request_frame(api_key, version, self._correlation, "wire", body))
        return self._correlation

    def answer(self, api_key: int, version: int) -> Any:
        received = self.receive()
        correlation_id, start = response_body(api_key, version, received)
        assert correlation_id == self._correlation
        return read_response(api_key, version, received, start)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next frame, without its size. Raises Closed if the connection ends, TimeoutError if nothing comes."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def closed_by_peer(self) -> bool:
        """Waits until the broker closes the connection. Returns False if it sends bytes instead, or nothing until the
        time-out."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return bytes(data)


def log_in(wire: Wire, exchange: ClientExchange) -> None:
    """Logs in over a connection. Raises LoginRefused, Closed."""
    requests = login_requests(exchange)
    key, version, message = next(requests)
    while True:
        try:
            key, version, message = requests.send(wire.call(key, version, message))
        except StopIteration:
            return


def frame(payload: bytes) -> bytes:
    """`payload` with its size before it."""
    return struct.pack(">i", len(payload)) + payload


def wait_until_ready(bootstrap: str, timeout: float = 60.0) -> None:
    """Waits until Metadata names a broker. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with Wire(bootstrap, 2.0) as wire:
                if wire.call(3, 4, {"topics": [], "allow_auto_topic_creation": False}).brokers:
                    return
        except (OSError, Closed):
            pass
        time.sleep(0.01)
    raise TimeoutError(f"{bootstrap} isn't ready after {timeout:.0f} s")


def free_port() -> int:
    """A port of the loopback interface without a listener. Other calls return other ports.

    The port is below the range from which the kernel takes ports of outgoing connections: a process that restarts finds
    its port free again.
    """
    while True:
        port = _PORTS[next(_port) % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
