"""The records that every client of the codec tests writes, and the digest by which each client checks the records that
it reads.

The Java and Go programs in `tests/conformance` have the same definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

COUNT = 300
FIRST_TIMESTAMP = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = list[tuple[str, bytes]]


class SampleRecord(NamedTuple):
    """A record to write. Its offset is its index; all records go to partition 0."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def line(self, offset: int) -> str:
        """The record's line in the digested text."""
        headers = "".join(f"{name}={_hex(value)};" for name, value in self.headers)
        return f"{offset}|{self.timestamp}|{_hex(self.key)}|{_hex(self.value)}|{headers}\n"


def all_records() -> list[SampleRecord]:
    """All sample records, in the order of their offsets."""
    return [
        SampleRecord(
            FIRST_TIMESTAMP + i,
            None if i % 7 == 0 else f"key-{i}".encode(),
            None if i % 7 == 3 else f"value {i} ".encode() * 20,
            [("number", str(i).encode()), ("empty", b"")] if i % 3 == 0 else [],
        )
        for i in range(COUNT)
    ]


def digest(seen: Iterable[tuple[int, SampleRecord]]) -> str:
    """The digest of the (offset, record) pairs that a client has read."""
    sha = hashlib.sha256()
    for offset, record in seen:
        sha.update(record.line(offset).encode())
    return sha.hexdigest()


def expected_digest() -> str:
    """The digest of the sample records, which every client must get."""
    return digest(enumerate(all_records()))


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()
