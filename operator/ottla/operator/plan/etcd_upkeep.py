"""When etcd's database is made smaller, and in which order. Pure.

Compaction frees pages inside the file and leaves it as large as it was; a file that reaches its quota stops all writes.
A defragmentation writes the file anew, and the member answers nobody meanwhile: so one at a time, only while all the
others answer, the leader last, and only where it gives back much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WASTED_BYTES_MIN = 64 * 2**20
WASTED_SHARE_MIN = 0.5
FULL_SHARE = 0.9  # of the quota: writes that were refused would fill it again at once


@dataclass(frozen=True)
class MemberStatus:
    """What a member says about itself."""

    leads: bool
    size_bytes: int
    used_bytes: int
    version: str
    revision: int


def too_full(statuses: Mapping[str, MemberStatus], quota_bytes: int) -> str:
    """What to do where what is in use, and no waste, fills the database; nothing where there is room."""
    used = max((status.used_bytes for status in statuses.values()), default=0)
    if used < quota_bytes * FULL_SHARE:
        return ""
    return (
        f"its database is full, and nothing can be changed: {used >> 20} of {quota_bytes >> 20} MiB are in use; "
        "raise metadata.etcd.storage.size"
    )


def to_defragment(statuses: Mapping[str, MemberStatus], wanted: int, *, full: bool) -> str | None:
    """The member whose turn it is. `full`: the quota is reached, and every page counts."""
    if len(statuses) < wanted:
        return None
    waste = {name: status.size_bytes - status.used_bytes for name, status in statuses.items()}
    wasteful = [
        name
        for name, status in statuses.items()
        if waste[name] > (0 if full else max(WASTED_BYTES_MIN, status.size_bytes * WASTED_SHARE_MIN))
    ]
    return min(wasteful, key=lambda name: (statuses[name].leads, -waste[name], name), default=None)
