"""The current leader in an error answer (KIP-951), so that the client needn't ask for metadata first. Pure.

A broker that isn't a partition's leader answers with an error, and names the leader. The leader is in tagged
fields of the Produce response (from version 10) and the Fetch response (from version 16): `CurrentLeader` in a
partition's part, `NodeEndpoints` in the response itself.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from .varints import write_unsigned_varint

PRODUCE_VERSION, FETCH_VERSION = 10, 16
_NO_TAGS = b"\x00"
_CURRENT_LEADER = struct.Struct(">iib")


class Node(NamedTuple):
    """A broker and its address, for the client that gets the answer."""

    id: int
    host: str
    port: int
    rack: str | None


def produce_leader_tags(leader: int, leader_epoch: int) -> bytes:
    """The tagged fields of a partition in a Produce response."""
    return b"\x01\x00\x09" + _CURRENT_LEADER.pack(leader, leader_epoch, 0)


def fetch_leader_tags(leader: int, leader_epoch: int) -> bytes:
    """The tagged fields of a partition in a Fetch response."""
    return b"\x01\x01\x09" + _CURRENT_LEADER.pack(leader, leader_epoch, 0)


def node_tags(nodes: Collection[Node]) -> bytes:
    """The tagged fields of the response itself, which name these nodes. Without nodes, there are no tagged fields."""
    if not nodes:
        return _NO_TAGS
    field = bytearray()
    write_unsigned_varint(field, len(nodes) + 1)
    for node in nodes:
        field += struct.pack(">i", node.id) + _compact(node.host) + struct.pack(">i", node.port)
        field += (b"\x00" if node.rack is None else _compact(node.rack)) + _NO_TAGS
    out = bytearray(b"\x01\x00")
    write_unsigned_varint(out, len(field))
    return bytes(out + field)


def _compact(text: str) -> bytes:
    encoded = text.encode()
    out = bytearray()
    write_unsigned_varint(out, len(encoded) + 1)
    return bytes(out + encoded)
