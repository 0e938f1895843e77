"""Kafka's request and response bodies, read and written by (API key, version). Pure.

kio's native reader reads the bodies. It has one class for each version. Each class is given the fields of the API's
*latest* version, with Kafka's defaults (`_adopt_defaults`), so that a handler needs no version checks for newer fields.
Fields that later versions dropped exist only on the classes of the older versions.

Writers take plain mappings, because one answer must serve every version. Keys are kio's field names (Kafka's names in
snake case, without `_ms`); values are ints (times in ms), strings, bytes, UUIDs, booleans, and lists of mappings. A
missing key means the field's default; a key that a version lacks is left out. The writer of a version is compiled once
from kio's annotations: neighbouring fields of fixed size become one `struct.pack`.

Source: Kafka's message definitions (clients/src/main/resources/common/message), by way of kio.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from .bounds import check_arrays
from .errors import ErrorCode, ProtocolError
from .varints import write_unsigned_varint

Message = Mapping[str, Any]
Writer = Callable[[bytearray, Any], None]

_FIXED = {
    "int8": ("b", 0),
    "int16": ("h", 0),
    "int32": ("i", 0),
    "int64": ("q", 0),
    "uint16": ("H", 0),
    "uint32": ("I", 0),
    "float64": ("d", 0.0),
    "bool": ("?", False),
    "error_code": ("h", 0),
    "timedelta_i32": ("i", 0),
    "timedelta_i64": ("q", 0),
    "datetime_i64": ("q", -1),
}
_ZERO_UUID = bytes(16)
_DESCRIBE_TRANSACTIONS = 65
_TOKEN_CHANGES = (38, 39, 40)  # the times beside their errors are -1, which kio doesn't read as times


def milliseconds(duration: timedelta) -> int:
    """A request's duration field, which kio reads as a timedelta, in whole milliseconds (may be negative)."""
    return (duration.days * 86_400_000) + (duration.seconds * 1000) + duration.microseconds // 1000


def latest_version(api_key: int) -> int:
    """The newest version of an API that the schemas know."""
    return max(schema_name_map[api_key_map[api_key]])


def read_request(api_key: int, version: int, body: bytes, offset: int = 0) -> Any:
    """The request body at `offset`. Raises ProtocolError if the bytes don't follow the schema.

    Bytes after the body are ignored, as Kafka ignores them: librdkafka's Metadata requests have such bytes.
    """
    check_arrays(api_key, version, body, offset)
    return _read(_request_reader(api_key, version), body, offset)


def read_response(api_key: int, version: int, body: bytes, offset: int = 0) -> Any:
    """The response body at `offset`. Raises ProtocolError if the bytes don't follow the schema.

    Of a refused change of a delegation token, only the error code is read, with which the body begins.
    """
    if api_key in _TOKEN_CHANGES and (code := int.from_bytes(body[offset : offset + 2], signed=True)):
        try:
            return types.SimpleNamespace(error_code=ErrorCode(code))
        except ValueError as error:
            raise ProtocolError(f"unknown error code {code}") from error
    return _read(_response_reader(api_key, version), body, offset)


def write_request(api_key: int, version: int, message: Message) -> bytes:
    """The body of a request."""
    out = bytearray()
    _request_writer(api_key, version)(out, message)
    return bytes(out)


def write_response(api_key: int, version: int, message: Message) -> bytes:
    """The body of a response."""
    out = bytearray()
    _response_writer(api_key, version)(out, message)
    return bytes(out)


class Encoded(bytes):
    """A struct that `encode_element` has encoded. It takes the place of the struct's mapping in an array."""


def encode_element(api_key: int, version: int, field: str, element: Message) -> Encoded:
    """Encodes one struct of the array `field` of a response, to be kept and used in many responses."""
    out = bytearray()
    _element_writer(api_key, version, field)(out, element)
    return Encoded(out)


class EncodedArray:
    """An array of a response's structs that is encoded in portions, because it is too long for one turn of the event
    loop. It takes the place of the list of their mappings.

    `path` has the names of the fields that lead to the array, with dots in between.
    """

    __slots__ = ("_count", "_write", "data")

    def __init__(self, api_key: int, version: int, path: str) -> None:
        self.data = bytearray()
        self._count = 0
        self._write = _element_writer(api_key, version, path)

    def __len__(self) -> int:
        return self._count

    def extend(self, elements: Iterable[Message]) -> None:
        """Encodes `elements`, and appends them to the array."""
        for element in elements:
            self._write(self.data, element)
            self._count += 1


def _read(reader: Callable[[bytes, int], tuple[Any, int]], body: bytes, offset: int) -> Any:
    try:
        message, _ = reader(body, offset)
    except (SerialError, ValueError, OverflowError) as error:
        raise ProtocolError(f"malformed body: {error}") from error
    return message


@cache
def _request_reader(api_key: int, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    schema = load_request_schema(api_key, version)
    latest = latest_version(api_key)
    if version < latest:
        _adopt_defaults(schema, load_request_schema(api_key, latest))
    return entity_reader(schema)


@cache
def _response_reader(api_key: int, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    schema = load_response_schema(api_key, version)
    if api_key == _DESCRIBE_TRANSACTIONS:
        _allow_null(schema, "transaction_states", "transaction_start_time")
    latest = latest_version(api_key)
    if version < latest:
        _adopt_defaults(schema, load_response_schema(api_key, latest))
    return entity_reader(schema)


@cache
def _request_writer(api_key: int, version: int) -> Writer:
    return _entity_writer(load_request_schema(api_key, version))


@cache
def _response_writer(api_key: int, version: int) -> Writer:
    return _entity_writer(load_response_schema(api_key, version))


def _allow_null(schema: Any, array: str, time: str) -> None:
    """Lets kio read −1 as null in a time field of the structs in `array`. Kafka writes −1 where there is no time, but
    kio's annotation has no null, so kio refuses the message."""
    inner = _inner_type(next(field for field in fields(schema) if field.name == array))[0]
    field = next(field for field in fields(inner) if field.name == time)
    field.type = inner.__annotations__[time] = typing.Optional[field.type]  # noqa: UP045


def _adopt_defaults(old: Any, new: Any) -> None:
    """Gives `old` a class attribute for each field that only `new` has, and does the same for structs in fields."""
    old_fields = {field.name: field for field in fields(old)}
    for field in fields(new):
        known = old_fields.get(field.name)
        if known is None:
            setattr(old, field.name, _default(field))
            continue
        inner_old, inner_new = _inner_type(known)[0], _inner_type(field)[0]
        if is_dataclass(inner_old) and is_dataclass(inner_new):
            _adopt_defaults(inner_old, inner_new)


def _default(field: Field[Any]) -> Any:
    """The value that Kafka assumes for a field that a version lacks."""
    _, array, nullable = _inner_type(field)
    if field.default is not MISSING:
        return field.default
    if nullable:
        return None
    if array:
        return ()
    kind = field.metadata.get("kafka_type")
    if kind == "string":
        return ""
    if kind in ("bytes", "records"):
        return b""
    if kind in ("timedelta_i32", "timedelta_i64"):
        return timedelta(0)
    return _FIXED[kind][1] if kind in _FIXED else None


def _inner_type(field: Field[Any]) -> tuple[Any, bool, bool]:
    """A field's element type, whether it is an array, and whether it may be null."""
    annotation, nullable = _strip_none(field.type)
    if typing.get_origin(annotation) is tuple:
        inner, inner_nullable = _strip_none(typing.get_args(annotation)[0])
        return inner, True, nullable or inner_nullable
    return annotation, False, nullable


def _strip_none(annotation: Any) -> tuple[Any, bool]:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        inner = [option for option in typing.get_args(annotation) if option is not type(None)]
        return inner[0], True
    return annotation, False


@cache
def _element_writer(api_key: int, version: int, path: str) -> Writer:
    schema: Any = load_response_schema(api_key, version)
    for name in path.split("."):
        schema = next(_inner_type(field)[0] for field in fields(schema) if field.name == name)
    return _entity_writer(schema)


@cache
def _entity_writer(schema: type[Any]) -> Writer:
    flexible: bool = schema.__flexible__
    steps: list[Writer] = []
    fixed: list[tuple[str, str, Any]] = []  # (name, struct format, default) not yet flushed into a step
    tagged: list[tuple[int, str, Any, Writer]] = []
    for field in fields(schema):
        inner, array, nullable = _inner_type(field)
        kind = field.metadata.get("kafka_type")
        tag = field.metadata.get("tag")
        if tag is not None:
            writer = _value_writer(kind, inner, array, nullable and kind in ("string", "bytes"), flexible)
            tagged.append((tag, field.name, _plain(_default(field)), writer))
        elif kind in _FIXED and not array:
            default = _FIXED[kind][1] if field.default is MISSING else _plain(field.default)
            fixed.append((field.name, _FIXED[kind][0], -1 if default is None else default))
        else:
            if fixed:
                steps.append(_fixed_step(fixed))
                fixed = []
            steps.append(
                _step(field.name, _plain(_default(field)), _value_writer(kind, inner, array, nullable, flexible))
            )
    if fixed:
        steps.append(_fixed_step(fixed))
    if flexible:
        steps.append(_tags_step(sorted(tagged, key=lambda item: item[0])))
    if len(steps) == 1:
        return steps[0]

    def write(out: bytearray, message: Any) -> None:
        for step in steps:
            step(out, message)

    return write


def _plain(value: Any) -> Any:
    """A default in the form in which handlers give values: durations in ms."""
    return milliseconds(value) if isinstance(value, timedelta) else value


def _fixed_step(group: list[tuple[str, str, Any]]) -> Writer:
    pack = struct.Struct(">" + "".join(item[1] for item in group)).pack
    if len(group) == 1:
        name, _, default = group[0]

        def write_one(out: bytearray, message: Any) -> None:
            out += pack(message.get(name, default))

        return write_one
    names = [(item[0], item[2]) for item in group]

    def write_group(out: bytearray, message: Any) -> None:
        get = message.get
        out += pack(*[get(name, default) for name, default in names])

    return write_group


def _step(name: str, default: Any, writer: Writer) -> Writer:
    def write(out: bytearray, message: Any) -> None:
        writer(out, message.get(name, default))

    return write


def _tags_step(tagged: list[tuple[int, str, Any, Writer]]) -> Writer:
    if not tagged:

        def write_none(out: bytearray, message: Any) -> None:
            out.append(0)

        return write_none

    def write(out: bytearray, message: Any) -> None:
        present = []
        for tag, name, default, writer in tagged:
            value = message.get(name)
            if value is None or value == default:
                continue
            encoded = bytearray()
            writer(encoded, value)
            present.append((tag, encoded))
        write_unsigned_varint(out, len(present))
        for tag, encoded in present:
            write_unsigned_varint(out, tag)
            write_unsigned_varint(out, len(encoded))
            out += encoded

    return write


def _value_writer(kind: str | None, inner: Any, array: bool, nullable: bool, flexible: bool) -> Writer:
    if array:
        element = _value_writer(kind, inner, False, False, flexible)
        return _array_writer(_or_encoded(element) if kind is None else element, flexible)
    if kind is None:
        return _nullable_struct_writer(_entity_writer(inner)) if nullable else _entity_writer(inner)
    if kind in _FIXED:
        pack = struct.Struct(">" + _FIXED[kind][0]).pack

        def write_fixed(out: bytearray, value: Any) -> None:
            out += pack(value)

        return write_fixed
    if kind == "uuid":
        return _write_uuid
    if kind == "string":
        return _write_compact_string if flexible else _write_string
    return _write_compact_bytes if flexible else _write_bytes


def _array_writer(element: Writer, flexible: bool) -> Writer:
    pack = struct.Struct(">i").pack

    def write_compact(out: bytearray, values: Any) -> None:
        if values is None:
            out.append(0)
            return
        write_unsigned_varint(out, len(values) + 1)
        if type(values) is EncodedArray:
            out += values.data
            return
        for value in values:
            element(out, value)

    def write_plain(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\xff\xff\xff\xff"
            return
        out += pack(len(values))
        if type(values) is EncodedArray:
            out += values.data
            return
        for value in values:
            element(out, value)

    return write_compact if flexible else write_plain


def _or_encoded(writer: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if type(value) is Encoded:
            out += value
        else:
            writer(out, value)

    return write


def _nullable_struct_writer(writer: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)  # KIP-893: -1 marks a null struct
            return
        out.append(1)
        writer(out, value)

    return write


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _ZERO_UUID if value is None else value.bytes


_pack_short = struct.Struct(">h").pack
_pack_int = struct.Struct(">i").pack


def _write_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    encoded = value.encode()
    out += _pack_short(len(encoded))
    out += encoded


def _write_compact_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
        return
    encoded = value.encode()
    write_unsigned_varint(out, len(encoded) + 1)
    out += encoded


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _pack_int(len(value))
    out += value


def _write_compact_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    write_unsigned_varint(out, len(value) + 1)
    out += value
