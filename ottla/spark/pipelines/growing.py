"""Files that grow by lines: how far each one has been read, and what a batch reads of each. No Spark.

A position is the number of bytes of each file that have been read, by the file's path. It stands after a newline. A
line counts once its newline is written, so a line that is being written isn't torn. A file that has become shorter than
its position was truncated or replaced: lines may be lost or come twice, so it is an error. The order of lines is kept
in each file, not between files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Position = dict[str, int]
BLOCK_BYTES = 64 * 1024


class FileTruncated(Exception):
    """A file is shorter than what was read of it."""


class FileRange(NamedTuple):
    """Whole lines of a file: the bytes from `start` to before `end`."""

    path: str
    start: int
    end: int


def matching(pattern: str) -> list[str]:
    """The files that a path names: the file itself, the files in a directory, or those that fit a pattern."""
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "*")
    found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    return sorted(path for path in found if os.path.isfile(path) and not os.path.basename(path).startswith((".", "_")))


def ahead(start: Mapping[str, int], paths: list[str], bytes_max: int) -> Position:
    """The position after at most about `bytes_max` bytes of whole lines beyond `start`; a line that is longer is read
    whole. Raises FileTruncated."""
    position, left = dict(start), bytes_max
    for path in paths:
        begin, size = position.setdefault(path, 0), os.path.getsize(path)
        if size < begin:
            raise FileTruncated(f"{path} has {size} bytes, and {begin} of it were read: it was truncated or replaced")
        if left > 0 and size > begin:
            end = _last_newline(path, begin, min(size, begin + left)) or _first_newline(path, begin, size) or begin
            left -= end - begin
            position[path] = end
    return position


def ranges(start: Mapping[str, int], end: Mapping[str, int]) -> list[FileRange]:
    """The lines between two positions."""
    between = [FileRange(path, start.get(path, 0), stop) for path, stop in sorted(end.items())]
    return [each for each in between if each.end > each.start]


def lines(part: FileRange) -> Iterator[tuple[int, bytes]]:
    """The lines of a range with the offsets of their first bytes, without their newlines (\\n or \\r\\n). Raises
    FileTruncated if the file has become shorter."""
    with open(part.path, "rb") as file:
        file.seek(part.start)
        at = part.start
        while at < part.end:
            line = file.readline()
            if not line.endswith(b"\n") or at + len(line) > part.end:
                raise FileTruncated(f"{part.path} has no whole line at byte {at}: it was truncated or replaced")
            yield at, line[:-2] if line.endswith(b"\r\n") else line[:-1]
            at += len(line)


def _last_newline(path: str, start: int, end: int) -> int:
    """The place after the last newline between `start` and `end`; 0 if there is none."""
    with open(path, "rb") as file:
        while end > start:
            begin = max(start, end - BLOCK_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def _first_newline(path: str, start: int, end: int) -> int:
    """The place after the first newline between `start` and `end`; 0 if there is none."""
    with open(path, "rb") as file:
        file.seek(start)
        while start < end and (block := file.read(min(BLOCK_BYTES, end - start))):
            found = block.find(b"\n")
            if found >= 0:
                return start + found + 1
            start += len(block)
    return 0
