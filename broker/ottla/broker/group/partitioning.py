"""The internal topic of groups, and the partition of it that has a group's state. Pure."""

from __future__ import annotations

from ottla.protocol.java_hash import partition_of

OFFSETS_TOPIC = "__consumer_offsets"


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition whose leader is the coordinator of `group_id`."""
    return partition_of(group_id, partition_count)
