"""The protocol by hand over a blocking socket: for requests that no decent client sends, and to compare brokers."""

from __future__ import annotations

import socket
import struct
import time
from itertools import count
from random import SystemRandom
from typing import Any

from ottla.protocol.frames import request_frame, response_body
from ottla.protocol.messages import read_response, write_request

_PORTS = range(20_001, 32_768)
_port = count(SystemRandom().randrange(len(_PORTS)))  # another test run begins elsewhere


class Closed(Exception):
    """The broker closed the connection."""


class Wire:
    """One connection. `call` speaks Kafka, `send` and `receive` anything."""

    def __init__(self, bootstrap: str, timeout: float = 20.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._correlation = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, api_key: int, version: int, message: dict[str, Any] | None = None) -> Any:
        """A request, and kio's object of its answer."""
        self.ask(api_key, version, write_request(api_key, version, message or {}))
        return self.answer(api_key, version)

    def ask(self, api_key: int, version: int, body: bytes) -> int:
        """Sends a request of which only the header is right for sure; its correlation id."""
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
        """The next frame without its size. Raises Closed at the end, TimeoutError when nothing comes."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def closed_by_peer(self) -> bool:
        """Waits until the broker hangs up; False where it answers or stays silent instead."""
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


def frame(payload: bytes) -> bytes:
    """`payload` with its size in front."""
    return struct.pack(">i", len(payload)) + payload


def wait_until_ready(bootstrap: str, timeout: float = 60.0) -> None:
    """Returns once Metadata names a broker. Raises TimeoutError."""
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
    """A port of the loopback interface that nobody listens on just now, and that no other call gives.

    It lies below those that the kernel gives to outgoing connections: whoever listened there finds it free again.
    """
    while True:
        port = _PORTS[next(_port) % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
