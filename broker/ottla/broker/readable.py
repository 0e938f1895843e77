"""A partition's answer to a fetch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.net.pending import Part


class Readable(NamedTuple):
    """The batches that a fetch may send, as ranges of files or as bytes, their size in bytes, and the partition's
    offsets."""

    ranges: Sequence[Part]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    cut: bool = False  # more can be read, but isn't in memory
