"""The blocking client where no broker answers: in time, and by name."""

from __future__ import annotations

import socket
import time

import pytest

from ottla.net.client import Client, Unreachable
from tests.peers.wire import free_port


def test_a_port_that_nobody_listens_on() -> None:
    port = free_port()
    began = time.monotonic()
    with Client(f"127.0.0.1:{port}", api_timeout_ms=400) as client, pytest.raises(Unreachable, match=rf":{port}\b"):
        client.metadata()
    assert time.monotonic() - began < 2


def test_a_listener_that_stays_silent() -> None:
    """It accepts (the kernel does) and never answers: the request's own time-out is far away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        began = time.monotonic()
        with Client(f"127.0.0.1:{port}", api_timeout_ms=400) as client:
            with pytest.raises(Unreachable, match=rf"Metadata failed for 400 ms .*:{port}\b"):
                client.metadata()
            assert time.monotonic() - began < 2
