"""Reads and writes the fields of the records in which a coordinator stores its state. Pure.

Kafka generates these records from the same kinds of schemas as its requests: fixed integers, strings, arrays, and in
flexible versions (KIP-482) compact lengths and tagged fields.
"""

from __future__ import annotations

import struct

from .errors import ProtocolError
from .varints import read_unsigned_varint, write_unsigned_varint

_byte = struct.Struct(">b")
_short = struct.Struct(">h")
_int = struct.Struct(">i")
_long = struct.Struct(">q")


class FieldReader:
    """Reads the fields of `data`, one after the other. While `flexible` is true, lengths are compact and there are
    tagged fields. `topic` is the internal topic that errors name. Every method raises ProtocolError at malformed
    bytes."""

    def __init__(self, data: bytes, topic: str) -> None:
        self.flexible = False
        self._data = data
        self._topic = topic
        self._position = 0

    def int8(self) -> int:
        """An integer of one byte."""
        return self._fixed(_byte)

    def int16(self) -> int:
        """An integer of two bytes."""
        return self._fixed(_short)

    def int32(self) -> int:
        """An integer of four bytes."""
        return self._fixed(_int)

    def int64(self) -> int:
        """An integer of eight bytes."""
        return self._fixed(_long)

    def count(self) -> int:
        """The number of elements of an array; 0 for a null array."""
        return max(self._length(_int), 0)

    def text(self) -> str:
        """A string that may not be null."""
        text = self.nullable_text()
        if text is None:
            raise ProtocolError(f"a null string in {self._topic}")
        return text

    def nullable_text(self) -> str | None:
        """A string, or null."""
        length = self._length(_short)
        try:
            return None if length < 0 else self._take(length).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"not UTF-8 in {self._topic}: {error}") from error

    def blob(self) -> bytes:
        """A byte string; empty where it is null."""
        return self._take(max(self._length(_int), 0))

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a struct, by their tags; none in versions that aren't flexible."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self._varint()):
            tag = self._varint()
            found[tag] = self._take(self._varint())
        return found

    def _length(self, plain: struct.Struct) -> int:
        return self._varint() - 1 if self.flexible else self._fixed(plain)

    def _fixed(self, form: struct.Struct) -> int:
        value: int
        (value,) = form.unpack(self._take(form.size))
        return value

    def _varint(self) -> int:
        value, self._position = read_unsigned_varint(self._data, self._position)
        return value

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise ProtocolError(f"a record of {self._topic} ends too early")
        taken = self._data[self._position : end]
        self._position = end
        return taken


class FieldWriter:
    """Appends fields to `out`; `flexible` as in `FieldReader`."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.flexible = False

    def int8(self, value: int) -> None:
        """An integer of one byte."""
        self.out += _byte.pack(value)

    def int16(self, value: int) -> None:
        """An integer of two bytes."""
        self.out += _short.pack(value)

    def int32(self, value: int) -> None:
        """An integer of four bytes."""
        self.out += _int.pack(value)

    def int64(self, value: int) -> None:
        """An integer of eight bytes."""
        self.out += _long.pack(value)

    def count(self, value: int | None) -> None:
        """The number of elements of an array; None for a null array."""
        self._length(_int, -1 if value is None else value)

    def text(self, value: str) -> None:
        """A string. Raises struct.error if it is too long for its length field."""
        encoded = value.encode()
        self._length(_short, len(encoded))
        self.out += encoded

    def tags(self, fields: dict[int, bytes]) -> None:
        """The tagged fields at the end of a struct, of which the tags ascend; nothing in versions that aren't
        flexible."""
        if not self.flexible:
            return
        write_unsigned_varint(self.out, len(fields))
        for tag, value in fields.items():
            write_unsigned_varint(self.out, tag)
            write_unsigned_varint(self.out, len(value))
            self.out += value

    def _length(self, plain: struct.Struct, value: int) -> None:
        if self.flexible:
            write_unsigned_varint(self.out, value + 1)
        else:
            self.out += plain.pack(value)
