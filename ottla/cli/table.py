"""Rows of text as a table, or as blocks of lines, that fit a terminal. Pure.

The rules of folding: short texts, and columns of numbers, states or hosts, are never folded. Long texts are folded, at
a separator if possible. If even folded columns don't fit the terminal, each row becomes a block of lines, each with a
heading and a value. Rows of whole sentences are blocks from the beginning, folded between words.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

_GAPS = (3, 2, 1)
_FOLDED_WIDTH_MIN = 16
_SEPARATORS = " ,/._-:;="


class Column(NamedTuple):
    """A column's heading, and whether its cells are numbers, which are right-aligned."""

    heading: str
    numeric: bool


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, *, bold: bool) -> list[str]:
    """The lines of a table. Each row has one cell per column. Without a width nothing is folded."""
    natural = [
        max(_cells(column.heading), *(_cells(row[index]) for row in rows)) if rows else _cells(column.heading)
        for index, column in enumerate(columns)
    ]
    for gap in _GAPS:
        if width is None or sum(natural) + gap * (len(columns) - 1) <= width:
            return _table(columns, rows, natural, gap, bold=bold)
    assert width is not None
    gap = _GAPS[-1]
    long = [index for index, size in enumerate(natural) if size > _FOLDED_WIDTH_MIN and not columns[index].numeric]
    room = width - gap * (len(columns) - 1) - sum(size for index, size in enumerate(natural) if index not in long)
    if room < _FOLDED_WIDTH_MIN * len(long) or not long:
        return blocks(columns, rows, None)
    return _table(columns, rows, _shared(natural, long, room), gap, bold=bold)


def blocks(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """A block of lines for each row, with an empty line before each block but the first. Without a width, or with one
    that leaves hardly any room beside the headings, nothing is folded."""
    indent = max(_cells(column.heading) for column in columns) + 2
    room = width - indent if width is not None else 0
    found: list[str] = []
    for row in rows:
        found += [""] if found else []
        for column, cell in zip(columns, row, strict=True):
            pieces = [cell]
            if room >= _FOLDED_WIDTH_MIN:
                pieces = textwrap.wrap(cell, room, break_long_words=False, break_on_hyphens=False) or [cell]
            heads = [f"{column.heading}:", *[""] * (len(pieces) - 1)]
            found += [f"{head:<{indent}}{piece}".rstrip() for head, piece in zip(heads, pieces, strict=True)]
    return found


def _shared(natural: Sequence[int], long: Sequence[int], room: int) -> list[int]:
    """The widths of the columns. The long columns share `room`: a column that needs less than an equal part leaves the
    rest to the other long columns."""
    widths = list(natural)
    waiting = sorted(long, key=lambda index: natural[index])
    for position, index in enumerate(waiting):
        widths[index] = min(natural[index], room // (len(waiting) - position))
        room -= widths[index]
    return widths


def _table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: Sequence[int], gap: int, *, bold: bool
) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (width - _cells(cell)) + cell if column.numeric else cell + " " * (width - _cells(cell))
            for column, width, cell in zip(columns, widths, cells, strict=True)
        )
        return (" " * gap).join(padded).rstrip()

    head = line([column.heading for column in columns])
    found = [f"\033[1m{head}\033[0m" if bold else head]
    for row in rows:
        folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, folded))):
            found.append(line([pieces[number] if number < len(pieces) else "" for pieces in folded]))
    return found


def _folded(text: str, width: int) -> list[str]:
    """The text, cut into pieces of at most `width` cells."""
    pieces: list[str] = []
    while _cells(text) > width:
        end = 1
        while _cells(text[: end + 1]) <= width:
            end += 1
        at = max(text.rfind(separator, 0, end) for separator in _SEPARATORS) + 1
        end = at if at > end // 2 else end
        pieces.append(text[:end])
        text = text[end:]
    return [*pieces, text]


def _cells(text: str) -> int:
    """The number of a terminal's cells that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
