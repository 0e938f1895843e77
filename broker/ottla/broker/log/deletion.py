"""Files whose removal is delayed, because reads that began before the deletion may still use them
(`file.delete.delay.ms`).

The files have been renamed already, so that a broker that restarts during the delay finds and removes them.
"""

from __future__ import annotations

import heapq

from .disk import Disk


class Deletions:
    """Paths of files and directories, by the time in ms at which their removal is due."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add(self, due_ms: int, path: str) -> None:
        """Schedules the removal of `path` for `due_ms`."""
        heapq.heappush(self._due, (due_ms, path))

    def due(self, now_ms: int, count_max: int | None = None) -> list[str]:
        """Takes out the paths that are due, at most `count_max` of them and the earliest first. The caller removes them
        (`remove`), in a thread."""
        paths: list[str] = []
        while self._due and self._due[0][0] <= now_ms and len(paths) != count_max:
            paths.append(heapq.heappop(self._due)[1])
        return paths


def remove(disk: Disk, paths: list[str]) -> dict[str, OSError]:
    """Removes files, and directories with their content. Returns the paths that couldn't be removed, with their errors.
    Blocks."""
    errors: dict[str, OSError] = {}
    for path in paths:
        try:
            _remove(disk, path)
        except FileNotFoundError:
            continue
        except OSError as error:
            errors[path] = error
    return errors


def _remove(disk: Disk, path: str) -> None:
    try:
        disk.remove(path)
    except (IsADirectoryError, PermissionError):
        disk.remove_tree(path)
