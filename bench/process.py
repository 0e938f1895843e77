"""CPU and memory of a process and its children, from /proc: the kernel's own accounting, not the program's."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, of its children now and of those that have ended.

    The scheduler's count (in ns) is used where the kernel offers it, because ticks of 10 ms are coarse.
    """
    total = 0.0
    for member in _family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ended_children = (int(fields[13]) + int(fields[14])) / _TICKS
        total += _scheduled_seconds(member) + ended_children
    return total


def resident_bytes(pid: int) -> int:
    """Memory in RAM."""
    return sum(_status_bytes(member, "VmRSS") for member in _family(pid))


def anonymous_bytes(pid: int) -> int:
    """The part of it that is no file's: what the process itself holds."""
    return sum(_status_bytes(member, "RssAnon") for member in _family(pid))


def _scheduled_seconds(pid: int) -> float:
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((thread / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    # Threads that have ended are missing there but not in the process's own ticks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / _TICKS
    return max(total / 1e9, ticks)


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _family(pid: int) -> list[int]:
    """The process and its living descendants."""
    members = [pid]
    for member in members:
        for thread in Path(f"/proc/{member}/task").iterdir():
            try:
                members += [int(child) for child in (thread / "children").read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
    return members
