"""The records that every client of the codec tests writes, and the digest by which each checks what the others wrote.

The Java and Go programs in `tests/conformance` hold the same definition.
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
    """What goes in; offset and partition 0 follow from the order."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def line(self, offset: int) -> str:
        """What the digest is made of."""
        headers = "".join(f"{name}={_hex(value)};" for name, value in self.headers)
        return f"{offset}|{self.timestamp}|{_hex(self.key)}|{_hex(self.value)}|{headers}\n"


def all_records() -> list[SampleRecord]:
    """In order of their offsets."""
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
    """Of (offset, record) as a client gave them."""
    sha = hashlib.sha256()
    for offset, record in seen:
        sha.update(record.line(offset).encode())
    return sha.hexdigest()


def expected_digest() -> str:
    """What a client must see."""
    return digest(enumerate(all_records()))


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()
