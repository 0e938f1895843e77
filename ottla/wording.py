"""Puts amounts and lists into words, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(size_bytes: int) -> str:
    """A number of bytes with a fitting unit: 1536 is 1.5 KiB."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def first_named(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def abridged(text: str, most: int) -> str:
    """The text in one line, of at most `most` characters: a longer text is cut after a word, and ends in an ellipsis.

    kubectl shows only the first line of a text in a column.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    cut = line[: most - 1]
    words = cut.rpartition(" ")[0]
    return (words if len(words) > most // 2 else cut[:-1]).rstrip(" ,;:") + " …"
