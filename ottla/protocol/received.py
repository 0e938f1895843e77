"""What received bytes lie in. Pure."""

from __future__ import annotations

import mmap

Frame = bytes | bytearray | mmap.mmap
"""Large frames come in mappings, whose pages take room only as they arrive."""
