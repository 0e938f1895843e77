"""When etcd's members are defragmented, and in which order. Pure.

Compaction frees pages inside the database file, but doesn't make the file smaller. When a file reaches its quota, etcd
takes no more writes. A defragmentation writes the file anew, and meanwhile the member answers no requests. So members
are defragmented one at a time, only while all others answer, the leader last, and only where that frees much space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WASTED_BYTES_MIN = 64 * 2**20
WASTED_SHARE_MIN = 0.5
FULL_SHARE = 0.9  # of the quota; if more is used, retries of refused writes would soon fill the database again


@dataclass(frozen=True)
class MemberStatus:
    """A member's status, as the member reports it. Sizes are those of the member's database file."""

    leads: bool
    size_bytes: int
    used_bytes: int
    version: str
    revision: int


def too_full(statuses: Mapping[str, MemberStatus], quota_bytes: int) -> str:
    """What a person has to do if used pages, not free ones, fill the database; empty where there is room."""
    used = max((status.used_bytes for status in statuses.values()), default=0)
    if used < quota_bytes * FULL_SHARE:
        return ""
    return (
        f"the database is full, and no metadata can be changed: {used >> 20} of {quota_bytes >> 20} MiB are in use; "
        "raise metadata.etcd.storage.size"
    )


def to_defragment(statuses: Mapping[str, MemberStatus], wanted: int, *, full: bool) -> str | None:
    """The member to defragment next; None where no member needs that. `wanted`: how many members have to answer;
    `full`: the quota is reached, so that every free page counts."""
    if len(statuses) < wanted:
        return None
    waste = {name: status.size_bytes - status.used_bytes for name, status in statuses.items()}
    wasteful = [
        name
        for name, status in statuses.items()
        if waste[name] > (0 if full else max(WASTED_BYTES_MIN, status.size_bytes * WASTED_SHARE_MIN))
    ]
    return min(wasteful, key=lambda name: (statuses[name].leads, -waste[name], name), default=None)
