"""Encodes rows as records, one after the other, in Python. Pure.

`encode` calls it where numba is missing, and for rows with headers. Tests compare `encode_kernel` with it. `murmur2` is
the hash by which the default partitioner of Kafka's clients chooses a key's partition (Utils.murmur2).
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.batches import Record, write_record

Headers = Sequence[tuple[str, bytes | None]]


def partition_of(key: bytes, count: int) -> int:
    """The partition, of `count` partitions, that Kafka's default partitioner chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit hash of a key, unsigned."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def encode(
    rows: Sequence[tuple[bytes | None, bytes | None, Headers]], first: int, stop: int, limit: int
) -> tuple[int, bytes]:
    """Encodes the rows [first, stop), each of them (key, value, headers), as records whose timestamps are the batch's.

    Stops before the record that would exceed `limit` bytes, but encodes at least one. Returns (the index of the first
    row that wasn't encoded, the encoded records).
    """
    body = bytearray()
    for index in range(first, stop):
        key, value, headers = rows[index]
        before = len(body)
        write_record(body, Record(index - first, 0, key, value, headers), 0, 0)
        if before and len(body) > limit:
            return index, bytes(body[:before])
    return stop, bytes(body)
