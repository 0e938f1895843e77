"""What a partition answers a fetch with. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.net.pending import Part


class Readable(NamedTuple):
    """What a fetch may send: ranges of files, or their bytes, how many in all, and the offsets that go with them."""

    ranges: Sequence[Part]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    cut: bool = False  # more can be read, which isn't in memory
