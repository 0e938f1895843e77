r"""Format templates, such as `%k %s\n`: parses them, and prints records by them. Pure.

The fields have kcat's meanings (its `format.c`); `%v`, `%V` and `%d` are rpk's. Where the two differ, kcat's meaning
counts: `%T` is the timestamp, and text in braces behind a field is text, except behind `%d`, which kcat doesn't have.
Unlike kcat, the parser refuses an unknown escape, and `\0` doesn't end a template. Keys and values are written byte by
byte, without decoding. `template_reader` reads records by a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ottla.cli.errors import UsageError

_TOKEN = re.compile(
    r"%d\{strftime\[(?P<strftime>.*?)\]\}|%(?P<field>.?)"
    r"|\\x(?P<hex>[0-9a-fA-F]{1,2})|\\(?P<octal>0[0-7]{0,2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_SAME = {"v": "s", "V": "S", "d": "T"}
_FIELDS = {
    "k": "key",
    "s": "value (or %v)",
    "h": "headers as a=1,b=2",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms",
    "d": "timestamp in ms, or formatted by %d{strftime[%F %T]}",
    "K": "length of the key",
    "S": "length of the value (or %V)",
    "R": "length of the value in four bytes, big-endian",
}
BINARY_LENGTH_BYTES = 4  # the size of a length that %R writes


class Field(NamedTuple):
    """A part of a record: kcat's letter for it, and the strftime format of a timestamp; the format None means ms."""

    letter: str
    strftime: str | None = None


def parse(text: str) -> list[Field | bytes]:
    """The fields of a template and the texts between them, with escapes replaced. No text is empty, and none follows
    another text directly."""
    tokens: list[Field | bytes] = []
    for found in _TOKEN.finditer(text):
        token = _token(found, text)
        if isinstance(token, bytes) and tokens and isinstance(tokens[-1], bytes):
            tokens[-1] += token
        else:
            tokens.append(token)
    if not any(isinstance(token, Field) for token in tokens):
        raise UsageError(f"the template '{text}' has no field", known_fields())
    return tokens


def _token(found: re.Match[str], text: str) -> Field | bytes:
    match found.lastgroup:
        case "strftime":
            return Field("T", found["strftime"])
        case "field" if found["field"] == "%":
            return b"%"
        case "field":
            letter = _SAME.get(found["field"], found["field"])
            if letter not in _FIELDS:
                what = f"there is no field %{letter}" if letter else "a single % stands at the end"
                raise UsageError(f"{what} in the template '{text}'", known_fields())
            if found["field"] == "d" and text[found.end() : found.end() + 1] == "{":
                raise UsageError(
                    f"%d{{…}} isn't closed, or isn't known, in the template '{text}'",
                    r"Write %d{strftime[%F %T]}; a brace as such is \x7b.",
                )
            return Field(letter)
        case "hex":
            return bytes([int(found["hex"], 16)])
        case "octal":
            return bytes([int(found["octal"], 8)])
        case "escape":
            if found["escape"] not in _ESCAPES:
                raise UsageError(
                    f"there is no escape \\{found['escape']} in the template '{text}'",
                    r"Escapes are \n \t \r \0 \x1f and \\; a percent sign is %%.",
                )
            return _ESCAPES[found["escape"]]
        case _:
            return found["text"].encode("utf-8", "surrogateescape")


def known_fields(letters: str = "".join(_FIELDS)) -> str:
    """A sentence that explains the fields."""
    return "Fields are " + ", ".join(f"%{letter} {_FIELDS[letter]}" for letter in letters) + "."


def writer(text: str, null: bytes) -> Callable[[Any], bytes]:
    """A function that formats a consumed record by the template. `null` stands for a null key or value."""

    def nothing_for_null(name: str) -> Callable[[Any], bytes]:
        def part(record: Any) -> bytes:
            value = getattr(record, name)
            return null if value is None else bytes(value)

        return part

    writing = _WRITING | {"k": nothing_for_null("key"), "s": nothing_for_null("value")}
    parts: list[Callable[[Any], bytes]] = []
    for token in parse(text):
        if isinstance(token, bytes):
            parts.append(lambda record, constant=token: constant)  # type: ignore[misc]
        elif token.strftime is not None:
            parts.append(lambda record, form=token.strftime: _moment(record.timestamp, form))  # type: ignore[misc]
        else:
            parts.append(writing[token.letter])
    return lambda record: b"".join([part(record) for part in parts])


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _headers(record: Any) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


def _moment(timestamp_ms: int, form: str) -> bytes:
    """The timestamp in this format, in UTC. A missing timestamp (-1), or one beyond the calendar, is written in
    milliseconds."""
    try:
        if timestamp_ms < 0:
            raise ValueError
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return b"%d" % timestamp_ms
    return moment.strftime(form).encode("utf-8", "surrogateescape")


_WRITING: dict[str, Callable[[Any], bytes]] = {
    "h": _headers,
    "t": lambda record: str(record.topic).encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "K": lambda record: b"%d" % _length(record.key),
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: _length(record.value).to_bytes(BINARY_LENGTH_BYTES, "big", signed=True),
}
