"""Checks that a request's arrays can be as long as they announce, before memory is allocated for them. Pure.

kio's native reader allocates memory for as many elements as an array announces, so a request of five bytes could end
the process. The check walks over the body by the schema. It refuses an array with more elements than bytes are left. It
also refuses a request with more than `ELEMENTS_MAX` elements in all, because that many would block the event loop for
seconds.

A walker is compiled once for each schema: fixed fields take one addition, arrays of fixed elements one multiplication.
Bytes that are malformed in any other way are left to the reader.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

from kio.index import load_request_schema

from .errors import ProtocolError
from .varints import read_unsigned_varint

ELEMENTS_MAX = 1_000_000

# (data, position, [number of elements that are still allowed]) → position after the value that it walks over.
Walker = Callable[[bytes, int, list[int]], int]

_SIZES = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float64": 8,
    "bool": 1,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}
_short = struct.Struct(">h").unpack_from
_int = struct.Struct(">i").unpack_from


def check_arrays(api_key: int, version: int, body: bytes, offset: int) -> None:
    """Raises ProtocolError if the body at `offset` announces more elements than it has bytes left, or more than
    ELEMENTS_MAX."""
    walker = _request_walker(api_key, version)
    if walker is None:
        return
    try:
        walker(body, offset, [ELEMENTS_MAX])
    except (IndexError, struct.error) as error:
        raise ProtocolError("malformed body: it ends early") from error


@cache
def _request_walker(api_key: int, version: int) -> Walker | None:
    schema = load_request_schema(api_key, version)
    return _struct_walker(schema) if _has_arrays(schema) else None


def _has_arrays(schema: Any) -> bool:
    for field in fields(schema):
        inner, array = _element_type(field)
        if array or (is_dataclass(inner) and _has_arrays(inner)):
            return True
    return False


def _element_type(field: Field[Any]) -> tuple[Any, bool]:
    """(the type of a field, or of its elements if it is an array; whether it is an array)."""
    annotation = _without_none(field.type)
    if typing.get_origin(annotation) is tuple:
        return _without_none(typing.get_args(annotation)[0]), True
    return annotation, False


def _without_none(annotation: Any) -> Any:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(option for option in typing.get_args(annotation) if option is not type(None))
    return annotation


def _nullable(field: Field[Any]) -> bool:
    return type(None) in typing.get_args(field.type)


def _fixed_size(field: Field[Any]) -> int | None:
    """The size in bytes of the field's value, or of one element if the field is an array. None if the size varies."""
    kind = field.metadata.get("kafka_type")
    if kind is not None:
        return _SIZES.get(kind)
    inner, _ = _element_type(field)
    if inner.__flexible__:
        return None
    sizes = [None if _element_type(part)[1] or _nullable(part) else _fixed_size(part) for part in fields(inner)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


@cache
def _struct_walker(schema: Any) -> Walker:
    flexible: bool = schema.__flexible__
    steps: list[Walker] = []
    tagged: dict[int, Walker] = {}
    fixed = 0
    for field in fields(schema):
        inner, array = _element_type(field)
        tag = field.metadata.get("tag")
        if tag is not None:
            if array or (is_dataclass(inner) and _has_arrays(inner)):
                tagged[tag] = _field_walker(field, flexible)
            continue
        size = _fixed_size(field)
        if size is not None and not array and field.metadata.get("kafka_type") is not None:
            fixed += size
            continue
        if fixed:
            steps.append(_skip(fixed))
            fixed = 0
        steps.append(_field_walker(field, flexible))
    if fixed:
        steps.append(_skip(fixed))
    if flexible:
        steps.append(_tags_walker(tagged))
    return _sequence(steps)


def _sequence(steps: list[Walker]) -> Walker:
    if len(steps) == 1:
        return steps[0]

    def walk(data: bytes, position: int, left: list[int]) -> int:
        for step in steps:
            position = step(data, position, left)
        return position

    return walk


def _skip(size: int) -> Walker:
    def walk(data: bytes, position: int, left: list[int]) -> int:
        return position + size

    return walk


def _field_walker(field: Field[Any], flexible: bool) -> Walker:
    inner, array = _element_type(field)
    kind = field.metadata.get("kafka_type")
    if array:
        size = _fixed_size(field)
        element = None if size is not None else _value_walker(kind, inner, flexible)
        return _array_walker(element, size or 1, flexible)
    walker = _value_walker(kind, inner, flexible)
    return _nullable_struct_walker(walker) if kind is None and _nullable(field) else walker


def _value_walker(kind: str | None, inner: Any, flexible: bool) -> Walker:
    if kind is None:
        return _struct_walker(inner)
    if flexible:
        return _compact_walker
    return _string_walker if kind == "string" else _bytes_walker


def _array_walker(element: Walker | None, size: int, flexible: bool) -> Walker:
    """A walker over an array, which applies the walker `element` to each element.

    `size` is the least number of bytes of an element. If `element` is None, each element has exactly that size.
    """

    def walk(data: bytes, position: int, left: list[int]) -> int:
        if flexible:
            count, position = read_unsigned_varint(data, position)
            count -= 1
        else:
            count = _int(data, position)[0]
            position += 4
        if count <= 0:
            return position
        left[0] -= count
        if left[0] < 0 or count * size > len(data) - position:
            raise ProtocolError(f"malformed body: an array of {count} elements has only {len(data) - position} bytes")
        if element is None:
            return position + count * size
        for _ in range(count):
            position = element(data, position, left)
        return position

    return walk


def _nullable_struct_walker(walker: Walker) -> Walker:
    def walk(data: bytes, position: int, left: list[int]) -> int:
        if data[position] > 0x7F:  # KIP-893: −1 marks a null struct
            return position + 1
        return walker(data, position + 1, left)

    return walk


def _compact_walker(data: bytes, position: int, left: list[int]) -> int:
    size, position = read_unsigned_varint(data, position)
    return position + max(size - 1, 0)


def _string_walker(data: bytes, position: int, left: list[int]) -> int:
    size: int = _short(data, position)[0]
    return position + 2 + max(size, 0)


def _bytes_walker(data: bytes, position: int, left: list[int]) -> int:
    size: int = _int(data, position)[0]
    return position + 4 + max(size, 0)


def _tags_walker(tagged: dict[int, Walker]) -> Walker:
    def walk(data: bytes, position: int, left: list[int]) -> int:
        if data[position] == 0:
            return position + 1
        count, position = read_unsigned_varint(data, position)
        for _ in range(count):
            tag, position = read_unsigned_varint(data, position)
            size, position = read_unsigned_varint(data, position)
            if tag in tagged:
                tagged[tag](data, position, left)
            position += size
            if position > len(data):
                raise ProtocolError("malformed body: it ends inside a tagged field")
        return position

    return walk
