"""Rows to records, one by one in Python. Pure; the plain twin of `encode_kernel`.

It serves where numba is missing and for rows with headers, and tests hold the kernel against it. `murmur2` is Kafka's
(Utils.murmur2), which decides a key's partition for every client.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.batches import Record, write_record

Headers = Sequence[tuple[str, bytes | None]]


def partition_of(key: bytes, count: int) -> int:
    """The partition out of `count` that Kafka's default partitioner gives a key."""
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
    """Rows [first, stop) as records of one timestamp, until `limit` bytes but one at least: (next row, bytes)."""
    body = bytearray()
    for index in range(first, stop):
        key, value, headers = rows[index]
        before = len(body)
        write_record(body, Record(index - first, 0, key, value, headers), 0, 0)
        if before and len(body) > limit:
            return index, bytes(body[:before])
    return stop, bytes(body)
