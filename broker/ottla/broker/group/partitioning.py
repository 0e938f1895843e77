"""Maps a group to its partition of `__consumer_offsets`. Pure.

The partition is the absolute value (0 for the smallest int) of the Java hash of the group's id, modulo the partition
count. Source: Kafka's GroupCoordinatorService.partitionFor, Utils.abs.
"""

from __future__ import annotations

from functools import lru_cache

OFFSETS_TOPIC = "__consumer_offsets"


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition whose leader is the coordinator of `group_id`."""
    code = java_hash(group_id)
    return 0 if code == -(2**31) else abs(code) % partition_count


@lru_cache(maxsize=16_384)
def java_hash(text: str) -> int:
    """Java's String.hashCode of `text`, an int32 that is computed from UTF-16 code units."""
    code = 0
    if text.isascii():
        for unit in text.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(data), 2):
            code = (31 * code + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
