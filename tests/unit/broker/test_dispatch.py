"""Frames that end too early, in memory that holds nothing else and in memory where another frame follows."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api.registry import load_routes
from ottla.broker.dispatch import Dispatcher
from ottla.protocol.errors import ProtocolError

ROUTES = load_routes()


@pytest.mark.parametrize("key", sorted(ROUTES))
@pytest.mark.parametrize("after", [b"", b"\x00" * 400, b"\x05" * 400, b"\xff" * 400], ids=["end", "0", "5", "255"])
@pytest.mark.parametrize("tags", [b"", b"\x01", b"\x01\x05", b"\x01\x05\x7f", b"\x80"])
def test_a_frame_that_ends_in_its_header_is_malformed(key: int, after: bytes, tags: bytes) -> None:
    broker: Any = SimpleNamespace(spawn=lambda coroutine: pytest.fail("it was served"))
    dispatcher = Dispatcher(broker, ROUTES)
    header = struct.pack(">hhih", key, ROUTES[key].api.versions[1], 1, 2) + b"me" + tags
    connection: Any = SimpleNamespace(listener=SimpleNamespace(name="PLAINTEXT"))
    with pytest.raises(ProtocolError):
        dispatcher.dispatch(connection, bytearray(header + after), 0, len(header))
