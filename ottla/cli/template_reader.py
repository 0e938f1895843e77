"""Reads records from bytes by a format template, for `produce --format`. Pure.

The template is matched repeatedly, and no byte of the input is skipped. A field ends at the first occurrence of the
text that follows it in the template, and never contains a line end. So if a line lacks a separator, the error is in
that line, and no field continues in the next line. A key or value whose length comes before it (`%K`, `%S`, `%R`) may
contain any bytes. A template in which the end of a field is ambiguous is refused.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ottla.cli.errors import UsageError
from ottla.cli.records import TIMESTAMP_MS_MAX, Headers, NewRecord, nullable, parse_headers
from ottla.cli.template import BINARY_LENGTH_BYTES, Field, known_fields, parse

_READ = "kshpTKSR"
_MEASURES = {"K": "k", "S": "s", "R": "s"}
_NUMBER = re.compile(rb"-?[0-9]+")
_DIGITS_MAX = 20
_LENGTHS = (-1, 2**31 - 1)
_NUMBERS = {"T": (-1, TIMESTAMP_MS_MAX), "p": (0, 2**31 - 1), "K": _LENGTHS, "S": _LENGTHS, "R": _LENGTHS}


class Mismatch(UsageError):
    """The input doesn't match the template. `at` is the position of the difference in the data."""

    def __init__(self, message: str, remedy: str, at: int) -> None:
        super().__init__(message, remedy)
        self.at = at


class Matched(NamedTuple):
    """A record, and the position after it in the data."""

    record: NewRecord
    end: int


class Reader:
    """Finds records in bytes. A key or value that the template lacks is null, such a partition or timestamp None."""

    def __init__(self, text: str, null_marker: bytes | None) -> None:
        self._null_marker = null_marker
        self._remedy = f"The template is '{text}'."
        self._tokens = parse(text)
        fields = [token for token in self._tokens if isinstance(token, Field)]
        self._check_fields(text, fields)
        letters = [field.letter for field in fields]
        self._measured = {_MEASURES[letter] for letter in letters if letter in _MEASURES}
        self.names = frozenset(letters)
        last = self._tokens[-1]
        if isinstance(last, Field) and not self._has_own_end(last):
            self._tokens.append(b"\n")
        self._check_ends(text)
        final = self._tokens[-1]
        self.ends_with_line = isinstance(final, bytes) and final.endswith(b"\n")

    def _has_own_end(self, field: Field) -> bool:
        return field.letter == "R" or field.letter in self._measured

    def _check_fields(self, text: str, fields: list[Field]) -> None:
        seen: list[str] = []
        for letter, strftime in fields:
            if letter not in _READ or strftime is not None:
                named = "%d{…}" if strftime is not None else f"%{letter}"
                raise UsageError(f"{named} can't be read, in the template '{text}'", known_fields(_READ))
            target = _MEASURES.get(letter)
            if letter in seen or (letter in "SR" and {"S", "R"} & set(seen)):
                raise UsageError(f"%{letter} is given twice in the template '{text}'", "Leave one of them out.")
            if target is not None and (target in seen or Field(target) not in fields):
                raise UsageError(
                    f"%{letter} has no %{target} after it in the template '{text}'",
                    "A length must stand before the field that it measures.",
                )
            seen.append(letter)

    def _check_ends(self, text: str) -> None:
        for token, following in zip(self._tokens, self._tokens[1:], strict=False):
            if isinstance(token, bytes) or self._has_own_end(token):
                continue
            if isinstance(following, Field):
                raise UsageError(
                    f"it is ambiguous where %{token.letter} ends and %{following.letter} begins,"
                    f" in the template '{text}'",
                    "Put text between the two, or the first one's length before it: %K,%k%s.",
                )
            if token.letter in _NUMBERS and following[:1].isdigit():
                raise UsageError(
                    f"it is ambiguous where the number %{token.letter} ends, in the template '{text}'",
                    "Begin the text after the number with another character than a digit.",
                )

    def match(self, data: bytes, at: int) -> Matched | int:
        """The record that begins at `at`. If the data ends inside that record: the least number of missing bytes.

        Raises Mismatch.
        """
        found: dict[str, Any] = {}
        previous = ""
        for index, token in enumerate(self._tokens):
            if isinstance(token, bytes):
                missing = self._expect(data, at, token, previous)
                end = at + len(token)
            else:
                end, missing = self._field(data, at, token.letter, self._tokens[index + 1 : index + 2], found)
                previous = f" after %{token.letter}"
            if missing:
                return missing
            at = end
        record = NewRecord(found.get("k"), found.get("s"), found.get("h", []), found.get("p"), found.get("T"))
        return Matched(record, at)

    def _expect(self, data: bytes, at: int, text: bytes, previous: str) -> int:
        """Expects `text` at `at`. Returns how many bytes of `text` the data lacks at its end. Raises Mismatch."""
        there = data[at : at + len(text)]
        if there == text:
            return 0
        if text.startswith(there):
            return len(text) - len(there)
        raise self._mismatch(f"expected {_shown(text)}{previous}", data, at)

    def _field(
        self, data: bytes, at: int, letter: str, following: list[Field | bytes], found: dict[str, Any]
    ) -> tuple[int, int]:
        """Reads one field into `found`. Returns (position after the field, number of the field's missing bytes)."""
        if letter in self._measured:
            length = found[f"length of {letter}"]
            found[letter] = None if length < 0 else data[at : at + length]
            end = at + max(length, 0)
            return end, max(0, end - len(data))
        if letter == "R":
            end = at + BINARY_LENGTH_BYTES
            if end > len(data):
                return end, end - len(data)
            self._number(int.from_bytes(data[at:end], "big", signed=True), letter, data, at, found)
            return end, 0
        if letter in _NUMBERS:
            digits = _NUMBER.match(data, at)
            if digits is None:
                if data[at:] in (b"", b"-"):
                    return at, 1
                raise self._mismatch(f"expected a number for %{letter}", data, at)
            if digits.end() == len(data):
                return at, 1
            self._number(int(digits[0]) if len(digits[0]) <= _DIGITS_MAX else 2**64, letter, data, at, found)
            return digits.end(), 0
        text = following[0]
        assert isinstance(text, bytes)
        line_end = data.find(b"\n", at)
        # The text must begin in this line; its first byte may be this line's end.
        bound = line_end + len(text) - (not text.startswith(b"\n"))
        end = data.find(text, at, len(data) if line_end < 0 else bound)
        if end < 0:
            if line_end < 0 or len(data) < bound:
                return at, 1
            raise self._mismatch(f"expected {_shown(text)} after %{letter}", data, at)
        if letter == "h":
            found["h"] = self._headers(data, at, end)
        else:
            found[letter] = nullable(data[at:end], self._null_marker)
        return end, 0

    def _number(self, number: int, letter: str, data: bytes, at: int, found: dict[str, Any]) -> None:
        lowest, highest = _NUMBERS[letter]
        if not lowest <= number <= highest:
            raise self._mismatch(f"%{letter} is a number from {lowest} to {highest}", data, at)
        if letter in _MEASURES:
            found[f"length of {_MEASURES[letter]}"] = number
        else:
            found[letter] = None if number < 0 else number

    def _headers(self, data: bytes, at: int, end: int) -> Headers:
        try:
            return parse_headers(data[at:end], b"=")
        except UsageError as error:
            raise Mismatch(error.message, error.remedy, at) from None

    def _mismatch(self, expected: str, data: bytes, at: int) -> Mismatch:
        line = data[at : data.find(b"\n", at) + 1 or len(data)]
        return Mismatch(f"{expected}, found {_shown(line) if line else 'the end of the input'}", self._remedy, at)

    def unfinished(self, data: bytes, at: int) -> Mismatch:
        """The error for input that ends inside a record."""
        return Mismatch(f"the input ends inside a record, after {_shown(data[at:])}", self._remedy, at)


def _shown(text: bytes) -> str:
    """Bytes in quotes, with a template's escapes, for an error message; a long text is cut off."""
    shown = text[:60].decode("utf-8", "backslashreplace")
    for character, escape in (("\n", r"\n"), ("\t", r"\t"), ("\r", r"\r"), ("\0", r"\0")):
        shown = shown.replace(character, escape)
    return f"'{shown}…'" if len(text) > 60 else f"'{shown}'"
