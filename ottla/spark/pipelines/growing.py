"""Files that grow by lines: how far each one has been read, and what a batch reads of each. No Spark.

A position has a `Mark` for each file, by the file's path: how many bytes were read, up to after a newline, and a hash
of the file's beginning. A line counts once its newline is written, so a line that is being written isn't torn. A file
that is shorter than its mark, or has another beginning, was truncated or replaced: lines may be lost or come twice, so
it is an error. The hash is the same on another machine and after a restore, where a file's inode isn't. The order of
lines is kept in each file, not between files.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

BLOCK_BYTES = 64 * 1024
HEAD_BYTES = 1024


class FileReplaced(Exception):
    """A file isn't the one that was read: it is shorter, or has another beginning."""


class Mark(NamedTuple):
    """How far a file was read: the bytes before `end`. `head` is a hash of the first HEAD_BYTES of them."""

    end: int
    head: str


Position = dict[str, Mark]


class FileRange(NamedTuple):
    """Whole lines of a file: the bytes from `start` to before `end`."""

    path: str
    start: int
    end: int


def position_of(decoded: Mapping[str, list[int | str]]) -> Position:
    """A position that was written as JSON, where a mark is a list."""
    return {path: Mark(int(end), str(head)) for path, (end, head) in decoded.items()}


def matching(pattern: str) -> list[str]:
    """The files that a path names: the file itself, the files in a directory, or those that fit a pattern."""
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "*")
    found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    return sorted(path for path in found if os.path.isfile(path) and not os.path.basename(path).startswith((".", "_")))


def ahead(
    start: Mapping[str, Mark], paths: list[str], bytes_max: int, last: Mapping[str, Mark] | None = None
) -> Position:
    """The position after at most about `bytes_max` bytes of whole lines beyond `start`, and not beyond `last`.

    Each file with new lines has an equal share of the bytes, and at least one line, so a file that grows fast doesn't
    keep the others from being read. Raises FileReplaced.
    """
    position = dict(start)
    fresh: list[tuple[str, int, int]] = []
    for path in paths:
        begin, size = _begin(path, start.get(path)), os.path.getsize(path)
        if last is not None:
            size = min(size, last[path].end if path in last else 0)
        if size > begin:
            fresh.append((path, begin, size))
    share = max(bytes_max // max(len(fresh), 1), 1)
    for path, begin, size in fresh:
        with open(path, "rb") as file:
            end = _last_newline(file, begin, min(size, begin + share)) or _first_newline(file, begin, size)
            if end:
                position[path] = Mark(end, _head(file, end))
    return position


def ranges(start: Mapping[str, Mark], end: Mapping[str, Mark]) -> list[FileRange]:
    """The lines between two positions."""
    between = [FileRange(path, start[path].end if path in start else 0, mark.end) for path, mark in sorted(end.items())]
    return [each for each in between if each.end > each.start]


def lines(part: FileRange) -> Iterator[tuple[int, bytes]]:
    """The lines of a range with the offsets of their first bytes, without their newlines (\\n or \\r\\n). Raises
    FileReplaced if the range isn't whole lines any more."""
    with open(part.path, "rb") as file:
        at = part.start
        file.seek(max(at - 1, 0))
        if at and file.read(1) != b"\n":
            raise _replaced(part.path, f"no line begins at byte {at}")
        while at < part.end:
            line = file.readline()
            if not line.endswith(b"\n") or at + len(line) > part.end:
                raise _replaced(part.path, f"there is no whole line at byte {at}")
            yield at, line[:-2] if line.endswith(b"\r\n") else line[:-1]
            at += len(line)


def _begin(path: str, mark: Mark | None) -> int:
    """The number of bytes of a file that were read. Raises FileReplaced if it isn't the file that was read."""
    if mark is None:
        return 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < mark.end:
            raise _replaced(path, f"it has {size} bytes, and {mark.end} bytes were read")
        if _head(file, mark.end) != mark.head:
            raise _replaced(path, "it has another beginning than the file that was read")
    return mark.end


def _replaced(path: str, how: str) -> FileReplaced:
    return FileReplaced(f"{path} was truncated or replaced: {how}")


def _head(file: BinaryIO, end: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(min(end, HEAD_BYTES))).hexdigest()[:16]


def _last_newline(file: BinaryIO, start: int, end: int) -> int:
    """The place after the last newline between `start` and `end`; 0 if there is none."""
    while end > start:
        begin = max(start, end - BLOCK_BYTES)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _first_newline(file: BinaryIO, start: int, end: int) -> int:
    """The place after the first newline between `start` and `end`; 0 if there is none."""
    file.seek(start)
    while start < end and (block := file.read(min(BLOCK_BYTES, end - start))):
        found = block.find(b"\n")
        if found >= 0:
            return start + found + 1
        start += len(block)
    return 0
