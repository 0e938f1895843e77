"""The types of buffers that bytes are received into and read from. Pure."""

from __future__ import annotations

import mmap

Memory = bytearray | mmap.mmap
"""A frame's, written in place where it holds batches. That of a large one takes room only as its bytes arrive."""

Frame = bytes | Memory
"""What is only read."""

Buffer = Frame | memoryview
"""What is only read, or a part of it."""
