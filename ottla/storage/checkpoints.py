"""The texts of checkpoints: lines with a version, a count, and as many entries. Pure.

A log directory has a checkpoint of offsets for each kind of offset, and each partition's directory has one of its
leader epochs. Source: Kafka's CheckpointFile, OffsetCheckpointFile ("topic partition offset" lines) and
LeaderEpochCheckpointFile ("epoch startOffset" lines).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Offsets = dict[tuple[str, int], int]  # (topic, partition) → offset


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


def render_offsets(offsets: Iterable[tuple[str, int, int]]) -> bytes:
    """The bytes of a checkpoint with these (topic, partition, offset)."""
    lines = [f"{topic} {index} {offset}" for topic, index, offset in offsets]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def parse_offsets(text: bytes) -> Offsets:
    """The offsets in a checkpoint's bytes; none in an empty file. Raises ValueError where `text` isn't a checkpoint."""
    if not text:
        return {}
    lines = text.decode().split("\n")
    if lines[0] != "0":
        raise ValueError(f"version {lines[0]!r} of an offset checkpoint")
    if len(lines) < 3 or lines[-1]:
        raise ValueError("an offset checkpoint ends inside a line")
    count = int(lines[1])
    offsets: Offsets = {}
    for line in lines[2 : 2 + count]:
        topic, index, offset = line.split(" ")
        offsets[topic, int(index)] = int(offset)
    if len(lines) < 2 + count:
        raise ValueError(f"{len(lines) - 2} of {count} offsets")
    return offsets


def render_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The bytes of a leader epoch checkpoint."""
    lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    return ("\n".join(lines) + "\n").encode()


def parse_epochs(text: bytes) -> list[EpochEntry]:
    """The entries in a leader epoch checkpoint's bytes. Raises ValueError where `text` isn't one."""
    lines = text.decode("ascii").split("\n")
    if lines[0] != "0":
        raise ValueError(f"version {lines[0]!r} of a leader epoch checkpoint")
    if len(lines) < 3 or lines[-1]:
        raise ValueError("a leader epoch checkpoint ends inside a line")
    entries = []
    for line in lines[2 : 2 + int(lines[1])]:
        epoch, start = line.split()
        entries.append(EpochEntry(int(epoch), int(start)))
    if len(entries) != int(lines[1]):
        raise ValueError(f"{len(entries)} of {lines[1]} leader epochs")
    return entries
