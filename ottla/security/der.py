"""Reads ASN.1's distinguished encoding (DER), as far as names of certificates and old key stores need it. Pure.

Source: ITU-T X.690. Lengths have at most four bytes, tags have one byte.
"""

from __future__ import annotations

from typing import NamedTuple

OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, SET = 0x06, 0x04, 0x30, 0x31
_LENGTH_BYTES_MAX = 4


class MalformedDer(ValueError):
    """The bytes aren't DER, or not the structure that was expected."""


class Element(NamedTuple):
    """One element: its tag, its content, and its whole encoding with tag and length."""

    tag: int
    content: bytes
    encoded: bytes


def elements(data: bytes) -> list[Element]:
    """The elements that follow one another in `data`. Raises MalformedDer."""
    found = []
    position = 0
    while position < len(data):
        element = _element(data, position)
        found.append(element)
        position += len(element.encoded)
    return found


def only(data: bytes, tag: int) -> Element:
    """The one element of this tag that `data` consists of. Raises MalformedDer."""
    found = elements(data)
    if len(found) != 1 or found[0].tag != tag:
        raise MalformedDer(f"not one element of the tag {tag:#04x}")
    return found[0]


def object_identifier(content: bytes) -> str:
    """The dotted text of an object identifier, from an element's content. Raises MalformedDer."""
    if not content or content[-1] & 0x80:
        raise MalformedDer("an object identifier ends early")
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _element(data: bytes, position: int) -> Element:
    if len(data) - position < 2:
        raise MalformedDer("an element ends early")
    tag, length = data[position], data[position + 1]
    begin = position + 2
    if length & 0x80:
        size = length & 0x7F
        if not 0 < size <= _LENGTH_BYTES_MAX or len(data) - begin < size:
            raise MalformedDer("an element has an invalid length")
        length = int.from_bytes(data[begin : begin + size], "big")
        begin += size
    if len(data) - begin < length:
        raise MalformedDer("an element ends early")
    return Element(tag, data[begin : begin + length], data[position : begin + length])
