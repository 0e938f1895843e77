"""Records as text: the lines and JSON objects that `produce` reads and `consume` prints. Pure.

The JSON form is the same in both directions, so that `ottla consume a --json | ottla produce b --format json` copies
keys, values, headers and timestamps. Bytes that aren't UTF-8 have the names `key_base64` and `value_base64` instead of
`key` and `value`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.cli.errors import UsageError
from ottla.cli.times import moment_text

Headers = list[tuple[str, bytes]]

TIMESTAMP_MS_MAX = 2**63 - 1
SHOWN = ("topic", "partition", "offset", "timestamp", "headers", "key")


class NewRecord(NamedTuple):
    """A record to write. If `partition` is None, the partitioner chooses one; `timestamp_ms` None stands for now."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp_ms: int | None


@dataclass(frozen=True)
class Constants:
    """The key, partition and timestamp of records that have none of their own, and the headers of every record."""

    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None

    def complete(self, record: NewRecord) -> NewRecord:
        """The record with the constants filled in; constant headers come first."""
        return record._replace(
            key=self.key if record.key is None else record.key,
            headers=[*self.headers, *record.headers],
            partition=self.partition if record.partition is None else record.partition,
            timestamp_ms=self.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
        )


def nullable(text: bytes, marker: bytes | None) -> bytes | None:
    """The text, or None if it is the null marker."""
    return None if marker is not None and text == marker else text


def parse_header(text: str) -> tuple[str, bytes]:
    """`name=value` as (name, value)."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"'{text}' is not NAME=VALUE", "For instance: --header source=test.")
    return name, value.encode()


def parse_headers(text: bytes, between: bytes) -> Headers:
    """`a:1,b:2` as a list of (name, value); `between` separates name and value (here it is the colon)."""
    headers: Headers = []
    for part in text.split(b",") if text else []:
        name, found, value = part.partition(between)
        if not found:
            form = f"name{between.decode()}value"
            raise UsageError(f"{_excerpt(part)} is not a header", f"Headers are written {form},{form}.")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise UsageError(f"the header's name {_excerpt(name)} is not UTF-8") from None
    return headers


class LineFormat:
    """A line: `a:1,b:2 <header separator> key <key separator> value`. Without a separator, its part is left out."""

    def __init__(self, key_separator: str | None, header_separator: str | None, null_marker: bytes | None) -> None:
        if key_separator == "" or header_separator == "":
            raise UsageError("a separator can't be empty", "For instance: --key-separator :")
        self._key_separator = _unescaped(key_separator)
        self._header_separator = _unescaped(header_separator)
        self._null_marker = null_marker

    def parse(self, line: bytes) -> NewRecord:
        """Splits one line, without its line end."""
        headers: Headers = []
        if self._header_separator is not None:
            text, found, line = line.partition(self._header_separator)
            if not found:
                raise UsageError(f"there is no header separator in {_excerpt(text)}")
            headers = parse_headers(text, b":")
        key = None
        if self._key_separator is not None:
            raw_key, found, line_value = line.partition(self._key_separator)
            if not found:
                raise UsageError(f"there is no key separator in {_excerpt(line)}")
            key, line = nullable(raw_key, self._null_marker), line_value
        return NewRecord(key, nullable(line, self._null_marker), headers, None, None)


def parse_json(line: bytes) -> NewRecord:
    """One object with any of key, value, headers, timestamp; key and value may be any JSON, null included."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", "--format json wants one object per line.") from None
    if not isinstance(data, dict):
        raise UsageError("not an object", 'Write {"key": …, "value": …}; other fields are headers and timestamp.')
    timestamp = data.get("timestamp")
    if timestamp is not None and (type(timestamp) is not int or timestamp > TIMESTAMP_MS_MAX):
        raise UsageError("timestamp is not a number of milliseconds")
    headers = data.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list) or not all(isinstance(header, dict) and "key" in header for header in headers):
        raise UsageError('headers are neither a list [{"key": …, "value": …}] nor an object')
    return NewRecord(
        _from_json(data, "key"),
        _from_json(data, "value"),
        [(str(header["key"]), _header_value(header)) for header in headers],
        None,
        timestamp if timestamp is None or timestamp >= 0 else None,
    )


def to_json(record: Any) -> dict[str, Any]:
    """A consumed record as a JSON object."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type == 1 else "CreateTime",
        **content_to_json(record),
    }


def content_to_json(record: Any) -> dict[str, Any]:
    """A record's headers, key and value, as JSON."""
    return {
        "headers": [{"key": name, **_as_json("value", value)} for name, value in record.headers],
        **_as_json("key", record.key),
        **_as_json("value", record.value),
    }


def line_writer(show: Sequence[str], separator: str, null_marker: str) -> Callable[[Any], bytes]:
    """A function from a consumed record to its line: the shown properties in the order of SHOWN, then the value."""
    between = _unescaped(separator) or b""
    null = null_marker.encode()
    parts: list[Callable[[Any], bytes]] = [
        _SHOWING[name] for name in SHOWN if name in show and name not in ("key", "headers")
    ]

    def headers(record: Any) -> bytes:
        return b",".join(name.encode() + b":" + (null if value is None else value) for name, value in record.headers)

    def key(record: Any) -> bytes:
        return null if record.key is None else bytes(record.key)

    parts += [headers] if "headers" in show else []
    parts += [key] if "key" in show else []

    def line(record: Any) -> bytes:
        value = null if record.value is None else record.value
        return between.join([*(part(record) for part in parts), value]) + b"\n"

    return line


_SHOWING: dict[str, Callable[[Any], bytes]] = {
    "topic": lambda record: str(record.topic).encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: moment_text(record.timestamp).encode(),
}


def _from_json(data: dict[str, Any], name: str) -> bytes | None:
    encoded = data.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise UsageError(f"{name}_base64 is not base64") from None
    value = data.get(name)
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode("utf-8", "surrogatepass")


def _header_value(header: dict[str, Any]) -> bytes:
    value = _from_json(header, "value")
    if value is None:
        raise UsageError(f"header '{header['key']}' has no value", "The Kafka client in use can't write such a header.")
    return value


def _as_json(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: bytes(value).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _unescaped(text: str | None) -> bytes | None:
    r"""A separator as bytes. `\t`, `\n` and `\0` stand for characters that are hard to type in a shell."""
    if text is None:
        return None
    return text.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0").encode()


def _excerpt(text: bytes) -> str:
    shown = text[:60].decode("utf-8", "replace")
    return f"'{shown}…'" if len(text) > 60 else f"'{shown}'"
