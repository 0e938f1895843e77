"""Variable-length integers: unsigned as in compact fields (KIP-482), zigzag as inside record batches. Pure."""

from __future__ import annotations

from .errors import ProtocolError
from .received import Buffer


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Appends `value` (0 … 2**64−1), seven bits a byte, least significant first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """(value, position after it). Raises ProtocolError if the bytes end first, or the varint exceeds 10 bytes."""
    try:
        value = data[position]
        if value < 0x80:
            return value, position + 1
        byte = data[position + 1]
        if byte < 0x80:
            return value & 0x7F | byte << 7, position + 2
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > 63:
                raise ProtocolError("a varint of more than 10 bytes")
    except IndexError:
        raise ProtocolError("the bytes end inside a varint") from None


def write_varint(out: bytearray, value: int) -> None:
    """Appends `value` (−2**63 … 2**63−1), zigzag."""
    write_unsigned_varint(out, (value << 1) ^ (value >> 63))


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """(value, position after it), zigzag. Raises ProtocolError as `read_unsigned_varint` does."""
    raw, position = read_unsigned_varint(data, position)
    return (raw >> 1) ^ -(raw & 1), position
