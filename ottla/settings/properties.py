"""Reads Java's .properties syntax: names and values from a text.

Pure. Source: the format in the documentation of java.util.Properties.load, with comments, continuation lines, three
separators and escapes. If a name is given twice, the last value counts, as in Java.
"""

import hashlib
from collections.abc import Iterator

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Values by name from a .properties text, in the order of the text.

    Raises ValueError, with the number of the line, for a malformed \\uXXXX.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end, start = _split(line)
        try:
            properties[_unescape(line[:end])] = _unescape(line[start:])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return properties


def properties_checksum(text: str) -> str:
    """The checksum of a .properties text, by which the operator sees whether a process was started with this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields (number of the first line, from 1; text) of each name with its value. Continuation lines are joined."""
    gathered, first, continues = "", 0, False
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        line = line.lstrip(_BLANKS)
        if not gathered:
            # Only the beginning of a logical line can be a comment.
            if line[:1] in ("#", "!"):
                continues = False
                continue
            first = number
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        gathered += line[:-1] if continues else line
        if gathered and not continues:
            yield first, gathered
            gathered = ""
    if gathered or continues:
        yield first, gathered


def _split(line: str) -> tuple[int, int]:
    """(end of the name, start of the value) in a line. Between them are the first unescaped separator and its blanks.
    """
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    end = min(position, len(line))
    start = end
    while start < len(line) and line[start] in _BLANKS:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANKS:
            start += 1
    return end, start


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                    raise ValueError(f"\\u{digits} is not \\u and four hexadecimal digits")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        elif character == "\\":
            break
        parts.append(character)
    # Characters beyond 16 bits are written as two \u escapes, a surrogate pair.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
