"""CPU and memory of a process and its children, from the kernel's accounting in /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, of its living descendants, and of their ended children. The time of ended
    children is in ticks of 10 ms, the rest to the nanosecond."""
    total = 0.0
    for member in _family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ended_children = (int(fields[13]) + int(fields[14])) / _TICKS
        total += time.clock_gettime(_processor_clock(member)) + ended_children
    return total


def resident_bytes(pid: int) -> int:
    """The memory in RAM of the process and its living descendants."""
    return sum(_status_bytes(member, "VmRSS") for member in _family(pid))


def anonymous_bytes(pid: int) -> int:
    """The part of `resident_bytes` without mapped files."""
    return sum(_status_bytes(member, "RssAnon") for member in _family(pid))


def _processor_clock(pid: int) -> int:
    """The id of Linux' clock of a process's CPU time, which includes ended threads. (`schedstat` leaves ended threads
    out, and ticks are too coarse for a few milliseconds.) Source: MAKE_PROCESS_CPUCLOCK and CPUCLOCK_SCHED in Linux'
    posix-timers.h."""
    return (~pid << 3) | 2


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
