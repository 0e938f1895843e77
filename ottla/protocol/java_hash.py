"""The partition of an internal topic in which Kafka keeps the state of a group or of a transactional id. Pure.

The partition is the absolute value (0 for the smallest int) of the Java hash of the id, modulo the partition count.
Source: Java's String.hashCode; Kafka's Utils.abs, GroupCoordinatorService and TransactionStateManager (partitionFor).
"""

from __future__ import annotations

from functools import lru_cache


def partition_of(key: str, partition_count: int) -> int:
    """The partition that has the state of `key`."""
    code = java_hash(key)
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
