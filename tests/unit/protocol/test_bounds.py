"""Every request refuses arrays that claim more elements than it can hold, and sound requests are read."""

import dataclasses
import struct

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map

from ottla.protocol import bounds
from ottla.protocol.bounds import check_arrays
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages import read_request, write_request

EVERY = [
    (key, version)
    for key, name in api_key_map.items()
    for version in schema_name_map[name]
    if dataclasses.fields(load_request_schema(key, version))
]


def filled(schema: object, depth: int = 0) -> dict[str, object]:
    """A message with two elements in every array and a value in every string."""
    message: dict[str, object] = {}
    for field in dataclasses.fields(schema):  # type: ignore[arg-type]
        inner, array = bounds._element_type(field)
        kind = field.metadata.get("kafka_type")
        value: object
        if kind is None:
            value = filled(inner, depth + 1)
        elif kind == "string":
            value = "text"
        elif kind in ("bytes", "records"):
            value = b"bytes"
        elif kind == "uuid":
            value = None
        else:
            value = 1
        message[field.name] = [value, value] if array else value
    return message


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_walks_to_the_end_of_a_good_request(key: int, version: int) -> None:
    body = write_request(key, version, filled(load_request_schema(key, version)))
    walker = bounds._request_walker(key, version)
    check_arrays(key, version, b"head" + body, 4)
    if walker is not None:
        assert walker(b"head" + body, 4, [1000]) == 4 + len(body)


def test_an_array_longer_than_the_request() -> None:
    with pytest.raises(ProtocolError, match="2147483647 elements"):
        read_request(3, 1, struct.pack(">i", 2**31 - 1))
    with pytest.raises(ProtocolError, match="elements"):
        read_request(3, 9, b"\xff\xff\xff\xff\x0f" + bytes(100))


def test_an_array_inside_an_element_and_inside_a_tagged_field() -> None:
    inside = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 2**30)
    with pytest.raises(ProtocolError, match="elements"):
        check_arrays(21, 0, inside, 0)
    # Fetch version 12 onward keeps the cluster id and the replica's state in tags; neither holds an array.
    check_arrays(1, 12, write_request(1, 12, {"replica_id": -1}), 0)


def test_too_many_elements_in_all() -> None:
    body = struct.pack(">i", 1_500_000) + bytes(2 * 1_500_000)
    with pytest.raises(ProtocolError, match="1500000 elements"):
        check_arrays(3, 1, body, 0)


def test_a_request_that_ends_inside_an_array() -> None:
    with pytest.raises(ProtocolError):
        check_arrays(3, 1, struct.pack(">i", 2) + b"\x00\x04ab", 0)
