"""The types of buffers that bytes are received into and read from. Pure."""

from __future__ import annotations

import mmap

Memory = bytearray | mmap.mmap
"""The memory of a frame. The broker writes offsets into the batches of the frame in place. The memory of a large frame
is mapped, so that its pages are taken only as bytes arrive."""

Frame = bytes | Memory
"""The memory of a frame whose bytes are only read."""

Buffer = Frame | memoryview
"""A frame, or a part of a frame, whose bytes are only read."""
