"""The texts of checkpoints: a line with the version, a line with the number of entries, and a line for each entry.
Pure.

A log directory has a checkpoint of offsets for each kind of offset, and each partition's directory has a checkpoint
with the partition's leader epochs. Source: Kafka's CheckpointFile, OffsetCheckpointFile ("topic partition offset"
lines) and LeaderEpochCheckpointFile ("epoch startOffset" lines).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Offsets = dict[tuple[str, int], int]  # (topic, partition) → offset


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


def render_offsets(offsets: Iterable[tuple[str, int, int]]) -> bytes:
    """The bytes of a checkpoint with these entries, each of them (topic, partition, offset)."""
    return _render([f"{topic} {index} {offset}" for topic, index, offset in offsets])


def parse_offsets(text: bytes) -> Offsets:
    """The offsets in a checkpoint's bytes; an empty file has none. Raises ValueError if `text` isn't a checkpoint."""
    offsets: Offsets = {}
    for line in _parse(text, "an offset checkpoint") if text else ():
        topic, index, offset = line.split(" ")
        offsets[topic, int(index)] = int(offset)
    return offsets


def render_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The bytes of a leader epoch checkpoint."""
    return _render([f"{epoch} {start}" for epoch, start in entries])


def parse_epochs(text: bytes) -> list[EpochEntry]:
    """The entries in a leader epoch checkpoint's bytes. Raises ValueError if `text` isn't a checkpoint."""
    pairs = (line.split() for line in _parse(text, "a leader epoch checkpoint"))
    return [EpochEntry(int(epoch), int(start)) for epoch, start in pairs]


def _render(entries: list[str]) -> bytes:
    return "\n".join(["0", str(len(entries)), *entries, ""]).encode()


def _parse(text: bytes, what: str) -> list[str]:
    """The lines of a checkpoint's entries; `what` names the checkpoint in errors. Raises ValueError if `text` isn't a
    checkpoint."""
    lines = text.decode().split("\n")
    if lines[0] != "0":
        raise ValueError(f"{what} has version {lines[0]!r}, and only version 0 can be read")
    if len(lines) < 3 or lines[-1]:
        raise ValueError(f"{what} ends inside a line")
    count, entries = int(lines[1]), lines[2:-1]
    if not 0 <= count <= len(entries):
        raise ValueError(f"{what} states {count} entries, but has {len(entries)}")
    return entries[:count]
